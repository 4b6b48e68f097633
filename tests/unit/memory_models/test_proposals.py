"""The neighbourhood of a job: every change exists, and means in the configuration what was estimated."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from memory_models.configurations import read_configuration
from memory_models.distributions import Distribution
from memory_models.estimation import estimate
from memory_models.job import Capture, Dispatcher, Granularity, Graphs, Recompute, TrainingJob
from memory_models.proposals_kernels import dispatcher_proposals
from memory_models.remedies import Remedy, find_remedies
from tests.unit.memory_models.bridge_configurations import qwen_recipe
from tests.unit.memory_models.jobs import qwen_30b

GIB = 2**30

#: Bridge configurations that between them have every kind of remedy.
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "recipe": qwen_recipe(),
    "native loss, no distributed optimizer": qwen_recipe(
        model__cross_entropy_fusion_impl="native",
        ddp__use_distributed_optimizer=None,
        optimizer__use_distributed_optimizer=None,
        model__moe_token_dispatcher_type="allgather",
        train__micro_batch_size=2,
    ),
    "pipeline": qwen_recipe(
        model__pipeline_model_parallel_size=2,
        model__virtual_pipeline_model_parallel_size=2,
        model__expert_model_parallel_size=4,
        model__tensor_model_parallel_size=2,
    ),
    "graphs": qwen_recipe(model__cuda_graph_impl="full_iteration"),
    "adapters": qwen_recipe(model__tensor_model_parallel_size=2)
    | {"peft": {"_target_": "megatron.bridge.peft.lora.LoRA", "dim": 32}},
}


def remedies_of(config: dict[str, Any], capacity: int = 60 * GIB) -> tuple[Remedy, ...]:
    return find_remedies(read_configuration(config, world_size=32).job, capacity)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_change_written_into_the_configuration_is_what_was_estimated(name: str) -> None:
    config = CONFIGURATIONS[name]
    checked = 0
    for remedy in remedies_of(config):
        if not remedy.legal or "dataset.max_pixels" in remedy.change:
            continue
        changed = read_configuration(config, world_size=32, overrides=remedy.change)
        assert estimate(changed.job).worst.device_bytes == remedy.estimate_bytes, remedy.title
        assert not any("phantom" in line for line in changed.ignored), remedy.change
        checked += 1
    assert checked > 8


def test_every_kind_of_change_is_offered_somewhere() -> None:
    offered = {key for config in CONFIGURATIONS.values() for r in remedies_of(config) for key in r.change}
    assert offered >= {
        "env_vars.PYTORCH_CUDA_ALLOC_CONF",
        "model.cross_entropy_fusion_impl",
        "model.recompute_modules",
        "model.recompute_num_layers",
        "ddp.use_distributed_optimizer",
        "ddp.grad_reduce_in_fp32",
        "ddp.data_parallel_sharding_strategy",
        "optimizer.exp_avg_dtype",
        "optimizer.optimizer_offload_fraction",
        "model.expert_model_parallel_size",
        "model.tensor_model_parallel_size",
        "model.context_parallel_size",
        "model.pipeline_model_parallel_size",
        "model.virtual_pipeline_model_parallel_size",
        "model.num_layers_in_first_pipeline_stage",
        "model.cuda_graph_impl",
        "model.offload_modules",
        "model.cpu_offloading_num_layers",
        "train.micro_batch_size",
        "model.freeze_vision_model",
        "peft.sequence_parallel_input_regather",
    }


def test_no_refused_change_lacks_the_check_that_refuses_it() -> None:
    for config in CONFIGURATIONS.values():
        for remedy in remedies_of(config):
            assert bool(remedy.why_not) != remedy.legal
            assert remedy.source
            assert remedy.cost


def test_layers_move_off_the_stage_that_holds_the_tower() -> None:
    job = qwen_30b(pipeline=2, expert=8)
    moved = [r for r in find_remedies(job, 60 * GIB) if "first stage" in r.title]
    assert moved
    assert {tuple(r.change) for r in moved} == {("model.num_layers_in_first_pipeline_stage",)}
    assert all(r.saving_bytes > 0 for r in moved)


def test_a_wide_capture_is_narrowed_before_it_is_given_up_and_refused_scopes_are_named() -> None:
    job = replace(qwen_30b(), graphs=Graphs(capture=Capture.FULL_ITERATION))
    titles = [r.title for r in find_remedies(job, 200 * GIB) if "CUDA graphs" in r.title]
    assert titles == ["Capture only the router in CUDA graphs", "Capture no CUDA graphs"]
    (narrow,) = [r for r in find_remedies(job, 200 * GIB) if r.title == titles[0]]
    assert narrow.change["model.cuda_graph_modules"] == ["moe_router", "moe_preprocess"]
    assert "attn is left out, which Qwen3VLModel refuses" in narrow.cost
    assert not any("CUDA graphs" in r.title for r in find_remedies(qwen_30b(), 80 * GIB))


def test_graphs_of_parts_of_layers_forbid_full_recompute() -> None:
    job = replace(
        qwen_30b(), graphs=Graphs(capture=Capture.TRANSFORMER_ENGINE, scopes=frozenset({"moe_router"}))
    )
    refused = [
        r for r in find_remedies(job, 80 * GIB) if r.change.get("model.recompute_granularity") == "full"
    ]
    assert refused
    assert all("full_iteration only" in r.why_not for r in refused)


def test_a_capacity_factor_is_offered_only_for_an_uneven_router_and_alters_training() -> None:
    job = qwen_30b()
    assert not any("Drop tokens" in r.title for r in find_remedies(job, 80 * GIB))
    uneven = replace(job, routing=replace(job.routing, imbalance=1.5))
    (drop,) = [r for r in find_remedies(uneven, 80 * GIB) if "Drop tokens" in r.title]
    assert drop.alters_training


def test_leaving_allgather_costs_nothing_and_leaving_flex_gives_its_buffers_back() -> None:
    job = qwen_30b()
    gathered = replace(job, routing=replace(job.routing, dispatcher=Dispatcher.ALLGATHER))
    proposal, _ = dispatcher_proposals(gathered)
    assert proposal.slowdown == 0
    flex = replace(job, routing=replace(job.routing, dispatcher=Dispatcher.FLEX, backend="hybridep"))
    proposal, _ = dispatcher_proposals(flex)
    assert proposal.job is not None
    assert proposal.slowdown > 0
    assert estimate(proposal.job).worst.context_bytes < estimate(flex).worst.context_bytes


def test_nothing_that_costs_the_most_time_is_ranked_above_what_fits_for_less() -> None:
    fitting = [r for r in find_remedies(qwen_30b(), 70 * GIB) if r.fits and not r.alters_training]
    assert [r.slowdown for r in fitting] == sorted(r.slowdown for r in fitting)
    assert len(fitting) > 3


def test_fully_recomputed_layers_have_nothing_left_to_offload() -> None:
    job = replace(qwen_30b(), recompute=Recompute(granularity=Granularity.FULL))
    assert not any("wait in the host's memory" in r.title for r in find_remedies(job, 80 * GIB))


def test_a_size_that_ranks_cannot_share_is_refused_with_its_reason() -> None:
    job: TrainingJob = qwen_30b(world_size=64, tensor=4)
    odd = replace(job, text=replace(job.text, vocabulary=151_940))
    (remedy,) = [r for r in find_remedies(odd, 80 * GIB) if "over 8 tensor-parallel" in r.title]
    assert not remedy.legal
    assert "vocabulary" in remedy.why_not


def test_unknown_loads_never_change_which_remedy_fits() -> None:
    job = qwen_30b()
    unsure = replace(job, unknowns=replace(job.unknowns, imbalance=Distribution.of({1: 1, 2: 1})))
    assert [r.to_json() for r in find_remedies(job, 70 * GIB)] == [
        r.to_json() for r in find_remedies(unsure, 70 * GIB)
    ]
