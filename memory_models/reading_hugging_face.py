"""A Hugging Face configuration with a layout and a batch, read into a TrainingJob.

For planning a run that has no Bridge configuration yet: the Qwen3-VL and Qwen3.5 families, GLM-4.5V, and
text models that share their keys or DeepSeek's. How the run is trained is the caller's to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memory_models.job import Batch, TrainingJob
from memory_models.layout import ParallelLayout
from memory_models.reading import Reading
from memory_models.reading_shapes import HUGGING_FACE_TOWER, tower_shape
from memory_models.shapes import (
    AttentionShape,
    ExpertsShape,
    FeedForward,
    GatedDeltaShape,
    LatentAttentionShape,
    Layer,
    Mixer,
    TextShape,
    layer_count,
)

NATIVE_TOWER = "the vision tower is taken to be Megatron's own, as in Bridge since 0.4"


def read_hugging_face_config(
    config: Mapping[str, Any], *, layout: ParallelLayout, batch: Batch, **choices: Any
) -> Reading:
    """The job of this model on a layout; ``choices`` are further fields of TrainingJob.

    Raises ValueError that names the key where a size is missing, and for layers that are neither
    full attention nor the gated delta rule.
    """
    text = config.get("text_config") or config
    vision = config.get("vision_config")
    notes: list[str] = []
    if not isinstance(text, Mapping):
        raise ValueError("text_config is no mapping: give the configuration as config.json holds it")
    tower = tower_shape(vision, native=True) if isinstance(vision, Mapping) else None
    if tower is not None:
        notes.append(NATIVE_TOWER if tower.native else HUGGING_FACE_TOWER)
    job = TrainingJob(
        text=_text(text, bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False)))),
        vision=tower,
        layout=layout,
        batch=batch,
        **choices,
    )
    return Reading(job=job, ignored=(), notes=tuple(notes))


def _size(held: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = held.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"the configuration's {key} is {value!r}, where a whole number is needed")
    return value


def _mixers(held: Mapping[str, Any], count: int) -> list[Mixer]:
    """By layer_types, or every n-th layer with full attention (full_attention_interval)."""
    kinds = held.get("layer_types")
    interval = held.get("full_attention_interval")
    if not kinds and isinstance(interval, int) and interval > 0:
        kinds = ["linear_attention" if (index + 1) % interval else "full_attention" for index in range(count)]
    kinds = kinds or ["full_attention"] * count
    unknown = sorted(set(kinds) - set(_MIXERS))
    if unknown:
        raise ValueError(f"layer_types has {unknown}: the memory model counts {list(_MIXERS)} only")
    if len(kinds) != count:
        raise ValueError(f"layer_types has {len(kinds)} entries for {count} layers")
    return [_MIXERS[kind] for kind in kinds]


_MIXERS = {"full_attention": Mixer.ATTENTION, "linear_attention": Mixer.GATED_DELTA}


def _gated_delta(held: Mapping[str, Any]) -> GatedDeltaShape:
    return GatedDeltaShape(
        key_heads=_size(held, "linear_num_key_heads"),
        value_heads=_size(held, "linear_num_value_heads"),
        key_size=_size(held, "linear_key_head_dim"),
        value_size=_size(held, "linear_value_head_dim"),
        convolution=_size(held, "linear_conv_kernel_dim", 4),
    )


def _sparse(held: Mapping[str, Any], experts: int) -> list[bool]:
    """Which layers have experts: by Qwen's step and list, or DeepSeek's and GLM's dense first ones."""
    dense = set(held.get("mlp_only_layers") or ())
    step, first = _size(held, "decoder_sparse_step", 1), _size(held, "first_k_dense_replace", 0)
    return [
        bool(experts) and index not in dense and index >= first and (index + 1) % step == 0
        for index in range(layer_count(_size(held, "num_hidden_layers")))
    ]


def _attention(held: Mapping[str, Any], *, recurrent: bool) -> AttentionShape | LatentAttentionShape:
    hidden, heads = _size(held, "hidden_size"), _size(held, "num_attention_heads")
    if held.get("kv_lora_rank"):
        return LatentAttentionShape(
            heads=heads,
            query_rank=held.get("q_lora_rank"),
            key_value_rank=_size(held, "kv_lora_rank"),
            head_size=_size(held, "qk_nope_head_dim"),
            rotary_size=_size(held, "qk_rope_head_dim"),
            value_size=_size(held, "v_head_dim"),
            norm=True,
        )
    family = str(held.get("model_type", ""))
    return AttentionShape(
        heads=heads,
        groups=_size(held, "num_key_value_heads", heads),
        head_size=_size(held, "head_dim", hidden // heads),
        qk_norm="qwen3" in family or bool(held.get("use_qk_norm", False)),
        # These families gate the output of their full attention.
        output_gate=bool(held.get("attn_output_gate", recurrent)),
        qkv_bias=bool(held.get("attention_bias", False)) or "qwen2" in family,
    )


def _experts(held: Mapping[str, Any], count: int) -> ExpertsShape:
    size = _size(held, "moe_intermediate_size")
    gated = "shared_expert_intermediate_size" in held
    shared = _size(held, "shared_expert_intermediate_size", _size(held, "n_shared_experts", 0) * size)
    return ExpertsShape(
        count=count,
        top_k=_size(held, "num_experts_per_tok"),
        size=size,
        shared_size=shared,
        shared_gate=gated,
        router_bias="n_routed_experts" in held,
    )


def _text(held: Mapping[str, Any], tied: bool) -> TextShape:
    experts = _size(held, "num_experts", _size(held, "n_routed_experts", 0))
    sparse = _sparse(held, experts)
    mixers = _mixers(held, len(sparse))
    recurrent = Mixer.GATED_DELTA in mixers
    hidden = _size(held, "hidden_size")
    return TextShape(
        hidden_size=hidden,
        layers=tuple(
            Layer(mixer=mixer, feed_forward=FeedForward.EXPERTS if on else FeedForward.DENSE)
            for mixer, on in zip(mixers, sparse, strict=True)
        ),
        attention=_attention(held, recurrent=recurrent),
        # Models without dense layers need not say how wide one would be.
        feed_forward_size=_size(held, "intermediate_size", hidden if all(sparse) else None),
        gated_delta=_gated_delta(held) if recurrent else None,
        vocabulary=_size(held, "vocab_size"),
        experts=_experts(held, experts) if experts else None,
        tied_embeddings=tied,
    )
