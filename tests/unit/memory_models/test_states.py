"""Parameters, gradients and optimizer states: how wide they are, and over which ranks they are spread."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memory_models.breakdown import Category, Component
from memory_models.estimation import estimate
from memory_models.job import Card, OptimizerSetup, Precision, Sharding, TrainingJob
from memory_models.parameters import stage_weights
from memory_models.states import state_shard, states, weight_bytes
from tests.unit.memory_models.jobs import qwen_30b


def held(job: TrainingJob, category: Category) -> int:
    """Bytes of a category that the first stage holds from the second step on."""
    shares = states(job, stage_weights(job, 0)).lasting
    return sum(share.bytes for share in shares if share.category is category)


def elements(job: TrainingJob, *, expert: bool) -> int:
    return sum(weights.elements for weights in stage_weights(job, 0) if weights.expert == expert)


def test_context_ranks_share_the_states_of_dense_parameters_and_expert_ranks_those_of_experts() -> None:
    job = qwen_30b(world_size=64, context=2, expert=8, tensor=2)
    shards = {weights.expert: state_shard(job, weights) for weights in stage_weights(job, 0)}
    assert shards == {False: 64 // 2, True: 64 // 8}  # dp * cp; W / (etp * ep * pp)
    assert job.layout.data == 16


def test_without_the_distributed_optimizer_nothing_is_shared() -> None:
    job = replace(qwen_30b(), optimizer=OptimizerSetup(distributed=False))
    whole = elements(job, expert=True) + elements(job, expert=False)
    assert held(job, Category.OPTIMIZER_STATES) == 12 * whole
    assert held(qwen_30b(), Category.OPTIMIZER_STATES) < 12 * whole / 7


def test_optimizer_instances_divide_the_ranks_that_share() -> None:
    one, two = qwen_30b(), replace(qwen_30b(), optimizer=OptimizerSetup(instances=2))
    ratio = held(two, Category.OPTIMIZER_STATES) / held(one, Category.OPTIMIZER_STATES)
    assert ratio == pytest.approx(2, rel=1e-6)


def test_a_precision_aware_optimizer_keeps_what_it_says() -> None:
    plain, job = qwen_30b(), qwen_30b()
    aware = replace(
        job, optimizer=OptimizerSetup(master_bytes=2, first_moment_bytes=2, second_moment_bytes=1)
    )
    ratio = held(aware, Category.OPTIMIZER_STATES) / held(plain, Category.OPTIMIZER_STATES)
    assert ratio == pytest.approx(5 / 12, rel=1e-4)


@pytest.mark.parametrize("width", [2, 4])
def test_gradients_have_their_own_width(width: int) -> None:
    job = replace(qwen_30b(), precision=Precision(gradient_bytes=width))
    assert held(job, Category.GRADIENTS) == width * (elements(job, expert=True) + elements(job, expert=False))


def test_gradients_in_16_bits_become_float_for_the_optimizers_step() -> None:
    def at_the_step(width: int) -> list[int]:
        rank = estimate(replace(qwen_30b(), precision=Precision(gradient_bytes=width))).worst
        (step,) = [instant for instant in rank.instants if instant.name == "optimizer step"]
        return [part.bytes for part in step.parts if part.tensor.startswith("fp32 gradient")]

    assert at_the_step(4) == []
    assert sum(at_the_step(2)) == pytest.approx(held(qwen_30b(), Category.OPTIMIZER_STATES) / 3, rel=1e-6)


def test_moments_on_the_cpu_leave_their_masters() -> None:
    job = replace(qwen_30b(), optimizer=OptimizerSetup(offload_fraction=1.0))
    ratio = held(job, Category.OPTIMIZER_STATES) / held(qwen_30b(), Category.OPTIMIZER_STATES)
    assert ratio == pytest.approx(4 / 12, rel=1e-6)


@pytest.mark.parametrize(
    ("card", "recipe", "parameters", "width"),
    [
        (Card.HOPPER, "delayed", False, 2 + 2),
        (Card.HOPPER, "tensorwise", False, 2 + 2),
        (Card.HOPPER, "blockwise", True, 2),
        (Card.BLACKWELL, "tensorwise", False, 2 + 1),
        (Card.BLACKWELL, "delayed", True, 1),
        (Card.BLACKWELL, "mxfp8", True, 2),
        (Card.BLACKWELL, "mxfp8", False, 2 + 2),
        (Card.BLACKWELL, "nvfp4", False, 2),
    ],
)
def test_fp8_weights_are_copies_or_have_them_beside(
    card: Card, recipe: str, parameters: bool, width: int
) -> None:
    precision = Precision(fp8=True, fp8_recipe=recipe, fp8_parameters=parameters)
    job = replace(qwen_30b(), card=card, precision=precision)
    widths = {weights.name: weight_bytes(job, weights) for weights in stage_weights(job, 0)}
    assert widths["routed experts"] == widths["query"] == width
    assert widths["router"] == widths["word embedding"] == widths["layer norms"] == 2


@pytest.mark.parametrize(
    ("strategy", "parameters", "gradients", "optimizer"),
    [
        (Sharding.NONE, 1, 1, 64),
        (Sharding.STATES, 1, 1, 64),
        (Sharding.STATES_GRADIENTS, 1, 64, 64),
        (Sharding.EVERYTHING, 64, 64, 64),
    ],
)
def test_fsdp_shards_what_its_strategy_says(
    strategy: Sharding, parameters: int, gradients: int, optimizer: int
) -> None:
    """Over all 64 data-parallel ranks, experts of which each rank has all."""
    job = replace(qwen_30b(world_size=64, expert=1), sharding=strategy)
    whole = elements(job, expert=True) + elements(job, expert=False)
    for category, width, shard in (
        (Category.PARAMETERS, 2, parameters),
        (Category.GRADIENTS, 4, gradients),
        (Category.OPTIMIZER_STATES, 12, optimizer),
    ):
        assert held(job, category) == pytest.approx(width * whole / shard, rel=1e-4), category


def test_fsdp_gains_nothing_on_experts_that_have_a_rank_each() -> None:
    job = replace(qwen_30b(world_size=64, expert=64), sharding=Sharding.EVERYTHING)
    shares = [s for s in states(job, stage_weights(job, 0)).lasting if s.weights.expert]
    assert {share.shard for share in shares} == {1}


def test_two_buffers_of_a_unit_replace_fsdps_prefetch() -> None:
    job = replace(qwen_30b(world_size=64, expert=64), sharding=Sharding.EVERYTHING)

    def buffers(some: TrainingJob) -> dict[str, int]:
        parts = estimate(some).worst.parts
        return {p.tensor: p.bytes for p in parts if p.category is Category.COMMUNICATION}

    prefetched, doubled = buffers(job), buffers(replace(job, double_buffer=True))
    unit = prefetched["gathered FSDP unit"] * 2 // 3
    assert doubled["double buffer of weights"] == pytest.approx(2 * unit, rel=1e-6)
    assert "gathered FSDP unit" not in doubled


def test_tied_embeddings_on_two_stages_have_states_on_both() -> None:
    job = qwen_30b(pipeline=2)
    tied = replace(job, text=replace(job.text, tied_embeddings=True))
    last = [w for w in stage_weights(tied, 1) if w.component is Component.EMBEDDING_AND_LOSS]
    assert [weights.copy for weights in last] == [True]
    assert [share.bytes for share in states(tied, last).gradients] == [4 * 151_936 * 2048]
