"""What a measurement means: the table from what happened to a verdict.

Outcomes are facts (`measurement.Outcome`); verdicts are judgements and live only
here. The ledger never stores one, so a threshold can change and the search be
replayed without a single new trial.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from bisection.measurement import Measurement, Outcome
from bisection.quantities import show_bytes

OUT_OF_MEMORY_SIGNATURE = "out_of_memory"
TIMED_OUT_SIGNATURE = "timed_out"


class CriterionKind(StrEnum):
    """What counts as bad."""

    #: bad if and only if the peak is above the capacity, or the allocator refused at it
    OUT_OF_MEMORY = "out_of_memory"
    #: bad if and only if the peak is above ``threshold`` bytes
    PEAK_MEMORY = "peak_memory"
    #: bad if and only if the useful tokens a second are below ``threshold``
    THROUGHPUT = "throughput"
    #: bad if and only if the run failed with ``signature`` (or, where that is empty, with the bad end's)
    CRASH = "crash"


class Verdict(StrEnum):
    """What a measurement says of its state. Good and bad are never said of an unsure thing."""

    GOOD = "good"
    BAD = "bad"
    SKIP = "skip"  #: the state cannot be judged: not buildable, another failure, not what was asked
    RETRY = "retry"  #: says nothing about the state: measure again


@dataclass(frozen=True, kw_only=True)
class Criterion:
    """Which regression is looked for. Raises ValueError where the kind lacks its number.

    ``threshold`` is in bytes (PEAK_MEMORY) or useful tokens a second (THROUGHPUT).
    """

    kind: CriterionKind
    capacity_bytes: int | None = None
    threshold: float | None = None
    signature: str = ""

    def __post_init__(self) -> None:
        if self.kind is CriterionKind.OUT_OF_MEMORY and not (self.capacity_bytes and self.capacity_bytes > 0):
            raise ValueError("an out_of_memory criterion needs capacity_bytes above 0")
        if self.kind in (CriterionKind.PEAK_MEMORY, CriterionKind.THROUGHPUT) and not (
            self.threshold and self.threshold > 0
        ):
            raise ValueError(f"a {self.kind} criterion needs a threshold above 0")

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind.value,
            "capacity_bytes": self.capacity_bytes,
            "threshold": self.threshold,
            "signature": self.signature,
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Criterion:
        return cls(
            kind=CriterionKind(row["kind"]),
            capacity_bytes=row.get("capacity_bytes"),
            threshold=row.get("threshold"),
            signature=row.get("signature") or "",
        )


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """A verdict, the reason for it in one sentence, and what was measured against what."""

    verdict: Verdict
    why: str
    value: float | None = None  #: peak bytes or useful tokens a second
    limit: float | None = None
    signature: str = ""


def judge(criterion: Criterion, measurement: Measurement) -> Judgement:
    """The verdict of one measurement under a criterion.

    The table, outcome by criterion (anything not listed is SKIP):

    =============  ==============  =============  ==============  ===================
    outcome        OUT_OF_MEMORY   PEAK_MEMORY    THROUGHPUT      CRASH
    =============  ==============  =============  ==============  ===================
    COMPLETED      peak > capacity peak > limit   tokens < limit  GOOD
    OUT_OF_MEMORY  BAD             BAD            skip            BAD if it is the one
    CRASHED        skip            skip           skip            BAD if it is the one
    TIMED_OUT      skip            skip           skip            BAD if it is the one
    UNBUILDABLE    skip            skip           skip            skip
    INVALID        skip            skip           skip            skip
    LOST           retry           retry          retry           retry
    =============  ==============  =============  ==============  ===================
    """
    outcome = measurement.outcome
    if outcome is Outcome.LOST:
        return Judgement(verdict=Verdict.RETRY, why=measurement.reason or "the worker was lost")
    if outcome in (Outcome.UNBUILDABLE, Outcome.INVALID):
        return Judgement(verdict=Verdict.SKIP, why=measurement.reason or str(outcome))
    if criterion.kind is CriterionKind.CRASH:
        return _judge_crash(criterion, measurement)
    if outcome is Outcome.OUT_OF_MEMORY and criterion.kind is not CriterionKind.THROUGHPUT:
        return _judge_refusal(criterion, measurement)
    if outcome is not Outcome.COMPLETED:
        return Judgement(
            verdict=Verdict.SKIP,
            why=f"it failed in another way than the one looked for: {measurement.reason or outcome}",
            signature=measurement.signature,
        )
    return _judge_value(criterion, measurement)


def _judge_crash(criterion: Criterion, measurement: Measurement) -> Judgement:
    if measurement.outcome is Outcome.COMPLETED:
        return Judgement(verdict=Verdict.GOOD, why="all steps were taken")
    if criterion.signature and measurement.signature != criterion.signature:
        return Judgement(
            verdict=Verdict.SKIP,
            why=f"it failed with another signature: {measurement.signature or measurement.reason}",
            signature=measurement.signature,
        )
    return Judgement(
        verdict=Verdict.BAD,
        why=f"it failed with {measurement.signature or measurement.reason}",
        signature=measurement.signature,
    )


def _judge_refusal(criterion: Criterion, measurement: Measurement) -> Judgement:
    """The allocator refused: bad, unless it did so below the limit that we ask about."""
    limit = _memory_limit(criterion)
    refused = measurement.oom
    if refused is None:
        return Judgement(
            verdict=Verdict.BAD,
            why="the allocator refused; how much was asked is not known",
            limit=limit,
            signature=OUT_OF_MEMORY_SIGNATURE,
        )
    wanted = refused.allocated_bytes + refused.requested_bytes
    return Judgement(
        verdict=Verdict.BAD,
        why=f"the allocator refused {show_bytes(refused.requested_bytes)} in {refused.component}, "
        f"{refused.phase}, with {show_bytes(refused.allocated_bytes)} allocated",
        value=wanted,
        limit=limit,
        signature=OUT_OF_MEMORY_SIGNATURE,
    )


def _memory_limit(criterion: Criterion) -> float | None:
    if criterion.kind is CriterionKind.OUT_OF_MEMORY:
        return criterion.capacity_bytes
    return criterion.threshold


def _judge_value(criterion: Criterion, measurement: Measurement) -> Judgement:
    if criterion.kind is CriterionKind.THROUGHPUT:
        return _judge_throughput(criterion, measurement)
    limit = _memory_limit(criterion)
    assert limit is not None  # Criterion's construction guarantees it
    if measurement.peak is None:
        return Judgement(verdict=Verdict.SKIP, why="it completed, but no peak was recorded")
    peak = measurement.peak.allocated_bytes
    verdict = Verdict.BAD if peak > limit else Verdict.GOOD
    return Judgement(
        verdict=verdict,
        why=_against(peak, int(limit)),
        value=peak,
        limit=limit,
        signature=OUT_OF_MEMORY_SIGNATURE if verdict is Verdict.BAD else "",
    )


def _against(peak: int, limit: int) -> str:
    side, shown = ("above" if peak > limit else "within"), (show_bytes(peak), show_bytes(limit))
    # Two figures that read alike do not show which side of the limit it was.
    margin = f" by {show_bytes(abs(peak - limit))}" if shown[0] == shown[1] and peak != limit else ""
    return f"the peak of {shown[0]} is {side} {shown[1]}{margin}"


def _judge_throughput(criterion: Criterion, measurement: Measurement) -> Judgement:
    assert criterion.threshold is not None
    if measurement.real_data is False or measurement.images == 0:
        return Judgement(
            verdict=Verdict.SKIP,
            why="no image was trained on, and image-free runs look about twice as fast",
        )
    rate = measurement.useful_tokens_per_second
    if rate is None:
        return Judgement(verdict=Verdict.SKIP, why="no steady step was timed")
    verdict = Verdict.BAD if rate < criterion.threshold else Verdict.GOOD
    return Judgement(
        verdict=verdict,
        why=f"{rate:.1f} useful tokens a second against {criterion.threshold:.1f}",
        value=rate,
        limit=criterion.threshold,
        signature="slow" if verdict is Verdict.BAD else "",
    )
