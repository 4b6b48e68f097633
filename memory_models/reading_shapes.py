"""The shapes of the language model and the vision tower, out of a provider's fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memory_models.reading_values import Section
from memory_models.shapes import (
    Activation,
    AttentionShape,
    ExpertsShape,
    FeedForward,
    GatedDeltaShape,
    LatentAttentionShape,
    Layer,
    MambaShape,
    Mixer,
    Norm,
    TextShape,
    Tower,
    VisionShape,
    layer_count,
    layers_of_pattern,
)

#: Provider fields that only Bridge versions with Megatron's own Qwen3-VL tower have.
_NATIVE_TOWER_FIELDS = (
    "vision_cuda_graph_impl",
    "max_vision_cuda_graph_seq_length",
    "vision_cuda_graph_scope",
    "dist_train",
)

HUGGING_FACE_TOWER = (
    "the vision tower is the Hugging Face module: no tensor parallelism and no recompute reach it"
)


def read_text(model: Section, tensor: int, notes: list[str]) -> TextShape:
    """The language model. Raises ValueError that names the missing key."""
    hidden, heads = model.integer("hidden_size"), model.integer("num_attention_heads")
    layers = _layers(model, notes)
    gated = model.flag("gated_linear_unit")
    activation = str(model.get("activation_func") or "")
    model.get("is_hybrid_model")  # says no more than the pattern does
    position = str(model.get("position_embedding_type") or "learned_absolute")
    return TextShape(
        hidden_size=hidden,
        layers=layers,
        attention=_attention(model, hidden, heads),
        feed_forward_size=model.integer("ffn_hidden_size", 4 * hidden),
        vocabulary=_padded_vocabulary(model, tensor),
        experts=_experts(model) if model.get("num_moe_experts") else None,
        mamba=_mamba(model, hidden) if any(layer.mixer is Mixer.MAMBA for layer in layers) else None,
        gated_delta=_gated_delta(model)
        if any(layer.mixer is Mixer.GATED_DELTA for layer in layers)
        else None,
        activation=Activation.SWIGLU
        if gated
        else (Activation.SQUARED_RELU if "squared" in activation else Activation.GELU),
        norm=Norm.RMS if model.get("normalization") == "RMSNorm" else Norm.LAYER,
        linear_bias=model.flag("add_bias_linear"),
        tied_embeddings=model.flag("share_embeddings_and_output_weights"),
        learned_positions=model.integer("max_position_embeddings", model.integer("seq_length"))
        if position == "learned_absolute"
        else 0,
        rotary=position in ("rope", "mrope", "yarn"),
        extra_prediction_layers=model.integer("mtp_num_layers", 0),
    )


def _padded_vocabulary(model: Section, tensor: int) -> int:
    size = model.integer("vocab_size")
    if not model.flag("should_pad_vocab"):
        return size
    unit = model.integer("make_vocab_size_divisible_by", 128) * tensor
    return -(-size // unit) * unit


def _attention(model: Section, hidden: int, heads: int) -> AttentionShape | LatentAttentionShape:
    if model.flag("multi_latent_attention"):
        return LatentAttentionShape(
            heads=heads,
            query_rank=model.get("q_lora_rank"),
            key_value_rank=model.integer("kv_lora_rank"),
            head_size=model.integer("qk_head_dim"),
            rotary_size=model.integer("qk_pos_emb_head_dim"),
            value_size=model.integer("v_head_dim"),
            norm=model.flag("qk_layernorm"),
        )
    return AttentionShape(
        heads=heads,
        groups=model.integer("num_query_groups", heads),
        head_size=model.integer("kv_channels", hidden // heads),
        qk_norm=model.flag("qk_layernorm"),
        qkv_bias=model.flag("add_qkv_bias"),
        output_gate=model.flag("attention_output_gate"),
    )


def _experts(model: Section) -> ExpertsShape:
    return ExpertsShape(
        count=model.integer("num_moe_experts"),
        top_k=model.integer("moe_router_topk", 2),
        size=model.integer("moe_ffn_hidden_size", model.integer("ffn_hidden_size", 0)),
        shared_size=model.integer("moe_shared_expert_intermediate_size", 0),
        shared_gate=model.flag("moe_shared_expert_gate"),
        latent_size=model.integer("moe_latent_size", 0),
        router_bias=model.flag("moe_router_enable_expert_bias"),
    )


def hybrid_pattern(model: Section) -> str | None:
    """The pattern of a hybrid's layers, by its present name or the one before."""
    patterns = [model.get(name) for name in ("hybrid_layer_pattern", "hybrid_override_pattern")]
    return next((str(pattern) for pattern in patterns if pattern), None)


#: Providers that build every decoder layer from one specification, and whether it has experts
#: (read in Bridge from 0.3.1 to August 2026).
_LAYERS_ALIKE = {"Qwen3VLMoEModelProvider": True, "Qwen3VLModelProvider": False}


def _sparse_layers(model: Section, count: int, notes: list[str]) -> list[int]:
    """1 for each layer with experts."""
    frequency, experts = model.get("moe_layer_freq", 1), bool(model.get("num_moe_experts"))
    provider = str(model.get("_target_") or "").rsplit(".", 1)[-1]
    asked = _pattern(frequency, count) if experts else [0] * count
    if provider not in _LAYERS_ALIKE:
        return asked
    built = [int(experts and _LAYERS_ALIKE[provider])] * count
    if asked != built:
        notes.append(
            f"moe_layer_freq does nothing: Bridge's {provider} builds every decoder layer "
            f"{'with' if built[0] else 'without'} experts"
        )
    return built


def _layers(model: Section, notes: list[str]) -> tuple[Layer, ...]:
    pattern = hybrid_pattern(model)
    if pattern is not None:
        return layers_of_pattern(pattern)[0]
    count = layer_count(model.integer("num_layers"))
    sparse = _sparse_layers(model, count, notes)
    linear = model.get("linear_attention_freq")
    recurrent = [0] * count
    if isinstance(linear, int) and linear > 1:
        recurrent = [int((index + 1) % linear != 0) for index in range(count)]
    elif isinstance(linear, list):
        recurrent = [int(value) for value in linear]
    return tuple(
        Layer(
            mixer=Mixer.GATED_DELTA if recurrent[index] else Mixer.ATTENTION,
            feed_forward=FeedForward.EXPERTS if sparse[index] else FeedForward.DENSE,
        )
        for index in range(count)
    )


def _pattern(frequency: Any, count: int) -> list[int]:
    """megatron-core's moe_layer_freq: every n-th layer from the first, or a list of 0 and 1."""
    if isinstance(frequency, list):
        if len(frequency) != count:
            raise ValueError(f"moe_layer_freq has {len(frequency)} entries for {count} layers")
        return [int(value) for value in frequency]
    return [int(index % int(frequency) == 0) for index in range(count)]


def _mamba(model: Section, hidden: int) -> MambaShape:
    head = model.integer("mamba_head_dim", 64)
    return MambaShape(
        heads=model.integer("mamba_num_heads", 2 * hidden // head),
        head_size=head,
        groups=model.integer("mamba_num_groups", 8),
        state_size=model.integer("mamba_state_dim", 128),
    )


def _gated_delta(model: Section) -> GatedDeltaShape:
    return GatedDeltaShape(
        key_heads=model.integer("linear_num_key_heads"),
        value_heads=model.integer("linear_num_value_heads"),
        key_size=model.integer("linear_key_head_dim"),
        value_size=model.integer("linear_value_head_dim"),
        convolution=model.integer("linear_conv_kernel_dim", 4),
    )


def read_vision(model: Section, notes: list[str]) -> VisionShape | None:
    """The vision tower of a Qwen3-VL or GLM-4.5V provider; None for a text model.

    Raises ValueError for a tower of another family, whose weights this model cannot count.
    """
    held = model.get("vision_config")
    if not isinstance(held, Mapping):
        return None
    shape = tower_shape(held, native=any(field in model for field in _NATIVE_TOWER_FIELDS))
    if not shape.native:
        notes.append(HUGGING_FACE_TOWER)
    return shape


def tower_shape(held: Mapping[str, Any], *, native: bool) -> VisionShape:
    """The tower that a Hugging Face vision_config describes; ``native`` where Megatron has one of its family.

    Raises ValueError that names the missing key, and for another family.
    """

    def size(key: str, default: int | None = None) -> int:
        value = held.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"vision_config's {key} is {value!r}, where a whole number is needed")
        return value

    sizes: dict[str, Any] = {}
    if "depth" in held and "num_position_embeddings" in held:
        sizes = {
            "native": native,
            "positions": size("num_position_embeddings"),
            "feed_forward_size": size("intermediate_size"),
            "deepstack": len(held.get("deepstack_visual_indexes") or ()),
        }
    elif "glm4v" in str(held.get("model_type") or held.get("_target_") or "").lower():
        sizes = {
            "family": Tower.GLM,
            "native": False,
            "positions": (size("image_size", 336) // size("patch_size", 14)) ** 2,
            # The blocks are as wide as the output, the merger as "intermediate_size" says.
            "feed_forward_size": size("out_hidden_size"),
            "merger_size": size("intermediate_size"),
            "deepstack": 0,
        }
    else:
        raise ValueError(
            "vision_config is no tower of Qwen3-VL's family (told by depth and num_position_embeddings) or "
            "GLM-4.5V's (by model_type): only these are modelled. Without vision_config the language model "
            "alone is estimated"
        )
    return VisionShape(
        depth=size("depth"),
        hidden_size=size("hidden_size"),
        heads=size("num_heads"),
        patch_size=size("patch_size"),
        temporal_patch=size("temporal_patch_size", 2),
        channels=size("in_channels", 3),
        merge=size("spatial_merge_size", 2),
        output_size=size("out_hidden_size"),
        **sizes,
    )
