"""What a bisection will probably take, before it is confirmed.

The number of trials is not a formula: the same `Search` that will run is played
against planted culprits that answer truthfully, and counted.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from bisection.commits import State
from bisection.criteria import CriterionKind
from bisection.finding import Finding
from bisection.ledger import LedgerEntry, Trial
from bisection.measurement import Measurement, Outcome, Peak, Step
from bisection.search import Search
from bisection.specification import BisectionSpec
from memory_models.breakdown import Category, Component, MemoryBreakdown

#: How many planted culprits are played: enough for a mean, few enough to take no time.
_PLAYED = 5


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Expected cost. ``trial_seconds`` is None where no trial of the profile was run yet."""

    good: str
    bad: str
    commits: int  #: suspects
    states: int  #: that differ in what can change the repro
    environments: int
    trials: float  #: mean over planted culprits, no flakes
    trial_seconds: float | None
    workers: int
    gpus_per_trial: int

    @property
    def seconds(self) -> float | None:
        if self.trial_seconds is None:
            return None
        return self.trials * self.trial_seconds / self.workers

    @property
    def gpu_hours(self) -> float | None:
        if self.trial_seconds is None:
            return None
        return self.trials * self.trial_seconds * self.gpus_per_trial / 3600

    def to_json(self) -> dict[str, Any]:
        return {**self.__dict__, "seconds": self.seconds, "gpu_hours": self.gpu_hours}


def forecast(spec: BisectionSpec, trial_seconds: float | None) -> Forecast:
    """Play the search against culprits spread over the range."""
    line = spec.levels[-1].range
    suspects = len(line.suspects)
    places = sorted({1 + suspects * i // _PLAYED for i in range(_PLAYED)})
    played = [play(spec, culprit) for culprit in places]
    commits = line.commits
    return Forecast(
        good=line.good.hash,
        bad=line.bad.hash,
        commits=suspects,
        states=len({commit.tree_key or commit.hash for commit in commits}),
        environments=len({commit.environment_key for commit in commits}),
        trials=sum(played) / len(played),
        trial_seconds=trial_seconds,
        workers=min(spec.parallel, spec.workers),
        gpus_per_trial=spec.gpus_per_trial,
    )


def play(spec: BisectionSpec, culprit: int) -> int:
    """How many trials the search starts if step ``culprit`` of the line is to blame.

    A truthful world: no flake, no skip, trials end in the order in which they started.
    """
    search = Search.replay(spec, ())
    pending: deque[Trial] = deque()
    started = 0
    while True:
        decision = search.next(spec.parallel, tuple(pending))
        if isinstance(decision, Finding):
            return started
        pending.extend(decision)
        started += len(decision)
        trial = pending.popleft()
        bad = search.level.states.index(trial.state) >= culprit
        worker = next(f"w{n}" for n in range(spec.workers + 1) if f"w{n}" not in trial.avoid_workers)
        search.record(
            LedgerEntry(
                sequence=len(search.ledger),
                trial=trial,
                measurement=_answer(spec, trial.state, bad).evolve(worker=worker),
            )
        )


def _answer(spec: BisectionSpec, state: State, bad: bool) -> Measurement:
    criterion = spec.criterion
    if criterion.kind is CriterionKind.CRASH:
        return Measurement(
            outcome=Outcome.CRASHED if bad else Outcome.COMPLETED,
            state=state,
            signature=(criterion.signature or "failed") if bad else "",
        )
    limit = criterion.threshold or criterion.capacity_bytes or 1
    if criterion.kind is CriterionKind.THROUGHPUT:
        rate = limit * (0.8 if bad else 1.2)
        steps = tuple(
            Step(
                step=index,
                peak_bytes=0,
                retained_bytes=0,
                seconds=1000 / rate,
                loss_tokens=1000,
                image_tokens=0,
                padding_tokens=0,
            )
            for index in range(3)
        )
        return Measurement(outcome=Outcome.COMPLETED, state=state, steps=steps, images=1, real_data=True)
    peak = int(limit * (1.2 if bad else 0.8))
    return Measurement(
        outcome=Outcome.COMPLETED,
        state=state,
        peak=Peak(
            rank=0,
            step=0,
            phase="forward",
            instant="",
            allocated_bytes=peak,
            reserved_bytes=peak,
            breakdown=MemoryBreakdown(cells={(Component.DECODER, Category.ACTIVATIONS): peak}),
        ),
    )
