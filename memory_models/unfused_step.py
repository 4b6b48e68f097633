"""What passes after backward without fused kernels: gradients that gloo copies, and torch's own Adam.

One after the other, so the largest counts. Certainty A on a CPU (torch 2.13, Bridge 0.3.1); where the
optimizer is distributed, the boundary of a shard may cut the largest weight.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from memory_models.breakdown import Category, Component
from memory_models.choices import Holding
from memory_models.parameters import Weights
from memory_models.placement import Place
from memory_models.shapes import AttentionShape, FeedForward, TextShape, VisionShape
from memory_models.states import state_shard
from memory_models.tensors import Part

V, J = Component.VISION, Component.PROJECTOR


def step_part(job: Holding, chunks: tuple[Place, ...], weights: tuple[Weights, ...]) -> Part:
    """The largest of what passes between the end of backward and that of the step."""
    learns = [held for held in weights if held.trainable]
    parts = (_update(job, chunks), _joined(job, learns), _scattered(job, learns))
    return max(parts, key=lambda part: part.bytes)


def _part(tensor: str, formula: str, count: int) -> Part:
    return Part(
        component=Component.RUNTIME, category=Category.TEMPORARY, tensor=tensor, formula=formula, bytes=count
    )


def _joined(job: Holding, learns: Iterable[Weights]) -> Part:
    """Tensor-parallel ranks average the gradients of what each holds whole, joined in one tensor.

    Of the Hugging Face tower and its mergers that is all.
    """
    whole = job.vision is not None and not job.vision.native and job.layout.tensor > 1
    elements = sum(held.elements for held in learns if whole and held.component in (V, J))
    width = job.precision.gradient_bytes
    return _part("gradients of tower and mergers, joined", "g*(V+J)", width * elements)


def _scattered(job: Holding, learns: list[Weights]) -> Part:
    """gloo's reduce-scatter works on a copy of a whole buffer; NCCL's does not."""
    apart = [held for held in learns if held.expert and job.layout.expert > 1]
    buffers = ([held for held in learns if held not in apart], apart)
    sizes = [
        sum(held.elements for held in buffer)
        for buffer in buffers
        if job.optimizer.distributed and buffer and state_shard(job, buffer[0]) > 1
    ]
    elements = max(sizes, default=0)
    return _part("gradients, copied for gloo", "g*buffer", job.precision.gradient_bytes * elements)


def _update(job: Holding, chunks: tuple[Place, ...]) -> Part:
    """The root of a second moment and the denominator made of it, in float; and that of the weight before."""
    sizes = [2 * elements + before for elements, before in _matrices(job, chunks)]
    return _part("update of the largest weight", "4*(2*elements+before)", 4 * max(sizes, default=0))


def _matrices(job: Holding, chunks: tuple[Place, ...]) -> Iterator[tuple[int, int]]:
    """Elements of each kind of weight matrix that learns on these chunks, and of the one before it."""
    first, last = any(place.first for place in chunks), any(place.last for place in chunks)
    if first and job.vision is not None:
        if not job.frozen.vision:
            yield from _tower(job.vision)
        if not job.frozen.projector:
            merged, output = job.vision.merged_size, job.vision.output_size
            yield merged * merged, merged * output * (job.vision.deepstack > 0)
    if job.frozen.language:
        return
    if first or last:
        yield job.text.vocabulary // job.layout.tensor * job.text.hidden_size, 0
    for layer in dict.fromkeys(layer for place in chunks for layer, _ in place.runs):
        yield from _layer(job, job.text, layer.feed_forward)


def _tower(vision: VisionShape) -> Iterator[tuple[int, int]]:
    inner = vision.hidden_size * vision.feed_forward_size
    yield inner, inner
    yield 3 * vision.hidden_size**2, inner
    yield vision.hidden_size * max(vision.positions, vision.patch_elements), 0


def _layer(job: Holding, text: TextShape, feed_forward: FeedForward) -> Iterator[tuple[int, int]]:
    hidden, inner, layout = text.hidden_size, 1 + text.activation.gated, job.layout
    if isinstance(text.attention, AttentionShape):
        query, key = text.attention.query_size // layout.tensor, text.attention.key_size // layout.tensor
        yield hidden * (query + 2 * key), hidden * query
    if feed_forward is FeedForward.DENSE:
        yield inner * hidden * text.feed_forward_size // layout.tensor, 0
    elif feed_forward is FeedForward.EXPERTS and text.experts is not None:
        expert = hidden * text.experts.size // layout.expert_tensor
        yield inner * expert, expert
        yield inner * hidden * text.experts.shared_size // layout.tensor, 0
