"""The shapes of a language model, out of Megatron-LM's arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
    layer_count,
    layers_of_pattern,
)


class Arguments:
    """Arguments of a run over the defaults of its commit; a value of None falls through."""

    def __init__(self, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
        self._given, self._defaults = given, defaults

    def get(self, name: str, default: Any = None) -> Any:
        for held in (self._given, self._defaults):
            value = held.get(name)
            if value is not None:
                return value
        return default

    def integer(self, name: str, default: int | None = None) -> int:
        """A whole number. Raises ValueError that names the argument where it is nowhere given."""
        value = self.get(name, default)
        if value is None:
            raise ValueError(f"the run gives no --{name.replace('_', '-')}, and no default is known")
        return int(value)

    def flag(self, name: str) -> bool:
        return bool(self.get(name))

    def words(self, name: str) -> list[str]:
        """A list, given as such or as "[one two]"."""
        value = self.get(name)
        if value is None:
            return []
        return [str(word) for word in value] if isinstance(value, list) else str(value).strip("[]").split()


def read_layers(arguments: Arguments) -> tuple[tuple[Layer, ...], str | None]:
    """The layers, and the pipeline layout that a hybrid pattern with bars implies."""
    pattern = arguments.get("hybrid_layer_pattern") or arguments.get("hybrid_override_pattern")
    if pattern:
        return layers_of_pattern(str(pattern))
    count = layer_count(arguments.integer("num_layers"))
    mixers = [Mixer.ATTENTION] * count
    linear = "gated_delta_net" in (
        arguments.get("experimental_attention_variant"),
        arguments.get("linear_attention_type"),
    )
    if linear:
        every = arguments.integer("linear_attention_freq")
        mixers = [Mixer.GATED_DELTA if (index + 1) % every else Mixer.ATTENTION for index in range(count)]
    parts = (FeedForward.DENSE, FeedForward.EXPERTS)
    frequency = arguments.get("moe_layer_freq", 1)
    sparse = _frequency(frequency, count) if arguments.get("num_experts") else [0] * count
    return tuple(
        Layer(mixer=mixer, feed_forward=parts[on]) for mixer, on in zip(mixers, sparse, strict=True)
    ), None


def _frequency(value: Any, count: int) -> list[int]:
    """moe_layer_freq: every n-th layer, a list, or sums of lists times counts such as "([0]*3+[1]*12)"."""
    text = str(value).strip("()\"' ")
    if "[" not in text:
        return [int(index % int(text) == 0) for index in range(count)]
    result: list[int] = []
    for term in text.split("+"):
        listed, _, times = term.partition("*")
        entries = [int(entry) for entry in listed.strip("[] ").split(",") if entry.strip()]
        result += entries * layer_count(int(times or 1))
    if len(result) != count:
        raise ValueError(f"--moe-layer-freq {value!r} has {len(result)} entries for {count} layers")
    return result


def read_text(arguments: Arguments, layers: tuple[Layer, ...], vocabulary: int) -> TextShape:
    """The language model. Raises ValueError that names the missing argument."""
    hidden = arguments.integer("hidden_size")
    heads = arguments.integer("num_attention_heads")
    gated = arguments.flag("swiglu")
    width = arguments.get("ffn_hidden_size")
    if width is None:
        width = (4 * hidden * 2 // 3 + 63) // 64 * 64 if gated else 4 * hidden
    position = str(arguments.get("position_embedding_type", "learned_absolute"))
    if arguments.flag("use_rotary_position_embeddings"):
        position = "rope"
    activation = Activation.SWIGLU if gated else Activation.GELU
    if arguments.flag("squared_relu"):
        activation = Activation.SQUARED_RELU
    return TextShape(
        hidden_size=hidden,
        layers=layers,
        attention=_attention_shape(arguments, hidden, heads),
        feed_forward_size=int(width),
        vocabulary=vocabulary,
        experts=_experts(arguments, int(width)) if arguments.get("num_experts") else None,
        mamba=_mamba(arguments, hidden) if any(layer.mixer is Mixer.MAMBA for layer in layers) else None,
        gated_delta=_gated_delta(arguments)
        if any(layer.mixer is Mixer.GATED_DELTA for layer in layers)
        else None,
        activation=activation,
        norm=Norm.RMS if arguments.get("normalization") == "RMSNorm" else Norm.LAYER,
        linear_bias=arguments.flag("add_bias_linear"),
        tied_embeddings=not arguments.flag("untie_embeddings_and_output_weights"),
        learned_positions=arguments.integer("max_position_embeddings", arguments.integer("seq_length"))
        if position == "learned_absolute"
        else 0,
        rotary=position in ("rope", "mrope", "yarn"),
        extra_prediction_layers=arguments.integer("mtp_num_layers", 0),
        residual_streams=arguments.integer("num_residual_streams", 1)
        if arguments.flag("enable_hyper_connections")
        else 1,
    )


def _attention_shape(arguments: Arguments, hidden: int, heads: int) -> AttentionShape | LatentAttentionShape:
    if arguments.flag("multi_latent_attention"):
        return LatentAttentionShape(
            heads=heads,
            query_rank=arguments.get("q_lora_rank"),
            key_value_rank=arguments.integer("kv_lora_rank", 32),
            head_size=arguments.integer("qk_head_dim", 128),
            rotary_size=arguments.integer("qk_pos_emb_head_dim", 64),
            value_size=arguments.integer("v_head_dim", 128),
            norm=arguments.flag("qk_layernorm"),
        )
    grouped = arguments.flag("group_query_attention")
    return AttentionShape(
        heads=heads,
        groups=arguments.integer("num_query_groups", 1) if grouped else heads,
        head_size=arguments.integer("kv_channels", hidden // heads),
        qk_norm=arguments.flag("qk_layernorm"),
        qkv_bias=arguments.flag("add_qkv_bias"),
        output_gate=arguments.flag("attention_output_gate"),
    )


def _experts(arguments: Arguments, width: int) -> ExpertsShape:
    return ExpertsShape(
        count=arguments.integer("num_experts"),
        top_k=arguments.integer("moe_router_topk", 2),
        size=arguments.integer("moe_ffn_hidden_size", width),
        shared_size=arguments.integer("moe_shared_expert_intermediate_size", 0),
        shared_gate=arguments.flag("moe_shared_expert_gate"),
        latent_size=arguments.integer("moe_latent_size", 0),
        router_bias=arguments.flag("moe_router_enable_expert_bias"),
    )


def _mamba(arguments: Arguments, hidden: int) -> MambaShape:
    head = arguments.integer("mamba_head_dim", 64)
    return MambaShape(
        heads=arguments.integer("mamba_num_heads", 2 * hidden // head),
        head_size=head,
        groups=arguments.integer("mamba_num_groups", 8),
        state_size=arguments.integer("mamba_state_dim", 128),
    )


def _gated_delta(arguments: Arguments) -> GatedDeltaShape:
    return GatedDeltaShape(
        key_heads=arguments.integer("linear_num_key_heads"),
        value_heads=arguments.integer("linear_num_value_heads"),
        key_size=arguments.integer("linear_key_head_dim"),
        value_size=arguments.integer("linear_value_head_dim"),
        convolution=arguments.integer("linear_conv_kernel_dim", 4),
    )
