"""The answer: what a job needs on every pipeline rank, and which rank needs most.

``estimate`` is the entrance; the formulas live in the modules that instants.py joins.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import hypot
from typing import Any

from memory_models.breakdown import Category, Component, MemoryBreakdown
from memory_models.calibration import DEFAULT, Band, Calibration
from memory_models.choices import holding, micro_batch
from memory_models.distributions import HIGH, LOW, Unknowns
from memory_models.flat_buffers import apportioned, shard_elements
from memory_models.graph_pools import warm_up_bytes
from memory_models.instants import Stage
from memory_models.job import Capture, Implementation, Sharding, TrainingJob
from memory_models.pipeline import flights
from memory_models.placement import places
from memory_models.runtime import fitted_parts, outside_bytes
from memory_models.shapes import Mixer
from memory_models.stages import StageMemory, stage_memory
from memory_models.tensors import Instant, Part


@dataclass(frozen=True, kw_only=True)
class RankEstimate:
    """One pipeline stage; all ranks of a stage are alike but for the data they see."""

    stage: int
    memory: StageMemory = field(repr=False)
    fragmentation_bytes: int  #: reserved minus allocated, outside the breakdown
    context_bytes: int  #: CUDA context and NCCL, outside the allocator
    job: TrainingJob = field(repr=False)
    calibration: Calibration = field(repr=False)

    @cached_property
    def instants(self) -> tuple[Instant, ...]:
        """The widest first, each with every part named."""
        return self.memory.instants()

    @cached_property
    def band(self) -> Band:
        """Of 90 %, for the allocated bytes."""
        return _band_with_unknowns(self.job, self.stage, self.allocated_bytes, self.calibration)

    @property
    def peak(self) -> Instant:
        """The widest instant: the peak since the process began."""
        return self.instants[0]

    @property
    def instant(self) -> str:
        return self.peak.name

    @property
    def parts(self) -> tuple[Part, ...]:
        return self.peak.parts

    @property
    def breakdown(self) -> MemoryBreakdown:
        """Bytes by component and category at the peak: what the allocator calls allocated."""
        return self.peak.breakdown

    def breakdown_on(self, rank: int) -> MemoryBreakdown:
        """The same on one rank of this stage, by its number in the whole job.

        With the distributed optimizer it holds the states of some components whole and of others none.
        """
        held = shard_elements(self.job, self.stage, rank)
        if held is None:
            return self.breakdown
        moved = dict(self.breakdown.cells)
        total = sum(moved.pop((component, Category.OPTIMIZER_STATES), 0) for component in Component)
        for component, size in apportioned(total, held).items():
            moved[component, Category.OPTIMIZER_STATES] = size
        return MemoryBreakdown(cells=moved)

    @property
    def allocated_bytes(self) -> int:
        """What the allocator reports as its peak."""
        return self.memory.peak_bytes

    @property
    def device_bytes(self) -> int:
        """Allocated, fragmentation and context: what has to fit into the card."""
        return self.allocated_bytes + self.fragmentation_bytes + self.context_bytes

    @property
    def low_bytes(self) -> int:
        return round(self.allocated_bytes * self.band.low)

    @property
    def high_bytes(self) -> int:
        return round(self.allocated_bytes * self.band.high)

    def to_json(self) -> dict[str, Any]:
        return {
            "stage": self.stage,
            "instant": self.instant,
            "first_step": self.peak.first_step,
            "allocated_bytes": self.allocated_bytes,
            "low_bytes": self.low_bytes,
            "high_bytes": self.high_bytes,
            "fragmentation_bytes": self.fragmentation_bytes,
            "context_bytes": self.context_bytes,
            "device_bytes": self.device_bytes,
            "breakdown": self.breakdown.to_json(),
            "parts": [part.to_json() for part in sorted(self.parts, key=lambda part: -part.bytes)],
            "instants": [instant.to_json() for instant in self.instants],
        }


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The answer for a whole job."""

    ranks: tuple[RankEstimate, ...]  #: one for each pipeline stage, in order

    @cached_property
    def worst(self) -> RankEstimate:
        """The stage that needs most of its card."""
        return max(self.ranks, key=lambda rank: rank.device_bytes)

    def headroom_bytes(self, capacity_bytes: int) -> int:
        """What the worst rank leaves of a card; negative where it does not fit."""
        return capacity_bytes - self.worst.device_bytes

    def to_json(self) -> dict[str, Any]:
        return {
            "version": 1,
            "worst_stage": self.worst.stage,
            "ranks": [rank.to_json() for rank in self.ranks],
        }


def estimate_rank(job: TrainingJob, stage: int, calibration: Calibration = DEFAULT) -> RankEstimate:
    """The estimate of one pipeline stage. Raises ValueError where the job cannot be laid out."""
    return next(_ranks(job, range(stage, stage + 1), calibration))


def _ranks(job: TrainingJob, stages: range, calibration: Calibration) -> Iterator[RankEstimate]:
    layout, held, micro = job.layout, holding(job), micro_batch(job)
    chunks, fitted = places(job.text, layout), fitted_parts(job, calibration)
    for stage in stages:
        moments = flights(
            stages=layout.pipeline,
            rank=stage,
            chunks=len(chunks[stage]),
            microbatches=job.microbatches,
            group=layout.microbatch_group or layout.pipeline,
            overlap=job.routing.exchange_overlap,
        )
        neighbours = (stage > 0) + (stage < layout.pipeline - 1)
        memory = stage_memory(held, micro, Stage(chunks[stage], moments, neighbours), fitted)
        fragmentation, context = outside_bytes(job, memory.peak_bytes, calibration)
        if job.graphs.capture is Capture.FULL_ITERATION:
            fragmentation += warm_up_bytes(memory.instants()[0].parts)
        yield RankEstimate(
            stage=stage,
            memory=memory,
            fragmentation_bytes=fragmentation,
            context_bytes=context,
            job=job,
            calibration=calibration,
        )


def rarely_measured(job: TrainingJob) -> bool:
    """Whether the job uses what few measured runs did, so that its estimate is less sure."""
    mixers = {layer.mixer for layer in job.text.kinds}
    return (
        job.precision.fp8
        or job.sharding is not Sharding.NONE
        or bool(job.offload)
        or bool(job.offloaded_layers)
        or job.adapters is not None
        or job.graphs.capture is not Capture.NONE
        or job.text.residual_streams > 1
        or job.implementation is Implementation.UNFUSED
        or job.vision is not None
        or not mixers <= {Mixer.ATTENTION}
    )


def _band(job: TrainingJob, calibration: Calibration) -> Band:
    if rarely_measured(job):
        return calibration.rare
    return calibration.experts if job.text.has_experts else calibration.dense


def _band_with_unknowns(job: TrainingJob, stage: int, peak_bytes: int, calibration: Calibration) -> Band:
    """The band of what was measured, widened by what this job does not know of its data.

    The two are independent: their distances from the estimate are added as squares.
    """
    band = _band(job, calibration)
    if job.unknowns == Unknowns() or not peak_bytes:
        return band
    ends = []
    for share, known in ((LOW, band.low), (HIGH, band.high)):
        peak = estimate_rank(_at(job, share), stage, calibration).allocated_bytes
        ends.append((peak / peak_bytes - 1, known - 1))
    (low, below), (high, above) = ends
    return Band(low=max(0.0, 1 - hypot(min(low, 0), below)), high=1 + hypot(max(high, 0), above))


def _at(job: TrainingJob, share: float) -> TrainingJob:
    """The job with its unknowns at this quantile."""
    routing, batch, unknowns = job.routing, job.batch, job.unknowns
    if unknowns.imbalance is not None:
        routing = replace(routing, imbalance=unknowns.imbalance.quantile(share))
    if unknowns.patches is not None:
        load = replace(batch.images, patches=round(unknowns.patches.quantile(share)))
        batch = replace(batch, images=load)
    return replace(job, routing=routing, batch=batch, unknowns=Unknowns())


def estimate(job: TrainingJob, calibration: Calibration = DEFAULT) -> Estimate:
    """The memory of every pipeline stage of a job.

    Raises ValueError where a size does not divide over its ranks, as the real code would refuse.
    """
    return Estimate(ranks=tuple(_ranks(job, range(job.layout.pipeline), calibration)))
