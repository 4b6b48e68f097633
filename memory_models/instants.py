"""The moments of a training step at which memory can peak, for one pipeline stage.

The peak is a maximum over these, never a sum (section 0 of the formulas page): a layer's
forward, the loss, a layer's backward with what it replays, the vision tower's backward, the
optimizer step; each also in the first step, when the optimizer has no moments yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from memory_models import loss
from memory_models.breakdown import Category, Component
from memory_models.calibration import Calibration
from memory_models.chunks import ChunkActivations, chunk_activations
from memory_models.fully_sharded import fsdp_parts
from memory_models.graph_pools import captured_names, pool_parts, pooled_bytes
from memory_models.job import CrossEntropy, Sharding, TrainingJob
from memory_models.layout import Chunk
from memory_models.parameters import stage_weights
from memory_models.pipeline import Flight, flights
from memory_models.runtime import runtime_parts
from memory_models.states import states
from memory_models.tensors import Instant, Kept, Part

#: Instants at which backward has passed every decoder layer of a micro-batch.
_LATE = frozenset({"vision backward", "end of backward"})


def stage_instants(job: TrainingJob, stage: int, calibration: Calibration) -> tuple[Instant, ...]:
    """Every instant of a step on a rank of this pipeline stage, the widest first."""
    weights = stage_weights(job, stage)
    held = states(job, weights)
    runtime = runtime_parts(job, stage, calibration)
    around = runtime + fsdp_parts(job, weights, late=False)
    at_the_end = runtime + fsdp_parts(job, weights, late=True)
    chunks = job.chunks[stage]
    holding = [chunk for chunk in chunks if chunk.layers or chunk.extra_prediction]
    activations = [chunk_activations(job, chunk, final=chunk in holding[-1:]) for chunk in chunks]
    layout = job.layout
    moments = flights(
        stages=layout.pipeline,
        rank=stage,
        chunks=len(chunks),
        microbatches=job.microbatches,
        group=layout.microbatch_group or layout.pipeline,
        overlap=job.routing.exchange_overlap,
    )
    widest: dict[str, tuple[int, tuple[Part, ...]]] = {}
    for flight in _fullest(moments, activations):
        for name, found in _moment(job, chunks, activations, flight):
            size = sum(part.bytes for part in found)
            if name not in widest or widest[name][0] < size:
                widest[name] = (size, (*(at_the_end if name in _LATE else around), *found))
    names = captured_names(job)
    pool = max((pooled_bytes(parts, names) for _, parts in widest.values()), default=0) if names else 0

    def graphs(parts: Iterable[Part]) -> tuple[Part, ...]:
        return pool_parts(pool, pooled_bytes(parts, names)) if names else ()

    instants = [
        Instant(name=name, first_step=False, parts=held.lasting + parts + graphs(parts))
        for name, (_, parts) in widest.items()
    ]
    # Graphs are captured after some steps, and the first lacks the moments too.
    instants += [
        Instant(name=name, first_step=True, parts=held.first + parts) for name, (_, parts) in widest.items()
    ]
    step = held.lasting + runtime + _step_parts(job, held.masters) + graphs(())
    instants.append(Instant(name="optimizer step", first_step=False, parts=step))
    instants.append(Instant(name="model build", first_step=True, parts=held.parameters + held.gradients))
    return tuple(sorted(instants, key=lambda instant: (-instant.total_bytes, instant.first_step)))


def _fullest(moments: tuple[Flight, ...], activations: list[ChunkActivations]) -> Iterable[Flight]:
    """Of the moments at which the same chunks begin, the one with the most bytes in flight.

    What else is alive then depends on those two chunks alone, so no other such moment can be wider.
    """
    if len(moments) == 1:
        return moments
    sizes = [sum(tensor.bytes for tensor in chunk.kept) for chunk in activations]
    best: dict[tuple[int, int], tuple[int, Flight]] = {}
    for flight in moments:
        held = sum(count * size for count, size in zip(flight.waiting, sizes, strict=True))
        pair = flight.forward, flight.backward
        if pair not in best or best[pair][0] < held:
            best[pair] = (held, flight)
    return [flight for _, flight in best.values()]


def _step_parts(job: TrainingJob, masters: tuple[Part, ...]) -> tuple[Part, ...]:
    """fp32 gradients of the optimizer's shard, which exist where gradients are reduced in 16 bits."""
    if job.precision.gradient_bytes >= 4 or not job.optimizer.master_bytes:
        return ()
    return tuple(
        Part(
            component=part.component,
            category=Category.TEMPORARY,
            tensor=f"fp32 gradient of {part.tensor}",
            formula=part.formula,
            bytes=part.bytes * 4 // job.optimizer.master_bytes,
        )
        for part in masters
    )


def _moment(
    job: TrainingJob, chunks: tuple[Chunk, ...], activations: list[ChunkActivations], flight: Flight
) -> Iterator[tuple[str, list[Part]]]:
    """The instants around one point of the pipeline schedule: (name, activations and temporaries)."""
    waiting = [
        _part(tensor, Category.ACTIVATIONS, count)
        for count, chunk in zip(flight.waiting, activations, strict=True)
        if count
        for tensor in chunk.kept
        if tensor.bytes
    ]
    entering = activations[flight.forward]
    yield "layer forward", waiting + _temporary(entering.forward)
    if entering.merge:
        others = [
            _part(tensor, Category.ACTIVATIONS, count - (index == flight.forward))
            for index, (count, chunk) in enumerate(zip(flight.waiting, activations, strict=True))
            for tensor in chunk.kept
            if count - (index == flight.forward) and tensor.bytes
        ]
        tower = [
            _part(tensor, Category.ACTIVATIONS, 1)
            for tensor in entering.kept
            if tensor.component in (Component.VISION, Component.PROJECTOR) and tensor.bytes
        ]
        yield "image embedding", others + tower + _temporary(entering.merge)
    leaving = activations[flight.backward]
    if chunks[flight.backward].last:
        kept, widest = loss.loss_bytes(job)
        depth = job.text.extra_prediction_layers
        logits = Part(
            component=Component.EMBEDDING_AND_LOSS,
            category=Category.TEMPORARY,
            tensor="logits, their softmax and gradient",
            formula=_loss_formula(job.cross_entropy),
            bytes=widest + kept * depth,
        )
        if job.deferred_embedding_gradient:
            count = job.layout.pipeline * job.precision.activation_bytes * loss.logit_elements(job)
            waiting.append(
                Part(
                    component=Component.EMBEDDING_AND_LOSS,
                    category=Category.TEMPORARY,
                    tensor="gradients of logits, deferred",
                    formula="p*a*q",
                    bytes=count,
                )
            )
        gathered = Part(
            component=Component.EMBEDDING_AND_LOSS,
            category=Category.TEMPORARY,
            tensor="gradient of the output layer's input",
            formula="a*N*h",
            bytes=job.precision.activation_bytes * job.tokens * job.text.hidden_size,
        )
        yield "loss", [*waiting, logits, gathered]
    for half in leaving.backward:
        replay = [_part(tensor, Category.ACTIVATIONS, 1) for tensor in half.replay if tensor.bytes]
        yield half.name, _without(waiting, half.gone) + replay + _temporary(half.gradients)
    if job.sharding in (Sharding.EVERYTHING, Sharding.STATES_GRADIENTS) and leaving.backward:
        # The activations have gone, but FSDP's gradients have piled up.
        rest = _without(waiting, leaving.decoder)
        yield "end of backward", rest + _temporary(leaving.backward[-1].gradients)
    if leaving.tower:
        # The decoder layers of this micro-batch have gone when the tower's turn comes.
        yield "vision backward", _without(waiting, leaving.decoder) + _temporary(leaving.tower)


def _without(parts: list[Part], gone: Iterable[Kept]) -> list[Part]:
    """The parts less the tensors of one micro-batch that are used up."""
    freed = {(tensor.component, tensor.tensor): tensor.bytes for tensor in gone}
    if not freed:
        return list(parts)
    rest: list[Part] = []
    for part in parts:
        count = freed.pop((part.component, part.tensor), 0)
        if not count:
            rest.append(part)
        elif part.bytes > count:
            rest.append(replace(part, bytes=part.bytes - count))
    return rest


def _loss_formula(implementation: CrossEntropy) -> str:
    return {
        CrossEntropy.UNFUSED: "(4+a)*q",
        CrossEntropy.NATIVE: "(8+a)*q",
        CrossEntropy.TRANSFORMER_ENGINE: "a*q",
        CrossEntropy.LINEAR: "0",
    }[implementation]


def _part(tensor: Kept, category: Category, count: int) -> Part:
    formula = tensor.formula if count == 1 else f"{count} in flight*({tensor.formula})"
    return Part(
        component=tensor.component,
        category=category,
        tensor=tensor.tensor,
        formula=formula,
        bytes=tensor.bytes * count,
    )


def _temporary(tensors: Iterable[Kept]) -> list[Part]:
    return [_part(tensor, Category.TEMPORARY, 1) for tensor in tensors if tensor.bytes]
