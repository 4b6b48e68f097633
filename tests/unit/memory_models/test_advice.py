"""The steps of bringing a job up: one test for each rule."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from memory_models.advice import advise
from memory_models.advice_speed import TOPOLOGY_VARIABLE, layouts
from memory_models.advice_step import Advice
from memory_models.estimation import estimate
from memory_models.job import (
    Adapters,
    Capture,
    Card,
    Dispatcher,
    Frozen,
    Granularity,
    Graphs,
    Recompute,
    TrainingJob,
)
from tests.unit.memory_models.jobs import qwen_30b

GIB = 2**30


def steps(job: TrainingJob, gib: int = 80) -> list[Advice]:
    return list(advise(job, gib * GIB))


def step(job: TrainingJob, words: str, gib: int = 80) -> Advice:
    (found,) = [one for one in steps(job, gib) if words in one.title]
    return found


def test_the_allocator_comes_first_and_is_free() -> None:
    first = steps(qwen_30b())[0]
    assert first.change == {"env_vars.PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}


def test_growing_segments_exclude_user_buffers() -> None:
    first = steps(replace(qwen_30b(), user_buffers=True))[0]
    assert first.change == {}
    assert "nccl_ub" in first.reason
    assert first.estimate_bytes == estimate(replace(qwen_30b(), user_buffers=True)).worst.device_bytes


def test_growing_segments_need_another_variable_with_graphs() -> None:
    graphs = Graphs(capture=Capture.TRANSFORMER_ENGINE, scopes=frozenset({"attn"}))
    first = steps(replace(qwen_30b(), graphs=graphs))[0]
    assert first.change["env_vars.NCCL_GRAPH_REGISTER"] == "0"
    assert step(qwen_30b(), "CUDA graphs").change["env_vars.NCCL_GRAPH_REGISTER"] == "0"


def test_fragmentation_is_told_apart_for_no_recompute_cures_it() -> None:
    gate = steps(qwen_30b())[0].gate
    assert "reserved minus allocated" in gate
    assert "no recompute cures" in gate


def test_adapters_gather_their_input_again_before_anything_that_costs_more() -> None:
    job = replace(
        qwen_30b(tensor=2),
        adapters=Adapters(rank=32),
        frozen=Frozen(language=True, vision=True, projector=True),
    )
    second = steps(job)[1]
    assert second.change == {"peft.sequence_parallel_input_regather": True}
    assert (second.estimate_bytes or 0) < (steps(job)[0].estimate_bytes or 0)
    assert not any("adapters" in one.title for one in steps(qwen_30b(tensor=2)))


def test_tokens_go_by_alltoall_until_it_trains() -> None:
    job = qwen_30b()
    flex = replace(job, routing=replace(job.routing, dispatcher=Dispatcher.FLEX, backend="hybridep"))
    assert step(flex, "FSDP").change["model.moe_token_dispatcher_type"] == "alltoall"


def test_more_gpus_come_last_and_an_expert_is_split_after_that() -> None:
    found = steps(qwen_30b(world_size=8))
    titles = [one.title for one in found]
    assert titles.index("Recompute every layer") + 1 == titles.index("Take 16 GPUs")
    more = found[titles.index("Take 16 GPUs")]
    assert more.fits
    assert "(ETP) only after that" in more.reason
    assert not any(title.startswith("Take ") for title in [one.title for one in steps(qwen_30b())])
    assert {one.change.get("model.expert_tensor_parallel_size", 1) for one in found} == {1}


def test_micro_batches_grow_as_far_as_they_fit() -> None:
    found = step(qwen_30b(), "Sweep micro-batches")
    assert found.change == {"train.micro_batch_size": 2}
    assert found.fits
    assert not any("Sweep" in one.title for one in steps(qwen_30b(), 40))


def test_a_tower_is_frozen_for_work_on_the_decoder_and_its_figures_are_told_apart() -> None:
    found = step(qwen_30b(), "Freeze the vision tower")
    assert "nothing about full fine-tuning" in found.gate
    assert not any("Freeze" in one.title for one in steps(replace(qwen_30b(), frozen=Frozen(vision=True))))


def test_the_exchange_is_hidden_only_where_nothing_refuses_it() -> None:
    found = step(qwen_30b(), "Hide the experts' exchange")
    assert found.change["model.moe_shared_expert_overlap"] is False
    assert "pipeline stages without virtual ones" in found.reason
    # On 8 GPUs every layer is recomputed, which refuses it.
    assert not any("Hide" in one.title for one in steps(qwen_30b(world_size=8)))


def test_speed_is_accepted_over_fifty_steps_one_change_at_a_time() -> None:
    speedups = [one for one in steps(qwen_30b()) if one.title.startswith(("Then", "Hide", "Sweep"))]
    assert len(speedups) == 3
    assert all("over 50 steps, with nothing else changed" in one.gate for one in speedups)


def test_the_router_is_not_captured_where_experts_are_recomputed() -> None:
    job = qwen_30b(world_size=16)
    recomputed = [one for one in steps(job, 60) if "moe" in one.change.get("model.recompute_modules", ())]
    assert recomputed
    assert not any("Capture" in one.title for one in steps(job, 60))


def test_fsdp_comes_before_any_other_layout_with_both_flags() -> None:
    titles = [one.title for one in steps(qwen_30b())]
    assert titles.index("Bring it up on FSDP alone") < next(
        i for i, title in enumerate(titles) if title.startswith("Then tp")
    )
    change = step(qwen_30b(), "FSDP").change
    assert change["ddp.use_megatron_fsdp"]
    assert change["dist.use_megatron_fsdp"]
    assert change["model.pipeline_model_parallel_size"] == 1


def test_three_steps_are_asked_for_since_the_first_lacks_the_moments() -> None:
    assert "three optimizer steps" in step(qwen_30b(), "FSDP").gate


def test_a_frozen_tower_speaks_for_fsdp() -> None:
    job = replace(qwen_30b(), frozen=Frozen(vision=True))
    assert "frozen tower" in step(job, "FSDP").reason
    assert "frozen tower" not in step(qwen_30b(), "FSDP").reason


def test_experts_with_a_rank_each_gain_nothing_from_fsdp_and_that_is_said() -> None:
    assert "expert states gain nothing" in step(qwen_30b(world_size=64), "FSDP").reason


def test_real_data_has_to_be_stable_before_recompute_is_tuned() -> None:
    titles = [one.title for one in steps(qwen_30b())]
    data = titles.index("Run on the real data until it is stable")
    assert titles.index("Bring it up on FSDP alone") < data < titles.index("Keep every activation")


def test_what_fits_is_not_recomputed() -> None:
    job = replace(qwen_30b(world_size=64), recompute=Recompute(granularity=Granularity.FULL))
    assert step(job, "Stop recomputing").change == {"model.recompute_granularity": None}


def test_what_does_not_fit_gets_the_narrowest_recompute_that_helps() -> None:
    job = qwen_30b(world_size=16)
    wanted = [one for one in steps(job, 60) if "model.recompute_modules" in one.change]
    assert wanted
    assert wanted[0].fits
    assert len(wanted[0].change["model.recompute_modules"]) <= 2


def test_other_layouts_are_advised_only_where_their_estimate_leaves_the_margin() -> None:
    for one in steps(qwen_30b(), 70):
        if one.title.startswith("Then tp"):
            assert one.fits
            assert one.estimate_bytes is not None
            assert one.estimate_bytes < 70 * GIB * 0.97
    assert not any(one.title.startswith("Then tp") for one in steps(qwen_30b(world_size=8), 20))


def test_no_layout_splits_an_expert() -> None:
    assert {layout.expert_tensor for layout in layouts(qwen_30b())} == {1}


def test_a_long_sequence_brings_context_ranks() -> None:
    job = qwen_30b()
    long = replace(job, batch=replace(job.batch, sequence_length=32_768))
    assert {layout.context for layout in layouts(long)} == {1, 8}
    assert {layout.context for layout in layouts(job)} == {1}


def test_hybrid_ep_is_the_default_on_blackwell_once_its_topology_is_set() -> None:
    found = step(replace(qwen_30b(), card=Card.BLACKWELL), "HybridEP")
    assert TOPOLOGY_VARIABLE in found.gate
    assert any(TOPOLOGY_VARIABLE in key for key in found.change)
    assert not any("HybridEP" in one.title for one in steps(qwen_30b()))


def test_graphs_start_narrow_and_name_the_scope_that_the_model_refuses() -> None:
    found = step(qwen_30b(), "CUDA graphs")
    assert found.change["model.cuda_graph_modules"] == ["moe_router", "moe_preprocess"]
    assert "attn does not work" in found.reason


@pytest.mark.parametrize("world_size", [8, 16, 64])
def test_every_estimate_is_a_real_one(world_size: int) -> None:
    job = replace(qwen_30b(world_size=world_size), expandable_segments=True)
    assert steps(job)[0].estimate_bytes == estimate(job).worst.device_bytes


def test_advice_is_json() -> None:
    assert json.loads(json.dumps([one.to_json() for one in steps(qwen_30b())]))[0]["title"]
