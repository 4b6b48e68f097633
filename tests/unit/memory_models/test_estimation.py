"""Estimates: their parts, the instants they compare, and what physics says of them."""

from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import given, settings

from memory_models.breakdown import Category, Component
from memory_models.estimation import estimate
from memory_models.job import Frozen, Granularity, Recompute, TrainingJob
from memory_models.layout import ParallelLayout
from memory_models.parameters import model_parameters, stage_weights, whole
from memory_models.presets import QWEN3_VL_235B_A22B
from memory_models.shapes import ImageLoad
from tests.unit.memory_models.jobs import MEGAPIXEL, qwen_30b, small_jobs

GIB = 2**30


def peak(job: TrainingJob) -> int:
    return estimate(job).worst.allocated_bytes


def cell(job: TrainingJob, component: Component, category: Category) -> int:
    return estimate(job).worst.breakdown.cells.get((component, category), 0)


def test_states_of_30b_on_ep_8_are_what_a_dry_run_of_the_real_code_counted() -> None:
    categories = estimate(qwen_30b()).worst.breakdown.by_category()
    assert round(categories[Category.PARAMETERS] / GIB, 2) == 10.62
    assert round(categories[Category.GRADIENTS] / GIB, 2) == 21.25
    assert round(categories[Category.OPTIMIZER_STATES] / GIB, 2) == 5.43


def states_gib(job: TrainingJob) -> float:
    kinds = (Category.PARAMETERS, Category.GRADIENTS, Category.OPTIMIZER_STATES)
    categories = estimate(job).worst.breakdown.by_category()
    return round(sum(categories[kind] for kind in kinds) / GIB, 1)


def test_states_of_the_recipes_are_what_hand_arithmetic_says() -> None:
    eight = qwen_30b(world_size=8)
    assert states_gib(eight) == 75.3
    assert states_gib(replace(eight, precision=replace(eight.precision, gradient_bytes=2))) == 64.7
    assert states_gib(qwen_30b(world_size=16)) == 53.6
    text, vision = QWEN3_VL_235B_A22B
    layout = ParallelLayout(world_size=32, tensor=4, expert=32, sequence_parallel=True)
    large = replace(eight, text=text, vision=vision, layout=layout, batch=replace(eight.batch, total=32))
    assert states_gib(large) == 134.2


def test_expert_tensor_size_unset_or_one_is_the_layout_change_of_bridge_4579() -> None:
    """With ETP 1 instead of TP, weights and gradients of the experts double, their states stay."""
    job = qwen_30b(tensor=2, expert=4)
    before = replace(job, layout=replace(job.layout, expert_tensor=2))

    def experts(some: TrainingJob, category: Category) -> int:
        router = 2 * 48 * 2048 * 128 if category is Category.PARAMETERS else 4 * 48 * 2048 * 128
        return cell(some, Component.EXPERTS, category) - router

    for category in (Category.PARAMETERS, Category.GRADIENTS):
        assert experts(job, category) == 2 * experts(before, category)
    states = (cell(some, Component.EXPERTS, Category.OPTIMIZER_STATES) for some in (job, before))
    assert len(set(states)) == 1


def test_expert_activations_of_30b_are_the_three_tensors_of_32768_rows() -> None:
    parts = {part.tensor: part.bytes for part in estimate(qwen_30b()).worst.parts}
    rows = 4096 * 8
    assert parts["expert fc1 output"] == 48 * 2 * rows * 2 * 768
    assert parts["expert activation"] == 48 * 2 * rows * 768
    assert parts["routed input"] == 48 * 2 * rows * 2048


def test_the_first_step_lacks_the_moments() -> None:
    instants = estimate(qwen_30b()).worst.instants
    loss = {instant.first_step: instant.total_bytes for instant in instants if instant.name == "loss"}
    states = estimate(qwen_30b()).worst.breakdown.by_category()[Category.OPTIMIZER_STATES]
    assert loss[False] - loss[True] == states * 2 // 3


def test_the_peak_is_the_widest_of_all_instants() -> None:
    worst = estimate(qwen_30b()).worst
    assert worst.allocated_bytes == max(instant.total_bytes for instant in worst.instants)


def test_a_frozen_tower_keeps_weights_only() -> None:
    job = qwen_30b()
    frozen = replace(job, frozen=Frozen(vision=True))
    assert cell(frozen, Component.VISION, Category.PARAMETERS) == 2 * 415_891_440
    assert cell(frozen, Component.VISION, Category.GRADIENTS) == 0
    # All that stays is what its four mergers read, for the sake of their own weights.
    assert cell(frozen, Component.VISION, Category.ACTIVATIONS) == 4 * 2 * MEGAPIXEL.patches * 1152
    assert cell(job, Component.VISION, Category.ACTIVATIONS) > 3 * GIB


def test_full_recompute_reaches_megatrons_tower_and_not_hugging_faces() -> None:
    job = replace(qwen_30b(), recompute=Recompute(granularity=Granularity.FULL))
    assert job.vision is not None
    other = replace(job, vision=replace(job.vision, native=False))
    assert cell(job, Component.VISION, Category.ACTIVATIONS) < GIB
    assert cell(other, Component.VISION, Category.ACTIVATIONS) > 3 * GIB


def test_pipeline_stages_hold_what_stands_on_them() -> None:
    first, second = estimate(qwen_30b(pipeline=2)).ranks
    assert first.breakdown.by_component()[Component.VISION] > 0
    assert second.breakdown.by_component()[Component.VISION] == 0


def test_an_estimate_is_json() -> None:
    answer = json.loads(json.dumps(estimate(qwen_30b()).to_json()))
    rank = answer["ranks"][0]
    assert sum(row["bytes"] for row in rank["breakdown"]) == rank["allocated_bytes"]
    assert sum(part["bytes"] for part in rank["parts"]) == rank["allocated_bytes"]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(small_jobs())
def test_parts_sum_to_the_whole_on_every_rank_and_instant(job: TrainingJob) -> None:
    for rank in estimate(job).ranks:
        assert rank.breakdown.total_bytes == rank.allocated_bytes == sum(part.bytes for part in rank.parts)
        for instant in rank.instants:
            assert instant.breakdown.total_bytes == instant.total_bytes <= rank.allocated_bytes
            assert all(part.bytes >= 0 for part in instant.parts)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(small_jobs())
def test_the_sum_over_ranks_of_parameters_is_the_models(job: TrainingJob) -> None:
    alone = replace(job, layout=ParallelLayout(world_size=job.layout.data))
    sums = dict.fromkeys(Component, 0)
    for stage in range(job.layout.pipeline):
        for component, elements in whole(stage_weights(job, stage)).items():
            sums[component] += elements
    assert sums == model_parameters(alone)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(small_jobs())
def test_memory_grows_with_what_is_asked(job: TrainingJob) -> None:
    batch = job.batch
    longer = replace(job, batch=replace(batch, sequence_length=2 * batch.sequence_length))
    doubled = replace(job, batch=replace(batch, micro=2 * batch.micro, total=2 * batch.total))
    pictures = replace(job, batch=replace(batch, images=ImageLoad(patches=2 * batch.images.patches)))
    assert peak(longer) >= peak(job)
    assert peak(doubled) >= peak(job)
    assert peak(pictures) >= peak(job)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(small_jobs())
def test_memory_shrinks_with_the_distributed_optimizer_and_frozen_parts(job: TrainingJob) -> None:
    plain = replace(job, optimizer=replace(job.optimizer, distributed=False))
    shared = replace(job, optimizer=replace(job.optimizer, distributed=True))
    assert peak(shared) <= peak(plain)
    assert peak(replace(job, frozen=Frozen(vision=True))) <= peak(job)
    assert peak(replace(job, frozen=Frozen(vision=True, projector=True))) <= peak(job)
    assert peak(replace(job, frozen=Frozen(language=True))) <= peak(job)
