"""What one micro-batch costs in one virtual chunk: tensors kept, replayed and passing.

Here the tensors of layers, vision tower, embedding and loss are joined. What recompute makes of a
layer is treatments.py, its backward layer_backward.py; how many micro-batches coexist is pipeline.py,
when memory peaks is instants.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from memory_models import experts, loss, unfused, unfused_vision, vision
from memory_models.breakdown import Component
from memory_models.choices import MicroBatch, of_first_chunk, of_layers
from memory_models.job import Implementation
from memory_models.layer_backward import HalfBackward, backward_halves, held_gradients
from memory_models.placement import Place
from memory_models.shapes import FeedForward, Layer
from memory_models.tensors import NOTHING, Bundle, Half, Kept
from memory_models.treatments import (
    ENTERING,
    Halves,
    Treatment,
    counted,
    freed,
    layer_halves,
    outliving,
    stays_of,
    trained,
    treated_runs,
)


@dataclass(frozen=True, kw_only=True)
class ChunkActivations:
    """Tensors of one micro-batch in one chunk, those of equal layers summed."""

    kept: Bundle  #: from forward until backward
    routing: Bundle  #: the same for all micro-batches in flight: what dispatchers keep of the last
    decoder: Bundle  #: those of kept that the decoder's backward frees before the tower's begins
    pictures: Bundle  #: those of kept that tower and projector left
    forward: Bundle  #: within one layer's forward
    locals: Bundle  #: what the model's forward holds until it ends
    unreached: Bundle  #: those of kept that are not there yet then
    backward: tuple[HalfBackward, ...]  #: one for each half of each kind of layer, at the last such layer
    tower: Bundle  #: within one vision block's backward
    merged: Bundle  #: of kept, what embedding and last merger have used up by then
    held: Bundle  #: gradients that outlive the decoder's backward
    lasting: Bundle  #: those of kept that outlive it too
    merge: Bundle  #: while image embeddings are put among the words


def chunk_activations(job: MicroBatch, place: Place, *, final: bool) -> ChunkActivations:
    """What a micro-batch costs in a chunk; ``final`` for the last of its rank that holds layers."""
    runs = treated_runs(job, place.runs + place.prediction, final=final)
    plain = of_layers(job)
    halves = {treatment.layer: layer_halves(plain, treatment.layer) for treatment, _ in runs}
    stays = {treatment: stays_of(job, treatment, halves[treatment.layer]) for treatment, _ in runs}
    output = _output(job) if place.last else NOTHING
    layers = _entered(job, runs, stays) if place.first else counted(runs, stays)
    first = first_chunk_tensors(of_first_chunk(job)) if place.first else ()
    if job.implementation is Implementation.UNFUSED and any(treatment.full for treatment, _ in runs):
        first = (*first, unfused.rotary_angles(job))
    return ChunkActivations(
        kept=Bundle(layers) + output + Bundle.of(*first),
        routing=_routing(job, runs),
        decoder=Bundle([(freed(half), count) for half, count in layers]) + output,
        pictures=Bundle.of(*(t for t in first if t.component in (Component.VISION, Component.PROJECTOR))),
        forward=_layer_forward(job, runs[-1][0].layer) if runs else NOTHING,
        locals=_locals(job) if place.first else NOTHING,
        unreached=_unreached(job, stays[runs[-1][0]], output) if runs else NOTHING,
        backward=backward_halves(job, runs, halves, stays, output),
        tower=_tower_backward(job) if place.first else NOTHING,
        merged=_merged(job, first) if place.first else NOTHING,
        held=held_gradients(job, runs),
        lasting=Bundle([(lasting, count) for half, count in layers if (lasting := outliving(half)).tensors]),
        merge=_merge(job) if place.first else NOTHING,
    )


def _entered(
    job: MicroBatch, runs: list[tuple[Treatment, int]], stays: Mapping[Treatment, Halves]
) -> list[tuple[Half, int]]:
    """The same where the model begins: what the first layer reads belongs to the embedding."""
    if job.implementation is not Implementation.UNFUSED or not runs:
        return counted(runs, stays)
    (treatment, count), *others = runs
    mixer, feed_forward = stays[treatment]
    entering = Half(
        unfused.first_residual(job, tensor) if tensor.tensor in ENTERING else tensor
        for tensor in mixer.tensors
    )
    rest = [(treatment, count - 1), *others]
    return [(entering, 1), (feed_forward, 1), *counted(rest, stays)]


def _routing(job: MicroBatch, runs: list[tuple[Treatment, int]]) -> Bundle:
    if job.implementation is not Implementation.UNFUSED:
        return NOTHING
    return Bundle(
        (Half(unfused.routing_tensors(job, recomputed=treatment.full)), count)
        for treatment, count in runs
        if treatment.layer.feed_forward is FeedForward.EXPERTS
    )


def _output(job: MicroBatch) -> Bundle:
    unfused_job = job.implementation is Implementation.UNFUSED
    tensors = unfused.output_tensors(job) if unfused_job else loss.output_tensors(job)
    return Bundle.of(*trained(tensors, job.frozen.language))


@lru_cache(maxsize=2048)
def first_chunk_tensors(job: MicroBatch) -> tuple[Kept, ...]:
    if job.implementation is Implementation.UNFUSED:
        kept = trained(unfused.embedding_tensors(job), job.frozen.language)
    else:
        kept = loss.embedding_tensors(job)
    if job.vision is not None:
        if job.implementation is Implementation.UNFUSED and not job.vision.native:
            kept += unfused_vision.vision_tensors(job, job.vision)
        else:
            kept += vision.tower_tensors(job, job.vision)
            kept += trained(vision.projector_tensors(job, job.vision), job.frozen.projector)
    return kept


def _layer_forward(job: MicroBatch, layer: Layer) -> Bundle:
    if job.implementation is Implementation.UNFUSED:
        return Bundle.of(*unfused.forward_tensors(job))
    if layer.feed_forward is not FeedForward.EXPERTS:
        return NOTHING
    return Bundle.of(
        Kept(Component.EXPERTS, "dispatch and combine", "a*n*k*h+a*R*h", experts.exchange_bytes(job))
    )


def _locals(job: MicroBatch) -> Bundle:
    if job.implementation is not Implementation.UNFUSED:
        return NOTHING
    pictures = job.vision is not None and not job.vision.native
    seen = unfused_vision.forward_tensors(job, job.vision) if pictures and job.vision else ()
    return Bundle.of(*unfused.local_tensors(job), *seen)


def _unreached(job: MicroBatch, halves: Halves, output: Bundle) -> Bundle:
    """What comes after the widest point of the last layer's forward: unfused, that is its attention."""
    if job.implementation is not Implementation.UNFUSED:
        return NOTHING
    mixer, feed_forward = halves
    after = Half(tensor for tensor in mixer.tensors if tensor.tensor == "attention output")
    return Bundle([(after, 1), (freed(feed_forward), 1)]) + output


def _tower_backward(job: MicroBatch) -> Bundle:
    if job.vision is None or job.frozen.vision:
        return NOTHING
    if job.implementation is Implementation.UNFUSED and not job.vision.native:
        return Bundle.of(*unfused_vision.tower_gradients(job, job.vision))
    count = vision.backward_bytes(job, job.vision)
    return Bundle.of(Kept(Component.VISION, "gradients of a vision block", "a*P*(2*vh+2*vf/t)+replay", count))


def _merged(job: MicroBatch, first: Iterable[Kept]) -> Bundle:
    if job.implementation is not Implementation.UNFUSED or job.vision is None or job.vision.native:
        return NOTHING
    words = (tensor for tensor in first if tensor.component is Component.EMBEDDING_AND_LOSS)
    return Bundle.of(*words, *unfused_vision.passed_merger(job, job.vision))


def _merge(job: MicroBatch) -> Bundle:
    count = loss.image_merge_bytes(job)
    name = "image and word embeddings"
    return Bundle.of(Kept(Component.EMBEDDING_AND_LOSS, name, "3*a*s*b*h", count)) if count else NOTHING
