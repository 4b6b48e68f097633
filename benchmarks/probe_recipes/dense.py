"""The nightly recipe on a dense Qwen3-VL of the same width: no experts at all."""

from megatron.bridge import AutoBridge
from recipes import measured
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLConfig
from vlm import model

_TAKEN_OVER = (
    "bf16",
    "fp16",
    "freeze_language_model",
    "freeze_vision_model",
    "freeze_vision_projection",
    "language_max_sequence_length",
    "params_dtype",
    "pipeline_dtype",
    "seq_length",
)
_EXPERTS = (
    "moe_intermediate_size",
    "num_experts",
    "num_experts_per_tok",
    "decoder_sparse_step",
    "mlp_only_layers",
)


def config():
    result = measured.config()
    text = {key: value for key, value in model.TEXT.items() if key not in _EXPERTS}
    shape = Qwen3VLConfig(
        text_config=text,
        vision_config=dict(model.VISION),
        image_token_id=model.IMAGE_TOKEN,
        video_token_id=model.VIDEO_TOKEN,
        vision_start_token_id=model.VISION_START,
        vision_end_token_id=model.VISION_END,
    )
    shape.architectures = ["Qwen3VLForConditionalGeneration"]
    provider = AutoBridge.from_hf_config(shape).to_megatron_provider(load_weights=False)
    for name in _TAKEN_OVER:
        setattr(provider, name, getattr(result.model, name))
    provider.register_pre_wrap_hook(measured.count_rows)
    result.model = provider
    return result
