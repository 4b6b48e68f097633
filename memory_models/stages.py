"""One pipeline stage: what its ranks hold, what micro-batches add, and the peak of both together.

A search asks for the peak in bytes, which is a few sums over tables that many jobs share; an answer asks
for the instants, each with every part named.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from memory_models.breakdown import Category
from memory_models.choices import Holding, MicroBatch
from memory_models.fully_sharded import fsdp_parts
from memory_models.graph_pools import pool_parts
from memory_models.instants import LATE, Stage, StageActivations, stage_activations
from memory_models.job import Implementation
from memory_models.parameters import weights_of
from memory_models.placement import Place
from memory_models.runtime import dummy_gradients
from memory_models.states import Share, States, states
from memory_models.tensors import Instant, Part
from memory_models.unfused_step import step_part


@dataclass(frozen=True, kw_only=True)
class StageStates:
    """What a rank of a stage holds whatever the batch, by name and in bytes."""

    states: States
    dummies: tuple[Part, ...]
    early: tuple[Part, ...]  #: FSDP's buffers until backward has passed the decoder
    late: tuple[Part, ...]  #: and when it has
    step: tuple[Part, ...]  #: within the optimizer's step
    lasting_bytes: int  #: states from the second step on, and dummies
    early_bytes: int
    late_bytes: int
    step_bytes: int
    build_bytes: int


@lru_cache(maxsize=4096)
def stage_states(job: Holding, chunks: tuple[Place, ...]) -> StageStates:
    """Raises ValueError where a size does not divide over its ranks, as the real code would refuse."""
    weights = weights_of(job, chunks)
    held = states(job, weights)
    layers = dict.fromkeys(layer for place in chunks for layer, _ in place.runs)
    dummies = dummy_gradients(job, layers)
    early, late = fsdp_parts(job, weights, late=False), fsdp_parts(job, weights, late=True)
    step = _step_parts(job, held.masters)
    if job.implementation is Implementation.UNFUSED:
        step += (step_part(job, chunks, weights),)
    return StageStates(
        states=held,
        dummies=dummies,
        early=early,
        late=late,
        step=step,
        lasting_bytes=total(held.lasting) + total(dummies),
        early_bytes=total(early),
        late_bytes=total(late),
        step_bytes=total(step),
        build_bytes=total(held.parameters + held.gradients),
    )


def _step_parts(job: Holding, masters: tuple[Share, ...]) -> tuple[Part, ...]:
    """fp32 gradients of the optimizer's shard, which exist where gradients are reduced in 16 bits."""
    width = job.optimizer.master_bytes
    if job.precision.gradient_bytes >= 4 or not width:
        return ()
    gradients = (
        share._replace(category=Category.TEMPORARY, width=4, bytes=share.bytes * 4 // width)
        for share in masters
    )
    return tuple(
        replace(share.part(), tensor=f"fp32 gradient of {share.weights.name}") for share in gradients
    )


@dataclass(frozen=True, kw_only=True)
class StageMemory:
    """The whole of one stage."""

    held: StageStates
    activations: StageActivations
    fitted: tuple[Part, ...]  #: what no formula counts
    peak_bytes: int  #: of the widest instant

    def instants(self) -> tuple[Instant, ...]:
        """Every instant of a step on a rank of this stage, the widest first."""
        held, found = self.held, self.activations
        around = held.dummies + found.around + self.fitted
        built = named(held.states.parameters + held.states.gradients)
        first = built + named(held.states.masters)
        lasting = first + named(held.states.moments)
        instants: list[Instant] = []
        for moment, idle in zip(found.moments, found.idle_bytes, strict=True):
            buffers = held.late if moment.name in LATE else held.early
            parts = (*around, *buffers, *moment.parts())
            instants += [
                Instant(name=moment.name, first_step=False, parts=lasting + parts + pool_parts(idle)),
                # Graphs are captured after some steps, and the first lacks the moments too.
                Instant(name=moment.name, first_step=True, parts=first + parts),
            ]
        step = lasting + around + found.after + held.step + pool_parts(found.pool_bytes)
        instants += [
            Instant(name="optimizer step", first_step=False, parts=step),
            Instant(name="model build", first_step=True, parts=built),
        ]
        return tuple(sorted(instants, key=lambda instant: (-instant.total_bytes, instant.first_step)))


def stage_memory(
    states_of: Holding, micro: MicroBatch, stage: Stage, fitted: tuple[Part, ...]
) -> StageMemory:
    """What a rank of this stage needs; ``fitted`` is what no formula counts."""
    held = stage_states(states_of, stage.chunks)
    found = stage_activations(micro, stage)
    # From the second step on there are moments and graph pools, so no instant of the first is wider.
    busy = max(
        found.early_bytes + held.early_bytes,
        found.late_bytes + held.late_bytes,
        held.step_bytes + found.after_bytes + found.pool_bytes,
    )
    around = found.around_bytes + total(fitted)
    peak = max(held.lasting_bytes + around + busy, held.build_bytes)
    return StageMemory(held=held, activations=found, fitted=fitted, peak_bytes=peak)


def named(shares: Iterable[Share]) -> tuple[Part, ...]:
    """Those that have bytes, as parts of an estimate."""
    return tuple(share.part() for share in shares if share.bytes)


def total(found: Iterable[Part | Share]) -> int:
    return sum([each.bytes for each in found])
