"""Formulas follow the code that runs: what changed upstream changes the estimate, and only that."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memory_models import experts
from memory_models.estimation import RankEstimate, estimate
from memory_models.job import Dispatcher, Granularity, Recompute, Sharding, TrainingJob
from memory_models.shapes import Activation
from memory_models.upstream import NEWEST, Change, Upstream, upstream_at
from tests.unit.memory_models.jobs import qwen_30b

GIB = 2**30


def without(job: TrainingJob, change: Change) -> TrainingJob:
    return replace(job, upstream=Upstream(lacks=frozenset({change})))


def bytes_of(rank: RankEstimate, instant: str, tensor: str) -> int:
    (found,) = [i for i in rank.instants if i.name == instant and not i.first_step]
    return sum(part.bytes for part in found.parts if part.tensor == tensor)


def test_nothing_said_is_the_newest_code() -> None:
    assert upstream_at({}) == NEWEST
    assert upstream_at({"megatron-bridge": "2026-11-01", "megatron-lm": "2026-11-01"}) == NEWEST
    assert NEWEST.told() == ()


@pytest.mark.parametrize(
    ("repository", "version", "change", "lacks"),
    [
        ("megatron-bridge", "0.3.1", Change.EXPERT_TENSOR_ONE, True),
        ("megatron-bridge", "0.6.0rc1", Change.EXPERT_TENSOR_ONE, False),
        ("megatron-bridge", "2026-06-30", Change.EXPERT_TENSOR_ONE, True),
        ("megatron-bridge", "2026-07-01T09:00:00Z", Change.EXPERT_TENSOR_ONE, False),
        ("megatron-lm", "0.16.1", Change.DISPATCH_RELEASED, True),
        ("megatron-lm", "2026-08-07", Change.DISPATCH_RELEASED, False),
        ("megatron-lm", "2026-08-20", Change.GRADIENT_UNITS, True),
        ("megatron-lm", "2026-09-07", Change.UNIT_CAP, True),
        ("megatron-lm", "2026-09-08", Change.UNIT_CAP, False),
        ("megatron-bridge", "0.3.1", Change.UNIT_CAP, False),
        ("megatron-lm", "0.12.0", Change.EARLY_PROBABILITIES, True),
        ("megatron-lm", "2025-04-09", Change.EARLY_PROBABILITIES, False),
    ],
)
def test_a_release_or_a_day_says_which_changes_a_run_lacks(
    repository: str, version: str, change: Change, lacks: bool
) -> None:
    upstream = upstream_at({repository: version})
    assert (change in upstream.lacks) == lacks
    assert len(upstream.told()) == len(upstream.lacks)


@pytest.mark.parametrize("words", ["6f2f546ef", "main", "last week"])
def test_a_hash_alone_does_not_say_what_came_before_it(words: str) -> None:
    with pytest.raises(ValueError, match="neither a release"):
        upstream_at({"megatron-bridge": words})


def test_another_repository_is_no_upstream() -> None:
    with pytest.raises(ValueError, match="no upstream repository"):
        upstream_at({"megatron": "0.16.1"})


def sharded(strategy: Sharding) -> TrainingJob:
    job = qwen_30b(world_size=64, expert=1)
    return replace(job, sharding=strategy, recompute=Recompute(granularity=Granularity.FULL))


def test_the_unit_floor_piled_up_a_billion_gradients_at_the_end_of_backward() -> None:
    job = sharded(Sharding.EVERYTHING)
    # One layer of the 30B is 0.6e9 elements: two of them are above the bound of 1e9 elements.
    new = estimate(job).worst
    old = estimate(without(job, Change.UNIT_CAP)).worst
    name = "gradients to reduce"
    assert bytes_of(new, "end of backward", name) == 4 * 10**9
    assert 4 * 1.2e9 < bytes_of(old, "end of backward", name) < 4 * 1.3e9
    assert bytes_of(new, "attention backward", name) == bytes_of(old, "attention backward", name)


def test_small_units_waited_up_to_the_floor_and_no_longer_do() -> None:
    job = replace(sharded(Sharding.EVERYTHING), layout=replace(qwen_30b(world_size=64).layout, expert=64))
    new = bytes_of(estimate(job).worst, "end of backward", "gradients to reduce")
    old = bytes_of(estimate(without(job, Change.UNIT_CAP)).worst, "end of backward", "gradients to reduce")
    assert old == 4 * 10**9
    assert new < old / 5


def test_sharded_gradients_were_one_bucket_of_the_whole_model() -> None:
    job = sharded(Sharding.STATES_GRADIENTS)
    new, old = estimate(job).worst, estimate(without(job, Change.GRADIENT_UNITS)).worst
    assert old.allocated_bytes - new.allocated_bytes > 100 * GIB
    assert any(part.tensor == "unsharded gradient bucket" for part in old.parts)
    assert not any(part.tensor == "unsharded gradient bucket" for part in new.parts)
    kept = sharded(Sharding.STATES)
    assert old.allocated_bytes > estimate(kept).worst.allocated_bytes


def test_the_unfused_combine_kept_its_rows_even_under_full_recompute() -> None:
    job = qwen_30b()
    job = replace(
        job,
        routing=replace(job.routing, fused_permutation=False),
        recompute=Recompute(granularity=Granularity.FULL),
    )
    new, old = estimate(job).worst, estimate(without(job, Change.DISPATCH_RELEASED)).worst
    rows = 2 * 4096 * 8 * 2048
    # 48 layers keep theirs, and the layer that is replayed once more.
    assert 48 * rows <= old.allocated_bytes - new.allocated_bytes <= 49 * rows


def test_a_fused_combine_never_kept_them() -> None:
    job = qwen_30b()
    assert estimate(job).worst.allocated_bytes == (
        estimate(without(job, Change.DISPATCH_RELEASED)).worst.allocated_bytes
    )


def kept_by_an_expert_layer(job: TrainingJob) -> dict[str, int]:
    return {tensor.tensor: tensor.bytes for tensor in experts.expert_tensors(job)}


def test_probabilities_once_weighed_the_experts_output_and_now_their_activation() -> None:
    job = qwen_30b()
    text = replace(job.text, activation=Activation.GELU)
    job = replace(job, text=text, routing=replace(job.routing, dispatcher=Dispatcher.ALLGATHER))
    new = kept_by_an_expert_layer(job)
    old = kept_by_an_expert_layer(without(job, Change.EARLY_PROBABILITIES))
    rows = 8 * 4096
    assert {name: new[name] - old.get(name, 0) for name in new if new[name] != old.get(name)} == {
        "expert activation before its probability": 2 * rows * 768
    }
    assert {name: old[name] for name in old if name not in new} == {
        "expert output before its probability": 2 * rows * 2048
    }


def test_the_weighed_output_is_the_tensor_that_the_unfused_combine_kept() -> None:
    job = replace(qwen_30b(), routing=replace(qwen_30b().routing, fused_permutation=False))
    lacks = frozenset({Change.EARLY_PROBABILITIES, Change.DISPATCH_RELEASED})
    both = kept_by_an_expert_layer(replace(job, upstream=Upstream(lacks=lacks)))
    assert both == kept_by_an_expert_layer(without(job, Change.DISPATCH_RELEASED))
