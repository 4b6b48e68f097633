"""The moments of a training step at which memory can peak, for one pipeline stage.

The peak is a maximum over these, never a sum (section 0 of the formulas page): a layer's
forward, the loss, a layer's backward with what it replays, the vision tower's backward, the
optimizer step; each also in the first step, when the optimizer has no moments yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from memory_models import loss, unfused_backward
from memory_models.breakdown import Category, Component
from memory_models.choices import HasMicroBatch, MicroBatch
from memory_models.chunks import ChunkActivations, chunk_activations
from memory_models.graph_pools import captured_names, pooled_bytes
from memory_models.job import CrossEntropy, Implementation
from memory_models.pipeline import Flight
from memory_models.placement import Place
from memory_models.runtime import working_parts
from memory_models.tensors import NOTHING, Bundle, Kept, Part

#: Instants at which backward has passed every decoder layer of a micro-batch.
LATE = frozenset({"vision backward", "end of backward"})


@dataclass(frozen=True, kw_only=True)
class Moment:
    """What micro-batches have alive at one moment of the schedule."""

    name: str
    #: micro-batches, and what each of them keeps; one entry a virtual chunk
    waiting: tuple[tuple[int, Bundle], ...]
    leaving: int = 0  #: the entry of waiting of which a micro-batch is being made or given back
    gone: Bundle = NOTHING  #: of that micro-batch, not made yet or used up already
    replay: Bundle = NOTHING  #: computed again, or kept for the loss
    passing: Bundle = NOTHING  #: alive within one operation, layer or phase only

    @property
    def bytes(self) -> int:
        held = sum([count * bundle.bytes for count, bundle in self.waiting])
        return held - self.gone.bytes + self.replay.bytes + self.passing.bytes

    def parts(self) -> Iterator[Part]:
        """The same by name."""
        for index, (count, bundle) in enumerate(self.waiting):
            freed = {}
            if index == self.leaving:
                freed = {(tensor.component, tensor.tensor): tensor.bytes for tensor in self.gone.tensors}
            for tensor in bundle.tensors if count else ():
                part = tensor.part(Category.ACTIVATIONS, count)
                used = freed.get((tensor.component, tensor.tensor), 0)
                if part.bytes > used:
                    yield part if not used else replace(part, bytes=part.bytes - used)
        for tensor in self.replay.tensors:
            yield tensor.part(Category.ACTIVATIONS)
        for tensor in self.passing.tensors:
            yield tensor.part(Category.TEMPORARY)


class Stage(NamedTuple):
    """What a pipeline stage holds, and when: stages that agree in this cost the same."""

    chunks: tuple[Place, ...]
    moments: tuple[Flight, ...]  #: of its schedule
    neighbours: int  #: stages that it exchanges messages with


@dataclass(frozen=True, kw_only=True)
class StageActivations:
    """What micro-batches add on a rank of one stage, at the widest moment of each name."""

    moments: tuple[Moment, ...]
    #: of the CUDA graphs' pool, what nobody needs at each moment
    idle_bytes: tuple[int, ...]
    pool_bytes: int
    #: of the widest moment, idle pool included, before the decoder's backward has ended and after
    early_bytes: int
    late_bytes: int
    around: tuple[Part, ...]  #: workspaces and messages, at every moment
    around_bytes: int
    after: tuple[Part, ...]  #: what the last micro-batch leaves until the next one comes
    after_bytes: int


@lru_cache(maxsize=4096)
def stage_activations(job: MicroBatch, stage: Stage) -> StageActivations:
    """The widest moments of a stage."""
    chunks = stage.chunks
    holding = [index for index, place in enumerate(chunks) if place.runs or place.prediction]
    activations = [
        chunk_activations(job, place, final=index in holding[-1:]) for index, place in enumerate(chunks)
    ]
    names = captured_names(job)
    pool = 0
    # What is captured is there at every moment, in the pool: the widest moment has most beside it.
    widest: dict[str, tuple[int, Moment, int]] = {}
    for flight in _fullest(stage.moments, activations):
        for moment in _moments(job, chunks, activations, flight):
            pooled = pooled_bytes(moment.parts(), names) if names else 0
            pool, beside = max(pool, pooled), moment.bytes - pooled
            if moment.name not in widest or widest[moment.name][0] < beside:
                widest[moment.name] = (beside, moment, pooled)
    sizes = [(name in LATE, beside + pool) for name, (beside, _, _) in widest.items()]
    around = working_parts(job, stage.neighbours, first=any(place.first for place in chunks))
    after = tuple(part for chunk in activations for part in _left(chunk))
    return StageActivations(
        moments=tuple(moment for _, moment, _ in widest.values()),
        idle_bytes=tuple(pool - pooled for _, _, pooled in widest.values()),
        pool_bytes=pool,
        early_bytes=max((size for late, size in sizes if not late), default=0),
        late_bytes=max((size for late, size in sizes if late), default=0),
        around=around,
        around_bytes=sum([part.bytes for part in around]),
        after=after,
        after_bytes=sum([part.bytes for part in after]),
    )


def _left(chunk: ChunkActivations) -> Iterator[Part]:
    for bundle in (chunk.routing, chunk.lasting):
        yield from (tensor.part(Category.ACTIVATIONS) for tensor in bundle.tensors)
    yield from (tensor.part(Category.TEMPORARY) for tensor in chunk.held.tensors)


def _fullest(moments: tuple[Flight, ...], activations: Sequence[ChunkActivations]) -> Iterable[Flight]:
    """Of the moments at which the same chunks begin, the one with the most bytes in flight.

    What else is alive then depends on those two chunks alone, so no other such moment can be wider.
    """
    if len(moments) == 1:
        return moments
    sizes = [chunk.kept.bytes for chunk in activations]
    best: dict[tuple[int, int], tuple[int, Flight]] = {}
    for flight in moments:
        held = sum(count * size for count, size in zip(flight.waiting, sizes, strict=True))
        pair = flight.forward, flight.backward
        if pair not in best or best[pair][0] < held:
            best[pair] = (held, flight)
    return [flight for _, flight in best.values()]


def _moments(
    job: MicroBatch, chunks: tuple[Place, ...], activations: Sequence[ChunkActivations], flight: Flight
) -> Iterator[Moment]:
    """The moments around one point of the pipeline schedule."""
    in_flight = tuple((count, chunk.kept) for count, chunk in zip(flight.waiting, activations, strict=True))
    waiting = in_flight + tuple((1, chunk.routing) for chunk in activations if chunk.routing.bytes)
    entering, leaving = activations[flight.forward], activations[flight.backward]
    unfused = job.implementation is Implementation.UNFUSED
    mask = Bundle.of(unfused_backward.loss_mask(job)) if unfused and chunks[flight.forward].last else NOTHING
    yield Moment(
        name="layer forward",
        waiting=waiting,
        leaving=flight.forward,
        gone=entering.unreached,
        replay=mask,
        passing=entering.forward + entering.locals,
    )
    if entering.merge is not NOTHING:
        others = [
            (count - (index == flight.forward), bundle) for index, (count, bundle) in enumerate(waiting)
        ]
        pictures = (1, entering.pictures)
        yield Moment(name="image embedding", waiting=(*others, pictures), passing=entering.merge)
    deferred = NOTHING
    if chunks[flight.backward].last:
        deferred = _deferred_gradients(job)
        if unfused:
            kept = Bundle.of(*unfused_backward.loss_kept(job))
            logits = Bundle.of(*unfused_backward.loss_forward(job)) + leaving.locals
            yield Moment(name="loss", waiting=waiting, replay=kept + mask, passing=logits)
            gradients = Bundle.of(*unfused_backward.loss_gradients(job)) + deferred
            yield Moment(name="loss", waiting=waiting, replay=kept, passing=gradients)
        else:
            yield Moment(name="loss", waiting=waiting, passing=_logits(job) + deferred)
    alone = flight.waiting[flight.backward] == 1
    for half in leaving.backward:
        yield Moment(
            name=half.name,
            waiting=waiting,
            leaving=flight.backward,
            gone=half.gone if alone else half.gone + half.relieved,
            replay=half.replay,
            passing=half.gradients + deferred,
        )
    if job.gathers_gradients and leaving.backward:
        # The activations have gone, but FSDP's gradients have piled up.
        yield Moment(
            name="end of backward",
            waiting=waiting,
            leaving=flight.backward,
            gone=leaving.decoder,
            passing=leaving.backward[-1].gradients + deferred,
        )
    if leaving.tower is not NOTHING:
        # The decoder layers of this micro-batch have gone when the tower's turn comes.
        yield Moment(
            name="vision backward",
            waiting=waiting,
            leaving=flight.backward,
            gone=leaving.decoder + leaving.merged,
            passing=leaving.tower + leaving.held + deferred,
        )


def _logits(job: HasMicroBatch) -> Bundle:
    kept, widest = loss.loss_bytes(job)
    depth = job.text.extra_prediction_layers
    logits = widest + kept * depth
    gathered = job.precision.activation_bytes * job.tokens * job.text.hidden_size
    part = Component.EMBEDDING_AND_LOSS
    return Bundle.of(
        Kept(part, "logits, their softmax and gradient", _LOSS_FORMULAS[job.cross_entropy], logits),
        Kept(part, "gradient of the output layer's input", "a*N*h", gathered),
    )


def _deferred_gradients(job: HasMicroBatch) -> Bundle:
    """What waits for the weight gradients of the output layer, which are made when the pipeline empties."""
    if not job.deferred_embedding_gradient:
        return NOTHING
    count = job.layout.pipeline * job.precision.activation_bytes * loss.logit_elements(job)
    return Bundle.of(Kept(Component.EMBEDDING_AND_LOSS, "gradients of logits, deferred", "p*a*q", count))


_LOSS_FORMULAS = {
    CrossEntropy.UNFUSED: "(4+a)*q",
    CrossEntropy.NATIVE: "(8+a)*q",
    CrossEntropy.TRANSFORMER_ENGINE: "a*q",
    CrossEntropy.LINEAR: "0",
}
