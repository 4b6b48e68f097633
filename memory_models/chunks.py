"""What one micro-batch costs in one virtual chunk: tensors kept, replayed and passing.

Here the tensors of layers, vision tower, embedding and loss are joined, with recompute and
frozen parts applied. How many micro-batches coexist is pipeline.py, when memory peaks is
instants.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from memory_models import decoder, experts, loss, unfused, vision
from memory_models.adapters import inputs_kept
from memory_models.breakdown import Component
from memory_models.choices import MicroBatch, of_layers
from memory_models.job import Backend, Granularity, Implementation
from memory_models.placement import Place, Runs
from memory_models.shapes import FeedForward, Layer
from memory_models.tensors import NOTHING, Bundle, Half, Kept


@dataclass(frozen=True, kw_only=True)
class HalfBackward:
    """The backward pass of half a layer: what has gone by then, what is computed again, what passes."""

    name: str
    gone: Bundle  #: kept tensors of this micro-batch that later halves have used up
    replay: Bundle
    gradients: Bundle


@dataclass(frozen=True, kw_only=True)
class ChunkActivations:
    """Tensors of one micro-batch in one chunk, those of equal layers summed."""

    kept: Bundle  #: from forward until backward
    decoder: Bundle  #: those of kept that the decoder's backward frees before the tower's begins
    pictures: Bundle  #: those of kept that tower and projector left
    forward: Bundle  #: within one layer's forward
    backward: tuple[HalfBackward, ...]  #: one for each half of each kind of layer, at the last such layer
    tower: Bundle  #: within one vision block's backward
    merge: Bundle  #: while image embeddings are put among the words


class _Treatment(NamedTuple):
    """What recompute and offload make of the layer at some position; layers alike are treated alike."""

    layer: Layer
    full: bool  #: recomputed from its input, or its group's
    first: bool  #: of its group, whose input is kept
    offloaded: bool  #: the inputs of some modules wait in the host's memory
    away: bool  #: all of it waits there


_Halves = tuple[Half, Half]
_EMPTY = Half(())


def chunk_activations(job: MicroBatch, place: Place, *, final: bool) -> ChunkActivations:
    """What a micro-batch costs in a chunk; ``final`` for the last of its rank that holds layers."""
    runs = _runs(job, place.runs + place.prediction, final=final)
    plain = of_layers(job)
    halves = {treatment.layer: layer_halves(plain, treatment.layer) for treatment, _ in runs}
    stays = {treatment: _stays(job, treatment, halves[treatment.layer]) for treatment, _ in runs}
    output = Bundle.of(*_trained(loss.output_tensors(job), job.frozen.language)) if place.last else NOTHING
    freed_first = Bundle(_counted(runs, stays)) + output
    first = _first_chunk_tensors(job) if place.first else ()
    return ChunkActivations(
        kept=freed_first + Bundle.of(*first),
        decoder=freed_first,
        pictures=Bundle.of(*(t for t in first if t.component in (Component.VISION, Component.PROJECTOR))),
        forward=_layer_forward(job, runs[-1][0].layer) if runs else NOTHING,
        backward=_backward_halves(job, runs, halves, stays, output),
        tower=_tower_backward(job) if place.first else NOTHING,
        merge=_merge(job) if place.first else NOTHING,
    )


def _runs(job: MicroBatch, layers: Runs, *, final: bool) -> list[tuple[_Treatment, int]]:
    """The layers in order, those that follow each other and are treated alike as one run."""
    count = sum(many for _, many in layers)
    full = job.recompute.granularity is Granularity.FULL
    recomputed = (count if job.recompute.method == "uniform" else job.recompute.layers) if full else 0
    group = _group(job, count)
    # Positions at which the treatment can change.
    cuts = {0, count, recomputed, job.offloaded_layers}
    if job.offload and final:
        cuts.add(count - 1)
    if full and group > 1:
        cuts.update(range(0, count, group), range(1, count, group))
    starts: dict[int, Layer] = {}
    so_far = 0
    for layer, many in layers:
        starts[so_far] = layer
        so_far += many
    cuts.update(starts)
    runs: list[tuple[_Treatment, int]] = []
    for position, end in pairwise(sorted(cut for cut in cuts if 0 <= cut <= count)):
        layer = starts.get(position, layer)
        again = position < recomputed
        treatment = _Treatment(
            layer=layer,
            full=again,
            first=again and position % group == 0,
            offloaded=bool(job.offload) and not (final and position == count - 1),
            away=position < job.offloaded_layers,
        )
        runs.append((treatment, end - position))
    return runs


def _counted(
    runs: list[tuple[_Treatment, int]], stays: Mapping[_Treatment, _Halves]
) -> list[tuple[Half, int]]:
    """What stays of these layers, with how many of them are alike."""
    return [(half, count) for treatment, count in runs for half in stays[treatment]]


@lru_cache(maxsize=2048)
def layer_halves(job: MicroBatch, layer: Layer) -> _Halves:
    """What mixer and feed-forward part keep with no recompute, less what only frozen weights need."""
    if job.implementation is Implementation.UNFUSED:
        mixer, feed_forward = unfused.mixer_tensors(job, layer), unfused.feed_forward_tensors(job, layer)
    else:
        mixer, feed_forward = decoder.mixer_tensors(job, layer), ()
        if layer.feed_forward is FeedForward.DENSE:
            feed_forward = decoder.dense_tensors(job)
        elif layer.feed_forward is FeedForward.EXPERTS:
            feed_forward = decoder.expert_norm_tensors(job) + experts.expert_tensors(job)
    return Half(_needed(job, layer, mixer)), Half(_needed(job, layer, feed_forward))


def _needed(job: MicroBatch, layer: Layer, tensors: Iterable[Kept]) -> tuple[Kept, ...]:
    """Without what only frozen weights need, but with what their adapters do."""
    if job.adapters is None:
        return _trained(tensors, job.frozen.language)
    kept: list[Kept] = []
    for tensor in tensors:
        kept += inputs_kept(job, layer, tensor) if tensor.for_weight else (tensor,)
    return tuple(kept)


def _trained(tensors: Iterable[Kept], frozen: bool) -> tuple[Kept, ...]:
    return tuple(tensor for tensor in tensors if not (frozen and tensor.for_weight))


def _group(job: MicroBatch, layers: int) -> int:
    """Layers that full recompute replays at once."""
    return max(1, min(job.recompute.layers, layers)) if job.recompute.method == "uniform" else 1


def _stays(job: MicroBatch, treatment: _Treatment, halves: _Halves) -> _Halves:
    """What of a layer's halves waits on the GPU for backward."""
    if treatment.away:
        return _EMPTY, _EMPTY
    if treatment.full:
        sparse = treatment.layer.feed_forward is FeedForward.EXPERTS
        on_gpu = job.implementation is not Implementation.UNFUSED
        return (
            Half([_checkpoint_input(job)] if treatment.first else ()),
            Half(experts.retained_rows(job) if sparse and on_gpu else ()),
        )
    away = job.offload if treatment.offloaded else frozenset()
    if job.recompute.granularity is Granularity.NONE and not away:
        return halves

    def stay(half: Half) -> Half:
        return Half(
            tensor
            for tensor in half.tensors
            if not _dropped(job, treatment.layer, tensor) and tensor.offload not in away
        )

    mixer, feed_forward = halves
    return stay(mixer), stay(feed_forward)


def _dropped(job: MicroBatch, layer: Layer, tensor: Kept) -> bool:
    """Whether selective recompute drops it; ``moe`` is all of the experts, ``mlp`` dense layers only."""
    experts_only = layer.feed_forward is FeedForward.EXPERTS and tensor.component is Component.EXPERTS
    if experts_only and job.recompute.drops("moe"):
        return True
    return bool(tensor.module) and job.recompute.drops(tensor.module)


def _replayed(job: MicroBatch, layer: Layer, half: Half) -> Half:
    """What selective recompute makes again of it."""
    if job.recompute.granularity is not Granularity.SELECTIVE:
        return _EMPTY
    return Half(tensor for tensor in half.tensors if _dropped(job, layer, tensor))


def _checkpoint_input(job: MicroBatch) -> Kept:
    stream = job.residual_tokens * job.text.hidden_size * job.text.residual_streams
    count = job.precision.activation_bytes * stream
    return Kept(Component.DECODER, "checkpoint input", "a*n*h", count)


def _backward_halves(
    job: MicroBatch,
    runs: list[tuple[_Treatment, int]],
    halves: Mapping[Layer, _Halves],
    stays: Mapping[_Treatment, _Halves],
    output: Bundle,
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
            again = [(_replayed(job, layer, feed_forward), 1)]
            later = [(_replayed(job, layer, mixer), 1)]
        gone = Bundle(_counted(runs[position + 1 :], stays)) + output
        kept_mixer, kept_feed_forward = stays[treatment]
        found.append(
            HalfBackward(
                name="feed-forward backward",
                gone=gone,
                replay=Bundle(again),
                gradients=_feed_forward_gradients(job, layer),
            )
        )
        found.append(
            HalfBackward(
                name="attention backward",
                gone=gone + Bundle([(kept_feed_forward, 1), (_projected(job, kept_mixer), 1)]),
                replay=Bundle(later),
                gradients=_mixer_gradients(job, layer),
            )
        )
    return tuple(found)


def _projected(job: MicroBatch, mixer: Half) -> Half:
    """What the output projection has used up when the attention itself goes backward."""
    if job.attention is not Backend.UNFUSED:
        return _EMPTY  # a fused kernel reads its own output in backward
    return Half(tensor for tensor in mixer.tensors if tensor.tensor == "attention output")


def _first_chunk_tensors(job: MicroBatch) -> tuple[Kept, ...]:
    kept = loss.embedding_tensors(job)
    if job.vision is not None:
        if job.implementation is Implementation.UNFUSED and not job.vision.native:
            kept += _trained(unfused.vision_tensors(job, job.vision), False)
        else:
            kept += vision.tower_tensors(job, job.vision)
            kept += _trained(vision.projector_tensors(job, job.vision), job.frozen.projector)
    return kept


def _layer_forward(job: MicroBatch, layer: Layer) -> Bundle:
    if job.implementation is Implementation.UNFUSED:
        return Bundle.of(*unfused.forward_tensors(job))
    if layer.feed_forward is not FeedForward.EXPERTS:
        return NOTHING
    return Bundle.of(
        Kept(Component.EXPERTS, "dispatch and combine", "a*n*k*h+a*R*h", experts.exchange_bytes(job))
    )


def _feed_forward_gradients(job: MicroBatch, layer: Layer) -> Bundle:
    if job.implementation is Implementation.UNFUSED:
        return Bundle.of(*unfused.feed_forward_gradients(job, layer))
    if layer.feed_forward is FeedForward.EXPERTS:
        count = experts.backward_bytes(job)
        return Bundle.of(Kept(Component.EXPERTS, "gradients of an expert layer", "2*a*n*h+a*R*(h+3f)", count))
    count = decoder.dense_backward_bytes(job, layer)
    return Bundle.of(Kept(Component.DECODER, "gradients of a dense part", "2*a*n*h+a*N*(1+2)*ffn/t", count))


def _mixer_gradients(job: MicroBatch, layer: Layer) -> Bundle:
    if job.implementation is Implementation.UNFUSED:
        return Bundle.of(*unfused.mixer_gradients(job))
    count = decoder.mixer_backward_bytes(job, layer)
    return Bundle.of(Kept(Component.DECODER, "gradients of attention", "2*a*n*h+inner", count))


def _tower_backward(job: MicroBatch) -> Bundle:
    if job.vision is None or job.frozen.vision:
        return NOTHING
    count = vision.backward_bytes(job, job.vision)
    return Bundle.of(Kept(Component.VISION, "gradients of a vision block", "a*P*(2*vh+2*vf/t)+replay", count))


def _merge(job: MicroBatch) -> Bundle:
    count = loss.image_merge_bytes(job)
    name = "image and word embeddings"
    return Bundle.of(Kept(Component.EMBEDDING_AND_LOSS, name, "3*a*s*b*h", count)) if count else NOTHING
