"""A Hugging Face configuration with a layout and a batch, read into a TrainingJob.

For planning a run that has no Bridge configuration yet: the Qwen3-VL and Qwen3.5 families and the
text models that share their keys. How the run is trained is the caller's to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memory_models.job import Batch, TrainingJob
from memory_models.layout import ParallelLayout
from memory_models.reading import Reading
from memory_models.shapes import (
    AttentionShape,
    ExpertsShape,
    FeedForward,
    GatedDeltaShape,
    Layer,
    Mixer,
    TextShape,
    VisionShape,
    layer_count,
)


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
    if isinstance(vision, Mapping):
        notes.append("the vision tower is taken to be Megatron's own, as in Bridge since 0.4")
    job = TrainingJob(
        text=_text(text, bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False)))),
        vision=_vision(vision) if isinstance(vision, Mapping) else None,
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


def _text(held: Mapping[str, Any], tied: bool) -> TextShape:
    hidden, heads = _size(held, "hidden_size"), _size(held, "num_attention_heads")
    experts = _size(held, "num_experts", 0)
    dense = set(held.get("mlp_only_layers") or ())
    step = _size(held, "decoder_sparse_step", 1)
    sparse = [
        bool(experts) and index not in dense and (index + 1) % step == 0
        for index in range(layer_count(_size(held, "num_hidden_layers")))
    ]
    family = str(held.get("model_type", ""))
    mixers = _mixers(held, len(sparse))
    recurrent = Mixer.GATED_DELTA in mixers
    return TextShape(
        hidden_size=hidden,
        layers=tuple(
            Layer(mixer=mixer, feed_forward=FeedForward.EXPERTS if on else FeedForward.DENSE)
            for mixer, on in zip(mixers, sparse, strict=True)
        ),
        attention=AttentionShape(
            heads=heads,
            groups=_size(held, "num_key_value_heads", heads),
            head_size=_size(held, "head_dim", hidden // heads),
            qk_norm="qwen3" in family,
            # These families gate the output of their full attention.
            output_gate=bool(held.get("attn_output_gate", recurrent)),
            qkv_bias=bool(held.get("attention_bias", False)) or "qwen2" in family,
        ),
        # Models without dense layers need not say how wide one would be.
        feed_forward_size=_size(held, "intermediate_size", hidden if all(sparse) else None),
        gated_delta=_gated_delta(held) if recurrent else None,
        vocabulary=_size(held, "vocab_size"),
        experts=ExpertsShape(
            count=experts,
            top_k=_size(held, "num_experts_per_tok"),
            size=_size(held, "moe_intermediate_size"),
            shared_size=_size(held, "shared_expert_intermediate_size", 0),
            shared_gate="shared_expert_intermediate_size" in held,
        )
        if experts
        else None,
        tied_embeddings=tied,
    )


def _vision(held: Mapping[str, Any]) -> VisionShape:
    return VisionShape(
        depth=_size(held, "depth"),
        hidden_size=_size(held, "hidden_size"),
        heads=_size(held, "num_heads"),
        feed_forward_size=_size(held, "intermediate_size"),
        patch_size=_size(held, "patch_size"),
        temporal_patch=_size(held, "temporal_patch_size", 2),
        channels=_size(held, "in_channels", 3),
        positions=_size(held, "num_position_embeddings"),
        merge=_size(held, "spatial_merge_size", 2),
        deepstack=len(held.get("deepstack_visual_indexes") or ()),
        output_size=_size(held, "out_hidden_size"),
    )
