"""What one micro-batch costs in one virtual chunk: tensors kept, replayed and passing.

Here the tensors of layers, vision tower, embedding and loss are joined, with recompute and
frozen parts applied. How many micro-batches coexist is pipeline.py, when memory peaks is
instants.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from memory_models import decoder, experts, loss, unfused, vision
from memory_models.breakdown import Component
from memory_models.job import Backend, Granularity, Implementation, TrainingJob
from memory_models.layout import Chunk
from memory_models.shapes import FeedForward, Layer
from memory_models.tensors import Kept


@dataclass(frozen=True, kw_only=True)
class HalfBackward:
    """The backward pass of half a layer: what has gone by then, what is computed again, what passes."""

    name: str
    gone: tuple[Kept, ...]  #: kept tensors of this micro-batch that later halves have used up
    replay: tuple[Kept, ...]
    gradients: tuple[Kept, ...]


@dataclass(frozen=True, kw_only=True)
class ChunkActivations:
    """Tensors of one micro-batch in one chunk, those of equal layers summed."""

    kept: tuple[Kept, ...]  #: from forward until backward
    decoder: tuple[Kept, ...]  #: those of kept that the decoder's backward frees before the tower's begins
    forward: tuple[Kept, ...]  #: within one layer's forward
    backward: tuple[HalfBackward, ...]  #: one for each half of each kind of layer, at the last such layer
    tower: tuple[Kept, ...]  #: within one vision block's backward
    merge: tuple[Kept, ...]  #: while image embeddings are put among the words


def chunk_activations(job: TrainingJob, chunk: Chunk, *, final: bool) -> ChunkActivations:
    """What a micro-batch costs in ``chunk``; ``final`` for the last virtual chunk of its rank."""
    layers = [job.text.layers[index] for index in chunk.layers]
    if chunk.extra_prediction:
        layers += [job.text.layers[-1]] * job.text.extra_prediction_layers
    halves = {layer: layer_halves(job, layer) for layer in dict.fromkeys(layers)}
    kept: list[Kept] = []
    by_position: list[tuple[tuple[Kept, ...], tuple[Kept, ...]]] = []
    for position, layer in enumerate(layers):
        offloaded = bool(job.offload) and not (final and position == len(layers) - 1)
        mixer, feed_forward = (_stays(job, layer, half, position, offloaded) for half in halves[layer])
        if _fully_recomputed(job, position):
            mixer = (_checkpoint_input(job),) if position % _group(job, len(layers)) == 0 else ()
        by_position.append((mixer, feed_forward))
        kept += (*mixer, *feed_forward)
    output = _trained(loss.output_tensors(job), job.frozen.language) if chunk.last else ()
    freed_first = merged((*kept, *output))
    first = _first_chunk_tensors(job) if chunk.first else ()
    return ChunkActivations(
        kept=freed_first + merged(first),
        decoder=freed_first,
        forward=_layer_forward(job, layers[-1]) if layers else (),
        backward=_backward_halves(job, layers, halves, by_position, output),
        tower=_tower_backward(job) if chunk.first else (),
        merge=_merge(job) if chunk.first else (),
    )


def layer_halves(job: TrainingJob, layer: Layer) -> tuple[tuple[Kept, ...], tuple[Kept, ...]]:
    """What mixer and feed-forward part keep with no recompute, less what only frozen weights need."""
    if job.implementation is Implementation.UNFUSED:
        mixer, feed_forward = unfused.mixer_tensors(job, layer), unfused.feed_forward_tensors(job, layer)
    else:
        mixer, feed_forward = decoder.mixer_tensors(job, layer), ()
        if layer.feed_forward is FeedForward.DENSE:
            feed_forward = decoder.dense_tensors(job)
        elif layer.feed_forward is FeedForward.EXPERTS:
            feed_forward = decoder.expert_norm_tensors(job) + experts.expert_tensors(job)
    return _trained(mixer, job.frozen.language), _trained(feed_forward, job.frozen.language)


def _trained(tensors: Iterable[Kept], frozen: bool) -> tuple[Kept, ...]:
    return tuple(tensor for tensor in tensors if not (frozen and tensor.for_weight))


def _fully_recomputed(job: TrainingJob, position: int) -> bool:
    recompute = job.recompute
    if recompute.granularity is not Granularity.FULL:
        return False
    return recompute.method == "uniform" or position < recompute.layers


def _group(job: TrainingJob, layers: int) -> int:
    """Layers that full recompute replays at once."""
    return min(job.recompute.layers, layers) if job.recompute.method == "uniform" else 1


def _stays(
    job: TrainingJob, layer: Layer, half: tuple[Kept, ...], position: int, offloaded: bool
) -> tuple[Kept, ...]:
    if _fully_recomputed(job, position):
        return ()
    return tuple(
        tensor
        for tensor in half
        if not _dropped(job, layer, tensor) and not (offloaded and tensor.offload in job.offload)
    )


def _dropped(job: TrainingJob, layer: Layer, tensor: Kept) -> bool:
    """Whether selective recompute drops it; ``moe`` is all of the experts, ``mlp`` dense layers only."""
    experts_only = layer.feed_forward is FeedForward.EXPERTS and tensor.component is Component.EXPERTS
    if experts_only and job.recompute.drops("moe"):
        return True
    return bool(tensor.module) and job.recompute.drops(tensor.module)


def _checkpoint_input(job: TrainingJob) -> Kept:
    stream = job.residual_tokens * job.text.hidden_size * job.text.residual_streams
    count = job.precision.activation_bytes * stream
    return Kept(Component.DECODER, "checkpoint input", "a*n*h", count)


def _backward_halves(
    job: TrainingJob,
    layers: list[Layer],
    halves: Mapping[Layer, tuple[tuple[Kept, ...], tuple[Kept, ...]]],
    by_position: list[tuple[tuple[Kept, ...], tuple[Kept, ...]]],
    output: tuple[Kept, ...],
) -> tuple[HalfBackward, ...]:
    """Backward goes from the last layer to the first: the last of each kind meets the most kept tensors."""
    found: list[HalfBackward] = []
    gone: list[Kept] = list(output)
    seen: set[Layer] = set()
    for position in range(len(layers) - 1, -1, -1):
        layer = layers[position]
        mixer, feed_forward = by_position[position]
        if layer not in seen:
            seen.add(layer)
            whole_mixer, whole_feed_forward = halves[layer]
            if _fully_recomputed(job, position):
                group = _group(job, len(layers))
                again = merged((*whole_mixer, *whole_feed_forward) * group)
                later = merged((*whole_mixer, *((*whole_mixer, *whole_feed_forward) * (group - 1))))
            else:
                again = merged(tensor for tensor in whole_feed_forward if _dropped(job, layer, tensor))
                later = merged(tensor for tensor in whole_mixer if _dropped(job, layer, tensor))
            found.append(
                HalfBackward(
                    name="feed-forward backward",
                    gone=merged(gone),
                    replay=again,
                    gradients=_feed_forward_gradients(job, layer),
                )
            )
            found.append(
                HalfBackward(
                    name="attention backward",
                    gone=merged((*gone, *feed_forward, *_projected(job, mixer))),
                    replay=later,
                    gradients=_mixer_gradients(job, layer),
                )
            )
        gone += (*feed_forward, *mixer)
    return tuple(found)


def _projected(job: TrainingJob, mixer: tuple[Kept, ...]) -> tuple[Kept, ...]:
    """What the output projection has used up when the attention itself goes backward."""
    if job.attention is not Backend.UNFUSED:
        return ()  # a fused kernel reads its own output in backward
    return tuple(tensor for tensor in mixer if tensor.tensor == "attention output")


def _first_chunk_tensors(job: TrainingJob) -> tuple[Kept, ...]:
    kept = loss.embedding_tensors(job)
    if job.vision is not None:
        if job.implementation is Implementation.UNFUSED and not job.vision.native:
            kept += _trained(unfused.vision_tensors(job, job.vision), False)
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


def _feed_forward_gradients(job: TrainingJob, layer: Layer) -> tuple[Kept, ...]:
    if job.implementation is Implementation.UNFUSED:
        return unfused.feed_forward_gradients(job, layer)
    if layer.feed_forward is FeedForward.EXPERTS:
        count = experts.backward_bytes(job)
        return (Kept(Component.EXPERTS, "gradients of an expert layer", "2*a*n*h+a*R*(h+3f)", count),)
    count = decoder.dense_backward_bytes(job, layer)
    return (Kept(Component.DECODER, "gradients of a dense part", "2*a*n*h+a*N*(1+2)*ffn/t", count),)


def _mixer_gradients(job: TrainingJob, layer: Layer) -> tuple[Kept, ...]:
    if job.implementation is Implementation.UNFUSED:
        return unfused.mixer_gradients(job)
    count = decoder.mixer_backward_bytes(job, layer)
    return (Kept(Component.DECODER, "gradients of attention", "2*a*n*h+inner", count),)


def _tower_backward(job: TrainingJob) -> tuple[Kept, ...]:
    if job.vision is None or job.frozen.vision:
        return ()
    count = vision.backward_bytes(job, job.vision)
    return (Kept(Component.VISION, "gradients of a vision block", "a*P*(2*vh+2*vf/t)+replay", count),)


def _merge(job: TrainingJob) -> tuple[Kept, ...]:
    count = loss.image_merge_bytes(job)
    name = "image and word embeddings"
    return (Kept(Component.EMBEDDING_AND_LOSS, name, "3*a*s*b*h", count),) if count else ()


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
