"""The small Qwen3-VL-MoE of the nightly run, as a Megatron Bridge model provider."""

import torch
from megatron.bridge import AutoBridge
from transformers.models.qwen3_vl_moe.configuration_qwen3_vl_moe import Qwen3VLMoeConfig

from vlm import telemetry

VOCABULARY = 1024
# The last ids of the vocabulary stand for vision.
IMAGE_TOKEN, VIDEO_TOKEN, VISION_START, VISION_END = range(VOCABULARY - 4, VOCABULARY)

TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "moe_intermediate_size": 640,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 4096,
    "rope_theta": 5000000,
    "rope_scaling": {"mrope_interleaved": True, "mrope_section": [4, 2, 2], "rope_type": "default"},
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

VISION = {
    "depth": 4,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_heads": 4,
    "out_hidden_size": TEXT["hidden_size"],
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "num_position_embeddings": 576,
    "deepstack_visual_indexes": [1],
}


def hugging_face_config() -> Qwen3VLMoeConfig:
    config = Qwen3VLMoeConfig(
        text_config=dict(TEXT),
        vision_config=dict(VISION),
        image_token_id=IMAGE_TOKEN,
        video_token_id=VIDEO_TOKEN,
        vision_start_token_id=VISION_START,
        vision_end_token_id=VISION_END,
    )
    config.architectures = ["Qwen3VLMoeForConditionalGeneration"]
    return config


def provider(seq_length: int):
    """Bridge's provider for the model, with random weights, in fp32: it is too small for bf16 to pay."""
    result = AutoBridge.from_hf_config(hugging_face_config()).to_megatron_provider(load_weights=False)
    result.seq_length = seq_length
    result.language_max_sequence_length = seq_length
    result.params_dtype = torch.float32
    result.pipeline_dtype = torch.float32
    result.bf16 = False
    result.fp16 = False
    result.register_pre_wrap_hook(telemetry.attach)
    return result
