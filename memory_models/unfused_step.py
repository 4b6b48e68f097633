"""What passes in the optimizer's step without fused kernels: torch's own Adam, one weight after the other."""

from __future__ import annotations

from collections.abc import Iterator

from memory_models.breakdown import Category, Component
from memory_models.choices import Holding
from memory_models.placement import Place
from memory_models.shapes import AttentionShape, FeedForward, TextShape, VisionShape
from memory_models.tensors import Part


def update_part(job: Holding, chunks: tuple[Place, ...]) -> Part:
    """The root of a second moment and the denominator made of it, both in float, of the largest weight.

    Certainty A on a CPU (torch 2.13), where the optimizer is not distributed; a shard may cut the weight.
    """
    elements = max(_trainable(job, chunks), default=0)
    return Part(
        component=Component.RUNTIME,
        category=Category.TEMPORARY,
        tensor="update of the largest weight",
        formula="2*4*elements",
        bytes=8 * elements,
    )


def _trainable(job: Holding, chunks: tuple[Place, ...]) -> Iterator[int]:
    """Elements of each kind of weight matrix that learns on a rank with these chunks."""
    first, last = any(place.first for place in chunks), any(place.last for place in chunks)
    if first and job.vision is not None:
        if not job.frozen.vision:
            yield from _tower(job.vision)
        if not job.frozen.projector:
            yield job.vision.merged_size * max(job.vision.merged_size, job.vision.output_size)
    if job.frozen.language:
        return
    if first or last:
        yield job.text.vocabulary // job.layout.tensor * job.text.hidden_size
    for layer in dict.fromkeys(layer for place in chunks for layer, _ in place.runs):
        yield from _layer(job, job.text, layer.feed_forward)


def _tower(vision: VisionShape) -> Iterator[int]:
    yield vision.hidden_size * max(3 * vision.hidden_size, vision.feed_forward_size)
    yield vision.hidden_size * max(vision.positions, vision.patch_elements)


def _layer(job: Holding, text: TextShape, feed_forward: FeedForward) -> Iterator[int]:
    hidden, inner = text.hidden_size, 1 + text.activation.gated
    if isinstance(text.attention, AttentionShape):
        joint = text.attention.query_size + 2 * text.attention.key_size
        yield hidden * joint // job.layout.tensor
    if feed_forward is FeedForward.DENSE:
        yield inner * hidden * text.feed_forward_size // job.layout.tensor
    elif feed_forward is FeedForward.EXPERTS and text.experts is not None:
        yield inner * hidden * text.experts.size // job.layout.expert_tensor
        yield inner * hidden * text.experts.shared_size // job.layout.tensor
