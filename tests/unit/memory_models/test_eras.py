"""Configurations of every era since 0.2 mean today what they meant then, and phantoms are told."""

from __future__ import annotations

from typing import Any

import pytest

from memory_models.estimation import estimate
from memory_models.job import Sharding, TrainingJob
from memory_models.reading import Reading, read_bridge_config
from memory_models.upstream import upstream_at
from tests.unit.memory_models.bridge_configurations import qwen_recipe


def read(config: dict[str, Any], **versions: str) -> Reading:
    return read_bridge_config(
        config, world_size=32, upstream=upstream_at(versions) if versions else upstream_at({})
    )


TODAY = qwen_recipe()

#: What the recipe's dump looked like; each means the same job as today's.
ERAS: dict[str, dict[str, Any]] = {
    # 2025-10: sequence_length in the data set, the deprecated switches of graphs and DeepEP off.
    "0.2": qwen_recipe(
        dataset__seq_length=None,
        dataset__sequence_length=4096,
        dataset__pack_sequences_in_batch=False,
        model__enable_cuda_graph=False,
        model__external_cuda_graph=False,
        model__moe_enable_deepep=False,
        model__num_experts=128,
        model__num_moe_experts=None,
    ),
    # 2026-01: graphs by implementation and scope.
    "0.3": qwen_recipe(
        model__cuda_graph_impl="none", model__cuda_graph_scope=[], dataset__pack_sequences_in_batch=False
    ),
    # 2026-04: one number of multiprocessors for each dispatcher.
    "0.4": qwen_recipe(
        model__cuda_graph_impl="none",
        model__cuda_graph_scope=[],
        model__moe_deepep_num_sms=20,
        model__moe_hybridep_num_sms=16,
    ),
    # 2026-06: graph modules; in-batch packing by its new name.
    "0.5": qwen_recipe(
        model__cuda_graph_impl="none", model__cuda_graph_modules=[], dataset__enable_in_batch_packing=False
    ),
    "0.6": qwen_recipe(model__moe_flex_dispatcher_num_sms=20),
}


@pytest.mark.parametrize("era", ERAS)
def test_the_recipe_of_every_era_is_the_same_job(era: str) -> None:
    reading = read(ERAS[era])
    assert reading.job == read(TODAY).job
    assert reading.ignored == ()


def test_fsdp_by_its_first_name_shards_as_by_its_present_one() -> None:
    old = qwen_recipe(
        ddp__use_custom_fsdp=True,
        dist__use_custom_fsdp=True,
        ddp__data_parallel_sharding_strategy="optim_grads_params",
    )
    new = qwen_recipe(
        ddp__use_megatron_fsdp=True,
        dist__use_megatron_fsdp=True,
        ddp__data_parallel_sharding_strategy="optim_grads_params",
    )
    assert read(old).job == read(new).job
    assert read(old).job.sharding is Sharding.EVERYTHING


def test_expert_overlap_is_read_where_a_recipe_of_the_time_puts_it() -> None:
    reading = read(qwen_recipe(comm_overlap__overlap_moe_expert_parallel_comm=True))
    assert reading.job.routing.exchange_overlap
    assert any("comm_overlap.overlap_moe_expert_parallel_comm is read as" in note for note in reading.notes)


def test_mixed_precision_is_read_as_a_name_and_as_an_object() -> None:
    bare = {"model__bf16": None, "model__params_dtype": None, "ddp__grad_reduce_in_fp32": None}
    named = read(qwen_recipe(**bare) | {"mixed_precision": "bf16_mixed"}).job
    held = {"_target_": "MixedPrecisionConfig", "bf16": True, "grad_reduce_in_fp32": True}
    assert read(qwen_recipe(**bare) | {"mixed_precision": held}).job.precision == named.precision
    assert named.precision.gradient_bytes == 4
    lean = read(qwen_recipe(**bare) | {"mixed_precision": held | {"grad_reduce_in_fp32": False}}).job
    assert (lean.precision.parameter_bytes, lean.precision.gradient_bytes) == (2, 2)


def test_an_enum_as_yaml_holds_it_is_read() -> None:
    held = {"_target_": "megatron.core.transformer.enums.AttnBackend", "_call_": True, "_args_": [1]}
    assert read(qwen_recipe(model__attention_backend=held)).job.attention.value == "flash"


def test_both_names_of_a_key_make_the_old_one_a_phantom() -> None:
    config = qwen_recipe(model__cuda_graph_scope=["attn"], model__cuda_graph_modules=["moe_router"])
    assert any("cuda_graph_scope = ['attn'] is a phantom" in note for note in read(config).notes)


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("train__recompute_granularity", "model.recompute_granularity"),
        ("optimizer__grad_reduce_in_fp32", "ddp.grad_reduce_in_fp32"),
        ("model__recompute_granularty", "a slip of model.recompute_granularity"),
    ],
)
def test_a_misplaced_or_misspelt_key_is_a_phantom_and_changes_nothing(key: str, meant: str) -> None:
    reading = read(qwen_recipe(**{key: "full"}))
    assert any("phantom" in line and meant in line for line in reading.ignored)
    assert reading.job == read(TODAY).job


def expert_bytes(job: TrainingJob) -> int:
    return sum(
        part.bytes
        for part in estimate(job).worst.parts
        if part.tensor == "routed experts" and part.category.value == "parameters"
    )


def test_an_unset_expert_tensor_size_means_what_the_code_of_the_day_makes_of_it() -> None:
    config = qwen_recipe(model__expert_tensor_parallel_size=None, model__tensor_model_parallel_size=2)
    today = read(config)
    before = read(config, **{"megatron-bridge": "2026-06-30"})
    assert (today.job.layout.expert_tensor, before.job.layout.expert_tensor) == (1, 2)
    assert read(config, **{"megatron-bridge": "0.5.0"}).job == before.job
    assert expert_bytes(today.job) == 2 * expert_bytes(before.job)
    assert any("6f2f546ef" in note for note in before.notes)
