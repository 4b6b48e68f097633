"""A rank's stretch of the flat buffers: equal in size, whole in sum, and in the order of the modules."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from memory_models.breakdown import Category, Component
from memory_models.estimation import estimate
from memory_models.flat_buffers import shard_elements
from memory_models.job import OptimizerSetup, TrainingJob
from memory_models.parameters import stage_weights
from memory_models.states import trainable_elements
from tests.unit.memory_models.jobs import qwen_30b, small_jobs

#: Megatron pads a buffer to multiples of 128 elements and of its ranks.
SLACK = 2 * 128 * 8


def shards(job: TrainingJob, stage: int) -> list[dict[Component, int]]:
    """Of every rank of the stage, with a distributed optimizer."""
    job = replace(job, optimizer=OptimizerSetup())
    ranks = job.layout.world_size // job.layout.pipeline
    found = [shard_elements(job, stage, stage * ranks + rank) for rank in range(ranks)]
    return [held for held in found if held is not None]


@given(small_jobs())
def test_the_ranks_of_a_stage_hold_every_parameter_once_for_each_copy_of_it(job: TrainingJob) -> None:
    layout = job.layout
    apart = layout.expert > 1
    for stage in range(layout.pipeline):
        weights = [held for held in stage_weights(job, stage) if held.trainable]
        dense = layout.world_size // layout.pipeline // layout.dense_shard
        routed = layout.world_size // layout.pipeline // layout.expert_data
        expected = dict.fromkeys(Component, 0)
        for held in weights:
            expected[held.component] += held.elements * (routed if held.expert and apart else dense)
        sums = {part: sum(shard[part] for shard in shards(job, stage)) for part in Component}
        assert sums == expected


@given(small_jobs())
def test_stretches_are_equal_but_for_padding(job: TrainingJob) -> None:
    for stage in range(job.layout.pipeline):
        sizes = [sum(held.values()) for held in shards(job, stage)]
        assert max(sizes) - min(sizes) <= SLACK


def test_the_last_modules_are_on_the_first_rank_and_the_tower_on_the_last() -> None:
    job = qwen_30b(world_size=64)
    first, *_, last = shards(job, 0)
    assert last[Component.VISION] > 0 == first[Component.VISION]
    assert first[Component.EMBEDDING_AND_LOSS] > 0 == last[Component.EMBEDDING_AND_LOSS]


def test_a_rank_s_breakdown_moves_states_between_components_and_keeps_their_sum() -> None:
    answer = estimate(qwen_30b(world_size=64)).worst
    one = answer.breakdown_on(63)
    assert one.total_bytes == answer.breakdown.total_bytes
    assert one.by_category() == answer.breakdown.by_category()
    assert one.cells[Component.VISION, Category.OPTIMIZER_STATES] > 0
    assert (Component.EMBEDDING_AND_LOSS, Category.OPTIMIZER_STATES) not in one.cells


@pytest.mark.parametrize("setup", [OptimizerSetup(distributed=False), OptimizerSetup(bucketed=True)])
def test_states_that_no_stretch_holds_are_spread_as_before(setup: OptimizerSetup) -> None:
    job = replace(qwen_30b(world_size=64), optimizer=setup)
    assert shard_elements(job, 0, 0) is None
    answer = estimate(job).worst
    assert answer.breakdown_on(0) == answer.breakdown


def test_buckets_are_for_the_first_stage_alone() -> None:
    job = replace(qwen_30b(world_size=64, pipeline=2), optimizer=OptimizerSetup(bucketed=True))
    assert shard_elements(job, 0, 0) is None
    held = shard_elements(job, 1, 32)
    assert held is not None
    assert sum(held.values()) > 0


def test_a_rank_of_another_stage_is_refused() -> None:
    job = qwen_30b(world_size=64, pipeline=2)
    with pytest.raises(ValueError, match="stage 1"):
        shard_elements(job, 0, 32)


def test_frozen_parts_have_no_stretch() -> None:
    job = qwen_30b(world_size=64)
    job = replace(job, frozen=replace(job.frozen, vision=True))
    assert sum(held[Component.VISION] for held in shards(job, 0)) == 0
    assert trainable_elements(stage_weights(job, 0), Component.VISION) == 0
