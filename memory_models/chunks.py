"""What one micro-batch costs in one virtual chunk: tensors kept, replayed and passing.

Here the tensors of layers, vision tower, embedding and loss are joined, with recompute and
frozen parts applied. How many micro-batches coexist is pipeline.py, when memory peaks is
instants.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from memory_models import decoder, experts, loss, unfused, vision
from memory_models.breakdown import Component
from memory_models.job import Granularity, Implementation, TrainingJob
from memory_models.layout import Chunk
from memory_models.shapes import FeedForward, Layer
from memory_models.tensors import Kept


@dataclass(frozen=True, kw_only=True)
class ChunkActivations:
    """Tensors of one micro-batch in one chunk, those of equal layers summed."""

    kept: tuple[Kept, ...]  #: from forward until backward
    decoder: tuple[Kept, ...]  #: those of kept that the decoder's backward frees before the tower's begins
    replay: tuple[Kept, ...]  #: computed again when a layer's backward begins
    forward: tuple[Kept, ...]  #: within one layer's forward
    backward: tuple[Kept, ...]  #: within one layer's backward
    tower: tuple[Kept, ...]  #: within one vision block's backward
    merge: tuple[Kept, ...]  #: while image embeddings are put among the words


def chunk_activations(job: TrainingJob, chunk: Chunk, *, final: bool) -> ChunkActivations:
    """What a micro-batch costs in ``chunk``; ``final`` for the last virtual chunk of its rank."""
    layers = [job.text.layers[index] for index in chunk.layers]
    if chunk.extra_prediction:
        layers += [job.text.layers[-1]] * job.text.extra_prediction_layers
    kept: list[Kept] = []
    widest: tuple[int, tuple[Kept, ...]] = (-1, ())
    widest_layer: Layer | None = None
    by_kind = {layer: layer_tensors(job, layer) for layer in dict.fromkeys(layers)}
    for position, layer in enumerate(layers):
        stays, again = _recomputed(job, layer, by_kind[layer], position, len(layers))
        if job.offload and not (final and position == len(layers) - 1):
            stays = tuple(tensor for tensor in stays if tensor.offload not in job.offload)
        kept += stays
        size = sum(tensor.bytes for tensor in (*again, *_layer_backward(job, layer)))
        if size > widest[0]:
            widest, widest_layer = (size, again), layer
    if chunk.last:
        kept += _trained(loss.output_tensors(job), job.frozen.language)
    freed_first = merged(kept)
    first = _first_chunk_tensors(job) if chunk.first else ()
    return ChunkActivations(
        kept=freed_first + merged(first),
        decoder=freed_first,
        replay=merged(widest[1]),
        forward=_layer_forward(job, widest_layer) if widest_layer else (),
        backward=_layer_backward(job, widest_layer) if widest_layer else (),
        tower=_tower_backward(job) if chunk.first else (),
        merge=_merge(job) if chunk.first else (),
    )


def layer_tensors(job: TrainingJob, layer: Layer) -> tuple[Kept, ...]:
    """Everything that a layer keeps with no recompute, what frozen weights need not left out."""
    if job.implementation is Implementation.UNFUSED:
        return _trained(unfused.layer_tensors(job, layer), job.frozen.language)
    kept = decoder.mixer_tensors(job, layer)
    if layer.feed_forward is FeedForward.DENSE:
        kept += decoder.dense_tensors(job)
    elif layer.feed_forward is FeedForward.EXPERTS:
        kept += decoder.expert_norm_tensors(job) + experts.expert_tensors(job)
    return _trained(kept, job.frozen.language)


def _trained(tensors: Iterable[Kept], frozen: bool) -> tuple[Kept, ...]:
    return tuple(tensor for tensor in tensors if not (frozen and tensor.for_weight))


def _recomputed(
    job: TrainingJob, layer: Layer, tensors: tuple[Kept, ...], position: int, layers: int
) -> tuple[tuple[Kept, ...], tuple[Kept, ...]]:
    """(what stays, what is computed again) of the layer at ``position`` of its chunk."""
    recompute = job.recompute
    if recompute.granularity is Granularity.FULL:
        uniform = recompute.method == "uniform"
        if not uniform and position >= recompute.layers:
            return tensors, ()
        group = min(recompute.layers, layers) if uniform else 1
        return ((_checkpoint_input(job),) if position % group == 0 else ()), tensors * group
    again = tuple(tensor for tensor in tensors if _dropped(job, layer, tensor))
    return tuple(tensor for tensor in tensors if not _dropped(job, layer, tensor)), again


def _dropped(job: TrainingJob, layer: Layer, tensor: Kept) -> bool:
    """Whether selective recompute drops it; ``moe`` is all of the experts, ``mlp`` dense layers only."""
    experts_only = layer.feed_forward is FeedForward.EXPERTS and tensor.component is Component.EXPERTS
    if experts_only and job.recompute.drops("moe"):
        return True
    return bool(tensor.module) and job.recompute.drops(tensor.module)


def _checkpoint_input(job: TrainingJob) -> Kept:
    count = (
        job.precision.activation_bytes
        * job.residual_tokens
        * job.text.hidden_size
        * job.text.residual_streams
    )
    return Kept(Component.DECODER, "checkpoint input", "a*n*h", count)


def _first_chunk_tensors(job: TrainingJob) -> tuple[Kept, ...]:
    kept = loss.embedding_tensors(job)
    if job.vision is not None:
        if job.implementation is Implementation.UNFUSED:
            kept += unfused.vision_tensors(job, job.vision)
        else:
            kept += vision.tower_tensors(job, job.vision)
            kept += _trained(vision.projector_tensors(job, job.vision), job.frozen.projector)
    return kept


def _layer_forward(job: TrainingJob, layer: Layer) -> tuple[Kept, ...]:
    if job.implementation is Implementation.UNFUSED:
        return unfused.forward_tensors(job)
    if layer.feed_forward is not FeedForward.EXPERTS:
        return ()
    return (Kept(Component.EXPERTS, "dispatch and combine", "a*n*k*h+a*R*h", experts.exchange_bytes(job)),)


def _layer_backward(job: TrainingJob, layer: Layer) -> tuple[Kept, ...]:
    if job.implementation is Implementation.UNFUSED:
        return unfused.backward_tensors(job)
    if layer.feed_forward is FeedForward.EXPERTS:
        count = experts.backward_bytes(job)
        return (Kept(Component.EXPERTS, "gradients of an expert layer", "2*a*n*h+a*R*(h+3f)", count),)
    return (
        Kept(Component.DECODER, "gradients of a layer", "2*a*n*h+inner", decoder.backward_bytes(job, layer)),
    )


def _tower_backward(job: TrainingJob) -> tuple[Kept, ...]:
    if job.vision is None or job.frozen.vision:
        return ()
    count = vision.backward_bytes(job, job.vision)
    return (Kept(Component.VISION, "gradients of a vision block", "a*P*(2*vh+2*vf/t)+replay", count),)


def _merge(job: TrainingJob) -> tuple[Kept, ...]:
    count = loss.image_merge_bytes(job)
    return (
        (Kept(Component.EMBEDDING_AND_LOSS, "image and word embeddings", "3*a*s*b*h", count),)
        if count
        else ()
    )


def merged(tensors: Iterable[Kept]) -> tuple[Kept, ...]:
    """One entry for each kind of tensor: those of all layers together."""
    sums: dict[tuple[Component, str], int] = {}
    counts: dict[tuple[Component, str], int] = {}
    formulas: dict[tuple[Component, str], str] = {}
    for tensor in tensors:
        key = (tensor.component, tensor.tensor)
        sums[key] = sums.get(key, 0) + tensor.bytes
        counts[key] = counts.get(key, 0) + 1
        formulas.setdefault(key, tensor.formula)
    return tuple(
        Kept(*key, formulas[key] if counts[key] == 1 else f"{counts[key]}*({formulas[key]})", total)
        for key, total in sums.items()
    )
