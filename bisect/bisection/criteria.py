"""What a measurement means: the table from what happened to a verdict.

Outcomes are facts (`measurement.Outcome`); verdicts are judgements and live only
here. The ledger never stores one, so a threshold can change and the search be
replayed without a single new trial.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from bisection.circumstances import ALONE, Circumstances
from bisection.measurement import Measurement, Outcome, OutOfMemory
from bisection.quantities import counted, show_bytes
from bisection.workload import differences
from memory_models.breakdown import Component

OUT_OF_MEMORY_SIGNATURE = "out_of_memory"
TIMED_OUT_SIGNATURE = "timed_out"
#: Of a run whose steps hold other work than the good end's: no slow-down, and no evidence against one.
OTHER_WORK_SIGNATURE = "other_work"
METRIC_SIGNATURE = "metric"

#: torch's allocator asks the device for segments of whole 2 MiB, for a small request for 20 MiB at most.
_LARGEST_SEGMENT_ROUNDING = 20 * 2**20
#: A model with one of these reads images, and images are a part of its memory and of its time.
_VISION = (Component.VISION, Component.PROJECTOR)


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
    #: bad if and only if the number that the run told is above ``threshold``
    METRIC_ABOVE = "metric_above"
    #: bad if and only if the number that the run told is below ``threshold``
    METRIC_BELOW = "metric_below"

    @property
    def is_metric(self) -> bool:
        """Whether a number is judged whose meaning only the requester knows."""
        return self in (CriterionKind.METRIC_ABOVE, CriterionKind.METRIC_BELOW)


class Verdict(StrEnum):
    """What a measurement says of its state. Good and bad are never said of an unsure thing."""

    GOOD = "good"
    BAD = "bad"
    SKIP = "skip"  #: the state cannot be judged: not buildable, another failure, not what was asked
    RETRY = "retry"  #: says nothing about the state: measure again


@dataclass(frozen=True, kw_only=True)
class Criterion:
    """Which regression is looked for. Raises ValueError where the kind lacks its number.

    ``threshold`` is in bytes (PEAK_MEMORY), useful tokens a second (THROUGHPUT) or the metric's own unit;
    of a metric, None means halfway between the two ends.
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
        if self.threshold is not None and not math.isfinite(self.threshold):
            raise ValueError("a threshold must be a finite number")

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
    value: float | None = None  #: peak bytes, useful tokens a second, or the metric's number
    limit: float | None = None
    signature: str = ""


def judge(criterion: Criterion, measurement: Measurement, circumstances: Circumstances = ALONE) -> Judgement:
    """The verdict of one measurement under a criterion, in the light of the other trials.

    The table, outcome by criterion (anything not listed is SKIP):

    =============  ==============  =============  ==============  ===================
    outcome        OUT_OF_MEMORY   PEAK_MEMORY    THROUGHPUT      CRASH
    =============  ==============  =============  ==============  ===================
    COMPLETED      peak > capacity peak > limit   tokens < limit  GOOD
    OUT_OF_MEMORY  need > capacity need > limit   skip            BAD if it is the one
    CRASHED        skip            skip           skip            BAD if it is the one
    TIMED_OUT      skip            skip           skip            BAD if it is the one
    UNBUILDABLE    skip            skip           skip            skip
    INVALID        skip            skip           skip            skip
    LOST           retry           retry          retry           retry
    =============  ==============  =============  ==============  ===================

    A metric (either kind) is judged as THROUGHPUT is: COMPLETED by its number, anything else skipped.
    A doubtful failure is RETRY, whatever the criterion, until it came again. Memory and speed are
    not judged by mock data. How fast a run is, is judged against its control where it has one, and
    only between equal work.
    """
    outcome = measurement.outcome
    if outcome is Outcome.LOST:
        return Judgement(verdict=Verdict.RETRY, why=measurement.reason or "the worker was lost")
    if outcome in (Outcome.UNBUILDABLE, Outcome.INVALID):
        return Judgement(verdict=Verdict.SKIP, why=measurement.reason or str(outcome))
    if measurement.doubtful and (measurement.state, measurement.signature) not in circumstances.believed:
        return Judgement(
            verdict=Verdict.RETRY,
            why="chance causes such a failure as well as code, so it counts once the same state fails so "
            f"again: {measurement.reason or measurement.signature}",
        )
    if criterion.kind is CriterionKind.CRASH:
        return _judge_crash(criterion, measurement)
    if criterion.kind.is_metric:
        return _judge_metric(criterion, measurement, circumstances)
    if _is_mock(criterion, measurement):
        return Judgement(
            verdict=Verdict.SKIP,
            why="no real image was trained on, and a run without images looks about twice as fast "
            "and needs less memory: let the profile's data be real",
        )
    if outcome is Outcome.OUT_OF_MEMORY and criterion.kind is not CriterionKind.THROUGHPUT:
        return _judge_refusal(criterion, measurement)
    if outcome is not Outcome.COMPLETED:
        return _another_failure(measurement)
    if criterion.kind is CriterionKind.THROUGHPUT:
        return _judge_throughput(criterion, measurement, circumstances)
    return _judge_peak(criterion, measurement)


def _another_failure(measurement: Measurement) -> Judgement:
    return Judgement(
        verdict=Verdict.SKIP,
        why=f"it failed in another way than the one looked for: {measurement.reason or measurement.outcome}",
        signature=measurement.signature,
    )


def _judge_metric(criterion: Criterion, measurement: Measurement, circumstances: Circumstances) -> Judgement:
    """Without a threshold, and until both ends told a number, an end is what the request says of it."""
    if measurement.outcome is not Outcome.COMPLETED:
        return _another_failure(measurement)
    number = measurement.number
    if number is None:
        return Judgement(verdict=Verdict.SKIP, why="it told no number: look into its log")
    above = criterion.kind is CriterionKind.METRIC_ABOVE
    ends = circumstances.numbers
    limit = criterion.threshold
    if limit is None and ends is not None:
        limit = ends.halfway
    if limit is None:
        if ends is None or measurement.state not in (ends.good, ends.bad):
            return Judgement(verdict=Verdict.RETRY, why=f"{number:g}, and both ends are not known yet")
        bad = measurement.state == ends.bad
        why = f"{number:g}, as the {'bad' if bad else 'good'} end; what lies between is judged by both"
        verdict = Verdict.BAD if bad else Verdict.GOOD
        return Judgement(verdict=verdict, why=why, signature=METRIC_SIGNATURE if bad else "")
    bad = number > limit if above else number < limit
    side = "above" if number > limit else "below" if number < limit else "equal to"
    return Judgement(
        verdict=Verdict.BAD if bad else Verdict.GOOD,
        why=f"{number:g} is {side} {limit:g}",
        value=number,
        limit=limit,
        signature=METRIC_SIGNATURE if bad else "",
    )


def _is_mock(criterion: Criterion, measurement: Measurement) -> bool:
    """Whether data that are not real make the figures mean nothing.

    Speed never means anything on them. Memory does where the model reads no images, as far as is known.
    """
    completed = measurement.outcome is Outcome.COMPLETED
    if criterion.kind is CriterionKind.THROUGHPUT:
        return completed and (measurement.real_data is False or not measurement.images)
    # A run that ended while the model was built had not seen its data yet.
    if measurement.real_data is not False or not (completed or measurement.steps):
        return False
    peak = measurement.peak
    held = {component for component, _ in peak.breakdown.cells} if peak else set()
    return any(part in held or measurement.trainable.get(part.value) for part in _VISION)


def _judge_crash(criterion: Criterion, measurement: Measurement) -> Judgement:
    if measurement.outcome is Outcome.COMPLETED:
        return Judgement(verdict=Verdict.GOOD, why=measurement.reason or "all steps were taken")
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
    told = (
        f"the allocator refused {show_bytes(refused.requested_bytes)} in {refused.component}, "
        f"{refused.phase}, with {show_bytes(refused.allocated_bytes)} allocated"
    )
    need = _need(refused)
    if limit is not None and need <= limit - _LARGEST_SEGMENT_ROUNDING:
        return Judgement(
            verdict=Verdict.SKIP,
            why=f"{told}: that is {show_bytes(need)} with what it held back, below the "
            f"{show_bytes(int(limit))} asked about. The device is smaller, or another process had a part of "
            "it: run it on an empty device that holds the limit, or ask about a lower one",
        )
    return Judgement(
        verdict=Verdict.BAD,
        why=told,
        value=refused.allocated_bytes + refused.requested_bytes,
        limit=limit,
        signature=OUT_OF_MEMORY_SIGNATURE,
    )


def _need(refused: OutOfMemory) -> int:
    """Bytes of the device that the refused allocation would have needed: what is reserved and broken
    into pieces is needed, too.
    """
    return max(refused.allocated_bytes, refused.reserved_bytes) + refused.requested_bytes


def _memory_limit(criterion: Criterion) -> float | None:
    if criterion.kind is CriterionKind.OUT_OF_MEMORY:
        return criterion.capacity_bytes
    return criterion.threshold


def _judge_peak(criterion: Criterion, measurement: Measurement) -> Judgement:
    limit = _memory_limit(criterion)
    assert limit is not None  # Criterion's construction guarantees it
    if measurement.peak is None:
        return Judgement(verdict=Verdict.SKIP, why="it completed, but no peak was recorded")
    peak, reserved = measurement.peak.allocated_bytes, measurement.peak.reserved_bytes
    unproven = measurement.capacity_bytes is None and peak <= limit < reserved
    if unproven and criterion.kind is CriterionKind.OUT_OF_MEMORY:
        return Judgement(
            verdict=Verdict.SKIP,
            why=f"{_against(peak, int(limit))}, but the allocator reserved {show_bytes(reserved)}: "
            "whether it would do with less, only a run under the limit can tell",
        )
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


def _judge_throughput(
    criterion: Criterion, measurement: Measurement, circumstances: Circumstances
) -> Judgement:
    limit = criterion.threshold
    assert limit is not None  # Criterion's construction guarantees it
    measured = measurement.useful_tokens_per_second
    if measured is None:
        return Judgement(
            verdict=Verdict.SKIP,
            why=f"no steady step was timed: of {counted(len(measurement.steps), 'step')} the first "
            f"{measurement.warmup_steps} warm up; raise `steps` in the profile",
        )
    unequal = differences(circumstances.work, measurement.work) if circumstances.work else []
    if unequal:
        return Judgement(
            verdict=Verdict.SKIP,
            why="its speed cannot be compared with the good end's, since its work is another: "
            f"{'; '.join(unequal)}. Give both the same data, lengths, packing and trained parts, "
            "by overrides where a commit changed them",
            signature=OTHER_WORK_SIGNATURE,
        )
    rate, paced = measured, ""
    if measurement.control is not None:
        control = measurement.control
        pace = control.work.useful_tokens_per_second
        usual = circumstances.paces.get(control.state, pace)
        if pace is None or usual is None:
            return Judgement(
                verdict=Verdict.RETRY,
                why=f"the good end, as the control beside it on this worker, was not timed: {control.reason}",
            )
        rate = measured * usual / pace
        paced = f" at the usual pace ({measured:.1f} here, where the control makes {pace:.1f} of {usual:.1f})"
    verdict = Verdict.BAD if rate < limit else Verdict.GOOD
    return Judgement(
        verdict=verdict,
        why=f"{rate:.1f} useful tokens a second{paced} against {limit:.1f}",
        value=rate,
        limit=limit,
        signature="slow" if verdict is Verdict.BAD else "",
    )
