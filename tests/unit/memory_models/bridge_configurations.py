"""Hand-written Bridge configurations: Qwen3-VL-30B-A3B's recipe as each era would dump it."""

from __future__ import annotations

from typing import Any

VISION = {
    "depth": 27,
    "hidden_size": 1152,
    "num_heads": 16,
    "intermediate_size": 4304,
    "patch_size": 16,
    "temporal_patch_size": 2,
    "in_channels": 3,
    "num_position_embeddings": 2304,
    "spatial_merge_size": 2,
    "deepstack_visual_indexes": [8, 16, 24],
    "out_hidden_size": 2048,
}


def qwen_recipe(**keys: Any) -> dict[str, Any]:
    """qwen3_vl_30b_a3b SFT on EP 8, as of 0.6; ``section__key=value`` changes it, None removes a key."""
    config: dict[str, Any] = {
        "model": {
            "num_layers": 48,
            "hidden_size": 2048,
            "num_attention_heads": 32,
            "num_query_groups": 4,
            "kv_channels": 128,
            "ffn_hidden_size": 6144,
            "qk_layernorm": True,
            "gated_linear_unit": True,
            "normalization": "RMSNorm",
            "position_embedding_type": "mrope",
            "vocab_size": 151_936,
            "seq_length": 4096,
            "num_moe_experts": 128,
            "moe_router_topk": 8,
            "moe_ffn_hidden_size": 768,
            "moe_token_dispatcher_type": "alltoall",
            "moe_grouped_gemm": True,
            "moe_permute_fusion": True,
            "bias_activation_fusion": True,
            "gradient_accumulation_fusion": True,
            "bf16": True,
            "params_dtype": "torch.bfloat16",
            "cross_entropy_loss_fusion": True,
            "cross_entropy_fusion_impl": "te",
            "expert_model_parallel_size": 8,
            "expert_tensor_parallel_size": 1,
            "vision_config": dict(VISION),
            "vision_cuda_graph_impl": "none",
        },
        "train": {"micro_batch_size": 1, "global_batch_size": 64},
        "ddp": {"use_distributed_optimizer": True, "grad_reduce_in_fp32": True},
        "optimizer": {"optimizer": "adam", "use_distributed_optimizer": True},
        "dataset": {
            "_target_": "megatron.bridge.data.DirectHFSFTDatasetConfig",
            "seq_length": 4096,
            "source": {"adapter_kwargs": {"resized_height": 448, "resized_width": 448}},
        },
        "dist": {"distributed_backend": "nccl"},
    }
    for name, value in keys.items():
        section, key = name.split("__", 1)
        if value is None:
            del config[section][key]
        else:
            config.setdefault(section, {})[key] = value
    return config
