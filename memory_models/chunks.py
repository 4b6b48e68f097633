"""What one micro-batch costs in one virtual chunk: tensors kept, replayed and passing.

Here the tensors of layers, vision tower, embedding and loss are joined, with recompute and
frozen parts applied. How many micro-batches coexist is pipeline.py, when memory peaks is
instants.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from memory_models import decoder, experts, loss, unfused, vision
from memory_models.adapters import inputs_kept
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


@dataclass(frozen=True)
class _Treatment:
    """What recompute and offload make of the layer at some position; layers alike are treated alike."""

    layer: Layer
    full: bool  #: recomputed from its input, or its group's
    first: bool  #: of its group, whose input is kept
    offloaded: bool  #: the inputs of some modules wait in the host's memory
    away: bool  #: all of it waits there


_Halves = tuple[tuple[Kept, ...], tuple[Kept, ...]]


def chunk_activations(job: TrainingJob, chunk: Chunk, *, final: bool) -> ChunkActivations:
    """What a micro-batch costs in ``chunk``; ``final`` for the last virtual chunk of its rank."""
    layers = [job.text.layers[index] for index in chunk.layers]
    if chunk.extra_prediction:
        layers += [job.text.layers[-1]] * job.text.extra_prediction_layers
    runs = _runs(job, layers, final=final)
    halves = {treatment.layer: layer_halves(job, treatment.layer) for treatment, _ in runs}
    stays = {treatment: _stays(job, treatment, halves[treatment.layer]) for treatment, _ in runs}
    output = _trained(loss.output_tensors(job), job.frozen.language) if chunk.last else ()
    freed_first = merged([*_counted(runs, stays), (output, 1)])
    first = _first_chunk_tensors(job) if chunk.first else ()
    return ChunkActivations(
        kept=freed_first + merged([(first, 1)]),
        decoder=freed_first,
        forward=_layer_forward(job, layers[-1]) if layers else (),
        backward=_backward_halves(job, runs, halves, stays, output),
        tower=_tower_backward(job) if chunk.first else (),
        merge=_merge(job) if chunk.first else (),
    )


def _runs(job: TrainingJob, layers: list[Layer], *, final: bool) -> list[tuple[_Treatment, int]]:
    """The layers in order, those that follow each other and are treated alike as one run."""
    recompute, count = job.recompute, len(layers)
    full = recompute.granularity is Granularity.FULL
    recomputed = count if recompute.method == "uniform" else recompute.layers
    group = _group(job, count)
    runs: list[tuple[_Treatment, int]] = []
    before: tuple[Layer, bool, bool, bool, bool] | None = None
    for position, layer in enumerate(layers):
        kind = (
            layer,
            full and position < recomputed,
            position % group == 0,
            bool(job.offload) and not (final and position == count - 1),
            position < job.offloaded_layers,
        )
        if before is not None and layer is before[0] and kind[1:] == before[1:]:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((_Treatment(*kind), 1))
        before = kind
    return runs


def _counted(
    runs: list[tuple[_Treatment, int]], stays: Mapping[_Treatment, _Halves]
) -> list[tuple[tuple[Kept, ...], int]]:
    """What stays of these layers, with how many of them are alike."""
    return [(half, count) for treatment, count in runs for half in stays[treatment]]


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
    return _needed(job, layer, mixer), _needed(job, layer, feed_forward)


def _needed(job: TrainingJob, layer: Layer, tensors: Iterable[Kept]) -> tuple[Kept, ...]:
    """Without what only frozen weights need, but with what their adapters do."""
    if job.adapters is None:
        return _trained(tensors, job.frozen.language)
    kept: list[Kept] = []
    for tensor in tensors:
        kept += inputs_kept(job, layer, tensor) if tensor.for_weight else (tensor,)
    return tuple(kept)


def _trained(tensors: Iterable[Kept], frozen: bool) -> tuple[Kept, ...]:
    return tuple(tensor for tensor in tensors if not (frozen and tensor.for_weight))


def _group(job: TrainingJob, layers: int) -> int:
    """Layers that full recompute replays at once."""
    return min(job.recompute.layers, layers) if job.recompute.method == "uniform" else 1


def _stays(job: TrainingJob, treatment: _Treatment, halves: _Halves) -> _Halves:
    """What of a layer's halves waits on the GPU for backward."""
    if treatment.away:
        return (), ()
    if treatment.full:
        sparse = treatment.layer.feed_forward is FeedForward.EXPERTS
        on_gpu = job.implementation is not Implementation.UNFUSED
        return (
            ((_checkpoint_input(job),) if treatment.first else ()),
            (experts.retained_rows(job) if sparse and on_gpu else ()),
        )

    def stay(half: tuple[Kept, ...]) -> tuple[Kept, ...]:
        away = job.offload if treatment.offloaded else frozenset()
        return tuple(
            tensor
            for tensor in half
            if not _dropped(job, treatment.layer, tensor) and tensor.offload not in away
        )

    mixer, feed_forward = halves
    return stay(mixer), stay(feed_forward)


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
    runs: list[tuple[_Treatment, int]],
    halves: Mapping[Layer, _Halves],
    stays: Mapping[_Treatment, _Halves],
    output: tuple[Kept, ...],
) -> tuple[HalfBackward, ...]:
    """Backward goes from the last layer to the first: the last of each kind meets the most kept tensors."""
    found: list[HalfBackward] = []
    layers = sum(count for _, count in runs)
    last = {treatment: position for position, (treatment, _) in enumerate(runs)}
    for treatment, position in last.items():
        layer = treatment.layer
        mixer, feed_forward = halves[layer]
        if treatment.full:
            group = _group(job, layers)
            again = [(mixer, group), (feed_forward, group)]
            later = [(mixer, group), (feed_forward, group - 1)]
        elif treatment.away:  # comes back before its backward
            again, later = [(mixer, 1), (feed_forward, 1)], [(mixer, 1)]
        else:
            again = [(tuple(tensor for tensor in feed_forward if _dropped(job, layer, tensor)), 1)]
            later = [(tuple(tensor for tensor in mixer if _dropped(job, layer, tensor)), 1)]
        gone = [*_counted(runs[position + 1 :], stays), (output, 1)]
        kept_mixer, kept_feed_forward = stays[treatment]
        found.append(
            HalfBackward(
                name="feed-forward backward",
                gone=merged(gone),
                replay=merged(again),
                gradients=_feed_forward_gradients(job, layer),
            )
        )
        found.append(
            HalfBackward(
                name="attention backward",
                gone=merged([*gone, (kept_feed_forward, 1), (_projected(job, kept_mixer), 1)]),
                replay=merged(later),
                gradients=_mixer_gradients(job, layer),
            )
        )
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


def merged(tensors: Iterable[tuple[tuple[Kept, ...], int]]) -> tuple[Kept, ...]:
    """One entry for each kind of tensor, out of groups of tensors and how often each group is there."""
    sums: dict[tuple[Component, str], list[int]] = {}
    formulas: dict[tuple[Component, str], str] = {}
    for group, count in tensors:
        for tensor in group:
            key = (tensor.component, tensor.tensor)
            entry = sums.get(key)
            if entry is None:
                sums[key] = [tensor.bytes * count, count]
                formulas[key] = tensor.formula
            else:
                entry[0] += tensor.bytes * count
                entry[1] += count
    return tuple(
        Kept(*key, formulas[key] if times == 1 else f"{times}*({formulas[key]})", total)
        for key, (total, times) in sums.items()
        if times
    )
