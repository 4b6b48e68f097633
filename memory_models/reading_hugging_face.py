"""A Hugging Face configuration with a layout and a batch, read into a TrainingJob.

For planning a run that has no Bridge configuration yet: the Qwen3-VL family and the text
models that share its keys. How the run is trained is the caller's to say.
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
    Layer,
    TextShape,
    VisionShape,
    layer_count,
)


def read_hugging_face_config(
    config: Mapping[str, Any], *, layout: ParallelLayout, batch: Batch, **choices: Any
) -> Reading:
    """The job of this model on a layout; ``choices`` are further fields of TrainingJob.

    Raises ValueError that names the key where a size is missing, and for layers that are not
    plain attention with a dense or expert part.
    """
    text = config.get("text_config") or config
    vision = config.get("vision_config")
    notes: list[str] = []
    if not isinstance(text, Mapping):
        raise ValueError("text_config is no mapping: give the configuration as config.json holds it")
    kinds = set(text.get("layer_types") or ())
    if kinds - {"full_attention"}:
        raise ValueError(f"layer_types has {sorted(kinds - {'full_attention'})}: only full attention is read")
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
    return TextShape(
        hidden_size=hidden,
        layers=tuple(Layer(feed_forward=FeedForward.EXPERTS if on else FeedForward.DENSE) for on in sparse),
        attention=AttentionShape(
            heads=heads,
            groups=_size(held, "num_key_value_heads", heads),
            head_size=_size(held, "head_dim", hidden // heads),
            qk_norm="qwen3" in family,
            qkv_bias=bool(held.get("attention_bias", False)) or "qwen2" in family,
        ),
        feed_forward_size=_size(held, "intermediate_size"),
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
