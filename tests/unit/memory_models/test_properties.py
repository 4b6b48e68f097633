"""What holds of every job, whatever is switched on: sums, monotony, and remedies that keep their word."""

from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import HealthCheck, given, settings

from memory_models.breakdown import Category, Component, MemoryBreakdown
from memory_models.comparison import compare
from memory_models.distributions import Distribution, Unknowns
from memory_models.estimation import Estimate, estimate
from memory_models.job import Dispatcher, Granularity, Recompute, Sharding, TrainingJob
from memory_models.parameters import chunk_weights, model_parameters, stage_weights, whole
from memory_models.remedies import find_remedies
from tests.unit.memory_models.jobs import wide_jobs

GIB = 2**30

drawn = settings(
    max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)


def peaks(answer: Estimate) -> list[int]:
    return [rank.device_bytes for rank in answer.ranks]


def no_worse(smaller: TrainingJob, larger: TrainingJob) -> bool:
    """Every stage of the second needs at least what the first needs."""
    pairs = zip(peaks(estimate(smaller)), peaks(estimate(larger)), strict=True)
    return all(small <= large for small, large in pairs)


@drawn
@given(wide_jobs())
def test_every_instants_parts_sum_to_its_breakdown_and_none_is_wider_than_the_peak(job: TrainingJob) -> None:
    for rank in estimate(job).ranks:
        for instant in rank.instants:
            assert all(part.bytes >= 0 for part in instant.parts)
            total = sum(part.bytes for part in instant.parts)
            assert total == instant.total_bytes == instant.breakdown.total_bytes <= rank.allocated_bytes
            assert instant.breakdown == MemoryBreakdown.from_json(instant.breakdown.to_json())
        assert rank.low_bytes <= rank.allocated_bytes <= rank.high_bytes


@drawn
@given(wide_jobs())
def test_the_shards_of_all_stages_are_the_model_each_parameter_once(job: TrainingJob) -> None:
    sums = dict.fromkeys(Component, 0)
    for stage in range(job.layout.pipeline):
        by_chunk = dict.fromkeys(Component, 0)
        for chunk in job.chunks[stage]:
            for component, count in whole(chunk_weights(job, chunk, stage)).items():
                by_chunk[component] += count
        assert by_chunk == whole(stage_weights(job, stage))
        for component, count in by_chunk.items():
            sums[component] += count
    assert sums == model_parameters(job)
    alone = replace(job, layout=replace(job.layout, pipeline=1, virtual_pipeline=1), sharding=Sharding.NONE)
    assert model_parameters(alone) == sums


@drawn
@given(wide_jobs())
def test_gradients_and_states_belong_to_what_learns(job: TrainingJob) -> None:
    for rank in estimate(job).ranks:
        trainable = {weights.component for weights in stage_weights(job, rank.stage) if weights.trainable}
        for (component, category), count in rank.breakdown.cells.items():
            if category in (Category.GRADIENTS, Category.OPTIMIZER_STATES) and count:
                assert component in trainable


@drawn
@given(wide_jobs())
def test_more_of_anything_needs_no_less(job: TrainingJob) -> None:
    batch, text, routing = job.batch, job.text, job.routing
    assert no_worse(job, replace(job, batch=replace(batch, sequence_length=2 * batch.sequence_length)))
    assert no_worse(job, replace(job, batch=replace(batch, micro=2 * batch.micro)))
    images = replace(batch.images, patches=2 * batch.images.patches)
    assert no_worse(job, replace(job, batch=replace(batch, images=images)))
    assert no_worse(job, replace(job, text=replace(text, vocabulary=2 * text.vocabulary)))
    assert no_worse(job, replace(job, routing=replace(routing, imbalance=routing.imbalance + 0.5)))
    assert no_worse(replace(job, upstream=replace(job.upstream, lacks=frozenset())), job)


@drawn
@given(wide_jobs())
def test_less_of_what_is_kept_needs_no_more(job: TrainingJob) -> None:
    setup = job.optimizer
    assert no_worse(replace(job, optimizer=replace(setup, offload_fraction=1.0)), job)
    assert no_worse(replace(job, optimizer=replace(setup, first_moment_bytes=2)), job)
    assert no_worse(replace(job, expandable_segments=True), job)
    more = frozenset({"core_attn", "moe_act", "layernorm", "moe", "mlp"})
    if job.recompute.granularity is Granularity.SELECTIVE:
        kept = [
            sum(part.bytes for part in rank.instants[0].parts if part.category is Category.ACTIVATIONS)
            for rank in estimate(job).ranks
        ]
        assert all(count >= 0 for count in kept)
        everything = replace(job, recompute=Recompute(granularity=Granularity.SELECTIVE, modules=more))
        for before, after in zip(estimate(job).ranks, estimate(everything).ranks, strict=True):
            # At the end of forward nothing is replayed: what is dropped is gone.
            forward = [
                next(i.total_bytes for i in rank.instants if i.name == "layer forward" and not i.first_step)
                for rank in (before, after)
            ]
            assert forward[1] <= forward[0]


@drawn
@given(wide_jobs())
def test_unknowns_only_widen_the_band(job: TrainingJob) -> None:
    loads = Unknowns(imbalance=Distribution.of({1.0: 1, 1.6: 1}), patches=Distribution.of({16: 1, 1024: 1}))
    for plain, wide in zip(estimate(job).ranks, estimate(replace(job, unknowns=loads)).ranks, strict=True):
        assert wide.allocated_bytes == plain.allocated_bytes
        assert wide.low_bytes <= plain.low_bytes + 1
        assert wide.high_bytes >= plain.high_bytes - 1


@settings(drawn, max_examples=12)
@given(wide_jobs())
def test_every_remedy_saves_what_estimating_it_again_says(job: TrainingJob) -> None:
    before = estimate(job).worst.device_bytes
    for remedy in find_remedies(job, GIB):
        assert remedy.saving_bytes == before - remedy.estimate_bytes
        assert remedy.legal == (not remedy.why_not)
        assert remedy.fits <= remedy.legal
        assert remedy.change
        json.dumps(remedy.to_json())


@settings(drawn, max_examples=20)
@given(wide_jobs(), wide_jobs())
def test_a_comparison_is_the_difference_of_two_estimates_both_ways(
    first: TrainingJob, second: TrainingJob
) -> None:
    there, back = compare(first, second), compare(second, first)
    assert there.delta_bytes == -back.delta_bytes == sum(there.delta.values())
    assert {cell: -count for cell, count in there.delta.items()} == dict(back.delta)
    explained = sum(effect.delta_bytes or 0 for effect in there.keys)
    assert len(there.keys) < 2 or explained == there.delta_bytes


@drawn
@given(wide_jobs())
def test_an_exchange_that_gathers_everybody_passes_no_fewer_bytes(job: TrainingJob) -> None:
    even = replace(job.routing, imbalance=1.0)
    gathered = replace(job, routing=replace(even, dispatcher=Dispatcher.ALLGATHER))
    spread = replace(job, routing=replace(even, dispatcher=Dispatcher.ALLTOALL))
    if job.layout.expert * job.layout.expert_tensor >= 2 * 2 and job.upstream.lacks == frozenset():
        assert no_worse(spread, gathered)
