"""Every key that decides memory is read, by Bridge's name and by Megatron-LM's."""

from __future__ import annotations

from functools import reduce
from typing import Any

import pytest

from memory_models.comparison import compare
from memory_models.configuration_keys import BRIDGE_KEYS
from memory_models.configurations import read_configuration
from memory_models.job import Capture, CrossEntropy, Dispatcher, Granularity, Sharding, TrainingJob
from memory_models.reading import Reading
from memory_models.shapes import Mixer
from tests.unit.memory_models.bridge_configurations import qwen_recipe

WORLD = 64


def read(**keys: Any) -> Reading:
    return read_configuration(qwen_recipe(**keys), world_size=WORLD)


def field(job: TrainingJob, path: str) -> Any:
    return reduce(getattr, path.split("."), job)


#: Key of the configuration -> value -> field of the job -> what it becomes; further keys it needs.
KEYS: list[tuple[str, Any, str, Any, dict[str, Any]]] = [
    ("model.tensor_model_parallel_size", 2, "layout.tensor", 2, {}),
    ("model.sequence_parallel", True, "layout.sequence_shard", 2, {"model.tensor_model_parallel_size": 2}),
    ("model.context_parallel_size", 2, "layout.context", 2, {}),
    ("model.pipeline_model_parallel_size", 4, "layout.pipeline", 4, {}),
    ("model.virtual_pipeline_model_parallel_size", 2, "layout.virtual_pipeline", 2,
     {"model.pipeline_model_parallel_size": 4}),
    ("model.microbatch_group_size_per_vp_stage", 8, "layout.microbatch_group", 8, {}),
    ("model.num_layers_in_first_pipeline_stage", 16, "layout.first_stage_layers", 16,
     {"model.pipeline_model_parallel_size": 2}),
    ("model.num_layers_in_last_pipeline_stage", 16, "layout.last_stage_layers", 16,
     {"model.pipeline_model_parallel_size": 2}),
    ("model.account_for_loss_in_pipeline_split", True, "layout.loss_as_layer", True,
     {"model.pipeline_model_parallel_size": 7, "model.expert_model_parallel_size": 1, "WORLD": 56,
      "train.global_batch_size": 56}),
    ("model.pipeline_model_parallel_layout", [["embedding", *["decoder"] * 20], [*["decoder"] * 28, "loss"]],
     "layout.custom", "E" + 20 * "t" + "|" + 28 * "t" + "L", {"model.pipeline_model_parallel_size": 2}),
    ("model.expert_model_parallel_size", 16, "layout.expert", 16, {}),
    ("model.expert_tensor_parallel_size", 2, "layout.expert_tensor", 2, {}),
    ("ddp.num_distributed_optimizer_instances", 2, "optimizer.instances", 2, {}),
    ("optimizer.exp_avg_dtype", "torch.bfloat16", "optimizer.first_moment_bytes", 2,
     {"optimizer.use_precision_aware_optimizer": True}),
    ("optimizer.exp_avg_sq_dtype", "torch.uint8", "optimizer.second_moment_bytes", 1,
     {"optimizer.use_precision_aware_optimizer": True}),
    ("optimizer.use_precision_aware_optimizer", True, "optimizer.master_bytes", 2, {}),
    ("optimizer.store_param_remainders", False, "optimizer.master_bytes", 4,
     {"optimizer.use_precision_aware_optimizer": True}),
    ("optimizer.optimizer_offload_fraction", 0.5, "optimizer.offload_fraction", 0.5,
     {"optimizer.optimizer_cpu_offload": True}),
    ("ddp.grad_reduce_in_fp32", False, "precision.gradient_bytes", 2, {}),
    ("model.fp8", "hybrid", "precision.fp8", True, {}),
    ("model.fp8_param", True, "precision.fp8_parameters", True, {"model.fp8": "hybrid"}),
    ("model.fp8_recipe", "mxfp8", "precision.fp8_recipe", "mxfp8", {"model.fp8": "hybrid"}),
    *[
        ("ddp.data_parallel_sharding_strategy", strategy.value, "sharding", strategy,
         {"ddp.use_megatron_fsdp": True, "dist.use_megatron_fsdp": True})
        for strategy in Sharding if strategy is not Sharding.NONE
    ],
    ("ddp.fsdp_double_buffer", True, "double_buffer", True, {}),
    ("ddp.nccl_ub", True, "user_buffers", True, {}),
    ("ddp.nccl_ub", True, "double_buffer", True, {}),
    ("model.recompute_granularity", "full", "recompute.granularity", Granularity.FULL, {}),
    ("model.recompute_method", "block", "recompute.method", "block",
     {"model.recompute_granularity": "full"}),
    ("model.recompute_num_layers", 6, "recompute.layers", 6, {"model.recompute_granularity": "full"}),
    ("model.recompute_modules", ["moe_act", "layernorm"], "recompute.modules",
     frozenset({"moe_act", "layernorm"}), {"model.recompute_granularity": "selective"}),
    ("model.offload_modules", ["expert_fc1"], "offload", frozenset({"expert_fc1"}),
     {"model.fine_grained_activation_offloading": True}),
    ("model.cpu_offloading_num_layers", 8, "offloaded_layers", 8, {"model.cpu_offloading": True}),
    ("model.moe_token_dispatcher_type", "flex", "routing.dispatcher", Dispatcher.FLEX, {}),
    ("model.moe_flex_dispatcher_backend", "hybridep", "routing.backend", "hybridep",
     {"model.moe_token_dispatcher_type": "flex"}),
    ("model.moe_expert_capacity_factor", 1.25, "routing.capacity_factor", 1.25, {}),
    ("model.moe_pad_expert_input_to_capacity", True, "routing.pad_to_capacity", True,
     {"model.moe_expert_capacity_factor": 1.25}),
    ("model.moe_expert_rank_capacity_factor", 1.5, "routing.rank_capacity", 1.5, {}),
    ("model.moe_paged_stash", True, "routing.stash", 1.1, {}),
    ("model.moe_paged_stash_buffer_size_factor_cuda", 1.2, "routing.stash", 1.2,
     {"model.moe_paged_stash": True}),
    ("model.moe_router_force_load_balancing", True, "routing.force_balance", True, {}),
    ("model.moe_permute_fusion", False, "routing.fused_permutation", False, {}),
    ("model.moe_grouped_gemm", False, "routing.grouped_gemm", False, {}),
    ("model.moe_shared_expert_overlap", True, "routing.shared_overlap", True, {}),
    ("model.overlap_moe_expert_parallel_comm", True, "routing.exchange_overlap", True, {}),
    ("model.moe_shared_expert_intermediate_size", 512, "text.experts.shared_size", 512, {}),
    ("model.moe_latent_size", 1024, "text.experts.latent_size", 1024, {}),
    ("model.mtp_num_layers", 1, "text.extra_prediction_layers", 1, {}),
    ("model.cuda_graph_impl", "local", "graphs.capture", Capture.LOCAL, {}),
    ("model.cuda_graph_modules", ["attn"], "graphs.scopes", frozenset({"attn"}),
     {"model.cuda_graph_impl": "transformer_engine"}),
    ("model.cross_entropy_fusion_impl", "native", "cross_entropy", CrossEntropy.NATIVE, {}),
    ("model.cross_entropy_fusion_impl", "linear", "cross_entropy", CrossEntropy.LINEAR, {}),
    ("model.cross_entropy_loss_fusion", False, "cross_entropy", CrossEntropy.UNFUSED, {}),
    ("dataset.enable_in_batch_packing", True, "batch.packed", True, {}),
    ("model.seq_length", 8192, "batch.sequence_length", 8192, {}),
    ("train.micro_batch_size", 2, "batch.micro", 2, {"train.global_batch_size": 128}),
    ("model.freeze_language_model", True, "frozen.language", True, {}),
    ("model.freeze_vision_model", True, "frozen.vision", True, {}),
    ("model.freeze_vision_projection", True, "frozen.projector", True, {}),
    ("model.vision_dp_when_cp", True, "tower_split", True, {"model.context_parallel_size": 2}),
    ("peft.dim", 16, "adapters.rank", 16, {"peft._target_": "megatron.bridge.peft.lora.LoRA"}),
    ("env_vars.PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", "expandable_segments", True, {}),
    ("model.multi_latent_attention", True, "text.attention.key_value_rank", 512,
     {"model.kv_lora_rank": 512, "model.qk_head_dim": 128, "model.qk_pos_emb_head_dim": 64,
      "model.v_head_dim": 128}),
    ("model.hidden_dropout", 0.1, "hidden_dropout", 0.1, {}),
    ("model.apply_rope_fusion", True, "rope_fusion", True, {}),
    ("model.attention_backend", "flash", "attention.value", "flash", {}),
    ("model.gradient_accumulation_fusion", False, "gradient_accumulation_fusion", False, {}),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value", "path", "expected", "needs"), KEYS, ids=[k[0] for k in KEYS])
def test_a_key_is_read_and_no_longer_listed_as_ignored(
    key: str, value: Any, path: str, expected: Any, needs: dict[str, Any]
) -> None:
    others = dict(needs)
    world = others.pop("WORLD", WORLD)
    reading = read_configuration(qwen_recipe(), world_size=world, overrides=others | {key: value})
    assert field(reading.job, path) == expected
    assert not any(line.startswith(f"{key}:") for line in reading.ignored)


def test_every_field_that_can_differ_has_its_key() -> None:
    """A comparison names keys; a field without one would be told by its place in the code."""
    unnamed = {"card", "deterministic", "softmax_in_float", "deferred_embedding_gradient", "unknowns"}
    for name in TrainingJob.__dataclass_fields__:
        keys = [key for path, key in BRIDGE_KEYS.items() if path.split(".")[0] == name]
        assert keys or name in unnamed, name


def test_a_hybrid_of_mamba_attention_and_experts_is_read_by_its_pattern() -> None:
    reading = read(
        model__hybrid_override_pattern="MEM*E|MEM*E",
        model__is_hybrid_model=True,
        model__mamba_num_heads=64,
        model__mamba_head_dim=64,
        model__vision_config=None,
        model__pipeline_model_parallel_size=2,
    )
    text = reading.job.text
    assert [layer.mixer for layer in text.layers[:4]] == [
        Mixer.MAMBA, Mixer.NONE, Mixer.MAMBA, Mixer.ATTENTION,
    ]  # fmt: skip
    assert text.mamba is not None
    assert (text.mamba.heads, text.mamba.state_size) == (64, 128)
    assert [len(rank[0].layers) for rank in reading.job.chunks] == [5, 5]
    with pytest.raises(ValueError, match="hybrid pattern"):
        read(model__hybrid_override_pattern="MEX", model__vision_config=None)


def test_a_sliding_window_changes_no_kept_tensor() -> None:
    """A fused kernel keeps none of the scores, an unfused one keeps them all and masks some."""
    windowed, whole = read(model__window_size=[1024, 0]), read()
    assert compare(windowed.job, whole.job).keys == ()
    assert not any("window" in line for line in windowed.ignored)
