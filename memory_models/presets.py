"""Published models by name: shapes only, from their Hugging Face configurations."""

from __future__ import annotations

from memory_models.shapes import AttentionShape, ExpertsShape, TextShape, VisionShape, uniform_layers


def qwen3_vl_moe(
    *, layers: int, hidden_size: int, heads: int, expert_size: int
) -> tuple[TextShape, VisionShape]:
    """The Qwen3-VL mixture-of-experts family: 128 experts, top 8, one vision tower of 27 blocks."""
    text = TextShape(
        hidden_size=hidden_size,
        layers=uniform_layers(layers, experts=True),
        attention=AttentionShape(heads=heads, groups=4, head_size=128, qk_norm=True),
        feed_forward_size=3 * hidden_size,
        vocabulary=151_936,
        experts=ExpertsShape(count=128, top_k=8, size=expert_size),
    )
    vision = VisionShape(
        depth=27,
        hidden_size=1152,
        heads=16,
        feed_forward_size=4304,
        patch_size=16,
        temporal_patch=2,
        channels=3,
        positions=2304,
        merge=2,
        deepstack=3,
        output_size=hidden_size,
    )
    return text, vision


QWEN3_VL_30B_A3B = qwen3_vl_moe(layers=48, hidden_size=2048, heads=32, expert_size=768)
QWEN3_VL_235B_A22B = qwen3_vl_moe(layers=94, hidden_size=4096, heads=64, expert_size=1536)
