"""The control: the good end, run beside a trial on the same worker: code is compared, and not machines.

It runs right after a trial that was timed, under the same profile and the request's overrides. What it
measured becomes a part of the trial's measurement; what that means is `criteria.judge`'s matter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from bisection.adapters.profiles import Profile
from bisection.commits import State
from bisection.criteria import CriterionKind
from bisection.ledger import Trial
from bisection.measurement import Control, Measurement, Outcome, Work
from bisection.specification import BisectionSpec
from workers.trial_run import TrialResult

#: Name of the artifact that says why a control failed.
CONTROL_LOG = "control-log.txt"


def control_state(profile: Profile, spec: BisectionSpec) -> State | None:
    """What to run beside each trial; None where the profile asks for none, or no speed is looked for."""
    if profile.control is None or spec.criterion.kind is not CriterionKind.THROUGHPUT:
        return None
    return spec.levels[0].states[0]


def with_control(
    result: TrialResult, trial: Trial, good: State, run: Callable[[Trial], TrialResult]
) -> TrialResult:
    """The trial's result with its control's facts; as it is where there is no speed to compare."""
    measured = result.measurement
    if measured.outcome is not Outcome.COMPLETED:
        return result
    beside = run(replace(trial, state=good, overrides={}, why="", avoid_workers=()))
    control = control_of(beside.measurement)
    artifacts = dict(result.artifacts)
    if control.outcome is not Outcome.COMPLETED and "log.txt" in beside.artifacts:
        artifacts[CONTROL_LOG] = beside.artifacts["log.txt"]
    return TrialResult(
        measurement=measured.evolve(
            control=control,
            seconds=measured.seconds + control.seconds,
            artifacts=tuple(sorted(artifacts)),
        ),
        artifacts=artifacts,
    )


def control_of(measured: Measurement) -> Control:
    """The facts of a control's own measurement. One that did not do what was asked has timed nothing."""
    completed = measured.outcome is Outcome.COMPLETED
    return Control(
        state=measured.state,
        outcome=measured.outcome,
        reason=measured.reason,
        work=measured.work if completed else Work(steps=()),
        seconds=measured.seconds,
    )
