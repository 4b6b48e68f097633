"""The answer: what a job needs on every pipeline rank, and which rank needs most.

``estimate`` is the entrance; the formulas live in the modules that instants.py joins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from memory_models.breakdown import MemoryBreakdown
from memory_models.calibration import DEFAULT, Band, Calibration
from memory_models.instants import stage_instants
from memory_models.job import Implementation, Sharding, TrainingJob
from memory_models.runtime import outside_bytes
from memory_models.shapes import Mixer
from memory_models.tensors import Instant, Part


@dataclass(frozen=True, kw_only=True)
class RankEstimate:
    """One pipeline stage; all ranks of a stage are alike but for the data they see."""

    stage: int
    instants: tuple[Instant, ...]  #: the widest first
    fragmentation_bytes: int  #: reserved minus allocated, outside the breakdown
    context_bytes: int  #: CUDA context and NCCL, outside the allocator
    band: Band  #: of 90 %, for the allocated bytes

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

    @property
    def allocated_bytes(self) -> int:
        """What the allocator reports as its peak."""
        return self.peak.total_bytes

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

    @property
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
    instants = stage_instants(job, stage, calibration)
    fragmentation, context = outside_bytes(job, instants[0].total_bytes, calibration)
    return RankEstimate(
        stage=stage,
        instants=instants,
        fragmentation_bytes=fragmentation,
        context_bytes=context,
        band=_band(job, calibration),
    )


def rarely_measured(job: TrainingJob) -> bool:
    """Whether the job uses what few measured runs did, so that its estimate is less sure."""
    mixers = {layer.mixer for layer in job.text.layers}
    return (
        job.precision.fp8
        or job.sharding is not Sharding.NONE
        or bool(job.offload)
        or job.text.residual_streams > 1
        or job.implementation is Implementation.UNFUSED
        or job.vision is not None
        or not mixers <= {Mixer.ATTENTION}
    )


def _band(job: TrainingJob, calibration: Calibration) -> Band:
    if rarely_measured(job):
        return calibration.rare
    return calibration.experts if job.text.has_experts else calibration.dense


def estimate(job: TrainingJob, calibration: Calibration = DEFAULT) -> Estimate:
    """The memory of every pipeline stage of a job.

    Raises ValueError where a size does not divide over its ranks, as the real code would refuse.
    """
    return Estimate(
        ranks=tuple(estimate_rank(job, stage, calibration) for stage in range(job.layout.pipeline))
    )
