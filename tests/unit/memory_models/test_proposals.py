"""The neighbourhood of a job: every change exists, and means in the configuration what was estimated."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from memory_models.breakdown import Component
from memory_models.configurations import read_configuration
from memory_models.distributions import Distribution
from memory_models.estimation import estimate
from memory_models.job import (
    RECOMPUTE_MODULES,
    Capture,
    Dispatcher,
    Granularity,
    Graphs,
    Precision,
    Recompute,
    Routing,
    TrainingJob,
)
from memory_models.proposals_kernels import dispatcher_proposals
from memory_models.remedies import Remedy, find_remedies
from memory_models.shapes import ExpertsShape
from tests.unit.memory_models.bridge_configurations import qwen_recipe
from tests.unit.memory_models.jobs import qwen_30b

GIB = 2**30
ALL_MODULES = frozenset(RECOMPUTE_MODULES)

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


def refusals(job: TrainingJob) -> set[str]:
    return {r.why_not for r in find_remedies(job, 40 * GIB) if not r.legal}


ROUTER_GRAPH = Graphs(capture=Capture.TRANSFORMER_ENGINE, scopes=frozenset({"moe_router"}))


@pytest.mark.parametrize(
    ("job", "check"),
    [
        (
            replace(qwen_30b(), routing=Routing(grouped_gemm=False)),
            "megatron-core recomputes moe_act only with moe_grouped_gemm",
        ),
        (
            replace(qwen_30b(), routing=Routing(exchange_overlap=True)),
            "megatron-core asserts against recompute of moe with overlap_moe_expert_parallel_comm",
        ),
        (
            replace(qwen_30b(), routing=Routing(exchange_overlap=True)),
            "megatron-core asserts against full recompute with overlap_moe_expert_parallel_comm",
        ),
        (
            replace(
                qwen_30b(),
                routing=Routing(shared_overlap=True),
                text=replace(
                    qwen_30b().text, experts=ExpertsShape(count=128, top_k=8, size=768, shared_size=768)
                ),
            ),
            "megatron-core asserts against recompute of shared_experts with moe_shared_expert_overlap",
        ),
        (
            replace(qwen_30b(), precision=Precision(fp8=True, fp8_recipe="delayed")),
            "megatron-core refuses moe_act and layernorm recompute with fp8 delayed scaling",
        ),
        (replace(qwen_30b(), offloaded_layers=4), "cpu_offloading of layers refuses any recompute"),
        (
            replace(qwen_30b(), graphs=ROUTER_GRAPH),
            "megatron-core asserts against recompute of moe with a CUDA graph of its router",
        ),
        (
            replace(qwen_30b(), user_buffers=True),
            "megatron-core asserts against expandable_segments with nccl_ub, whose memory pools torch "
            "before 2.11 cannot grow",
        ),
        (
            replace(qwen_30b(pipeline=2), expandable_segments=True),
            "Megatron FSDP is for pipeline size 1 here: with it, raise EP instead of PP",
        ),
        (
            replace(
                qwen_30b(),
                graphs=Graphs(capture=Capture.LOCAL),
                recompute=Recompute(granularity=Granularity.SELECTIVE, modules=frozenset({"moe"})),
            ),
            "megatron-core asserts against a CUDA graph of the router with recompute of moe",
        ),
    ],
)
def test_what_upstream_asserts_against_is_refused_with_its_check(job: TrainingJob, check: str) -> None:
    assert check in refusals(job)


def test_no_remedy_recomputes_the_tower_alone_nor_parts_of_it() -> None:
    """Bridge copies granularity, method and layers into the tower's configuration, and no modules."""
    job = qwen_30b()
    assert job.vision is not None
    hugging_face = replace(job, vision=replace(job.vision, native=False))
    for some in (job, hugging_face):
        for remedy in find_remedies(some, 60 * GIB):
            assert not any("vision" in key and "recompute" in key for key in remedy.change), remedy.title
    kept = [
        sum(part.bytes for part in estimate(each).worst.parts if part.component is Component.VISION)
        for each in (
            job,
            replace(job, recompute=Recompute(granularity=Granularity.SELECTIVE, modules=ALL_MODULES)),
        )
    ]
    assert kept[0] == kept[1]


def test_more_virtual_stages_are_no_remedy() -> None:
    job = qwen_30b(pipeline=2, virtual_pipeline=2)
    offered = [r for r in find_remedies(job, 40 * GIB) if r.legal]
    sizes = [r.change.get("model.virtual_pipeline_model_parallel_size", 1) for r in offered]
    assert all(size is None or size == 1 for size in sizes)


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
