"""Where the seconds of a step went between two measurements.

The time half of `attribution`, which is about bytes; it makes no report and no verdict.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bisection.measurement import Measurement
from memory_models.breakdown import Activity

#: A step must slow by more than this before an activity is blamed; less is timer noise.
SMALLEST_SLOWDOWN_SHARE = 0.02
#: Of a step: an activity that takes less has a ratio of mere timer noise.
SMALLEST_PART_SHARE = 0.01
#: With fewer activities than this nobody can tell a slower machine from a slower activity.
FEWEST_PARTS = 4
#: A pace that is further than this from 1 is told.
NOTABLE_PACE = 0.05


@dataclass(frozen=True, kw_only=True)
class TimeDelta:
    """Seconds of a steady step, culprit minus parent, by activity."""

    activity: Activity | None  #: that grew most; None if no time was recorded
    phase: str
    step_seconds: float
    activity_seconds: float
    by_activity: Mapping[Activity, float]
    share: float | None  #: of all growth, what the activity has
    confidence: str
    evidence: tuple[str, ...]


def compare_time(parent: Measurement, culprit: Measurement) -> TimeDelta:
    """The activity whose seconds grew most, beyond the pace at which both machines ran.

    A rate can also fall because a step holds fewer useful tokens at equal seconds: then DATA is
    named, since no computation is slower.
    """
    before, after = parent.time.by_activity(), culprit.time.by_activity()
    by_activity = {activity: after[activity] - before[activity] for activity in Activity}
    step = culprit.time.total_seconds - parent.time.total_seconds
    evidence = [
        f"A steady step takes {culprit.time.total_seconds:.3f} s, {parent.time.total_seconds:.3f} s before."
    ]
    rates = (parent.useful_tokens_per_second, culprit.useful_tokens_per_second)
    if rates[0] and rates[1]:
        evidence.append(
            f"Useful tokens a second: {rates[1]:,.1f}, {rates[0]:,.1f} before "
            f"({rates[1] / rates[0] - 1:+.1%})."
        )
    tokens = [_useful_tokens(measurement) for measurement in (parent, culprit)]
    if tokens[0] and abs(tokens[1] / tokens[0] - 1) > SMALLEST_SLOWDOWN_SHARE:
        evidence.append(f"Useful tokens a step: {tokens[1]:,.0f}, {tokens[0]:,.0f} before.")
    if not parent.time.cells or not culprit.time.cells:
        return TimeDelta(
            activity=None,
            phase="",
            step_seconds=step,
            activity_seconds=0.0,
            by_activity={},
            share=None,
            confidence="weak",
            evidence=("No time by activity was recorded on both sides.", *evidence[1:]),
        )
    pace = _pace(before, after)
    if abs(pace - 1) > NOTABLE_PACE:
        evidence.append(
            f"Most activities took {pace:.2f} times as long: that is the pace of the machine, "
            "and no activity is blamed for it."
        )
    own = {activity: after[activity] - pace * before[activity] for activity in Activity}
    slow = sum(own.values()) > SMALLEST_SLOWDOWN_SHARE * pace * parent.time.total_seconds
    if not slow and tokens[1] < tokens[0] * (1 - SMALLEST_SLOWDOWN_SHARE):
        evidence.append("The step is no slower; it holds fewer useful tokens.")
        leader = Activity.DATA
    else:
        leader = max(own, key=lambda activity: own[activity])
    positive = sum(seconds for seconds in own.values() if seconds > 0)
    share = max(0.0, own[leader]) / positive if positive > 0 else None
    phases = {
        phase.value: seconds - pace * parent.time.cells.get((activity, phase), 0.0)
        for (activity, phase), seconds in culprit.time.cells.items()
        if activity is leader
    }
    return TimeDelta(
        activity=leader,
        phase=max(phases, key=lambda phase: phases[phase]) if phases else "",
        step_seconds=step,
        activity_seconds=by_activity[leader],
        by_activity=by_activity,
        share=share,
        confidence="weak" if not slow else "strong" if share is not None and share >= 0.5 else "moderate",
        evidence=tuple(evidence),
    )


def _pace(before: Mapping[Activity, float], after: Mapping[Activity, float]) -> float:
    """How many times as long everything took: the lower median of the activities' ratios.

    A slow-down of one activity moves only its own ratio, one of the whole language model half of
    them; another machine, or one that others use too, moves all. Activities that hardly take time
    have no say.
    """
    total = sum(before.values())
    ratios = sorted(
        after[activity] / seconds
        for activity, seconds in before.items()
        if seconds > SMALLEST_PART_SHARE * total and after[activity] > 0
    )
    return ratios[(len(ratios) - 1) // 2] if len(ratios) >= FEWEST_PARTS else 1.0


def _useful_tokens(measurement: Measurement) -> float:
    steady = measurement.steps[1:]
    return sum(step.useful_tokens for step in steady) / len(steady) if steady else 0.0
