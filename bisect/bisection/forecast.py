"""What a bisection will probably take, before it is confirmed.

The number of trials is not a formula: the same `Search` that will run is played
against planted culprits that answer truthfully, and counted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from bisection.commits import State
from bisection.criteria import CriterionKind
from bisection.finding import Finding
from bisection.ledger import LedgerEntry, Trial
from bisection.measurement import Measurement, Outcome, Peak, Step
from bisection.search import Search
from bisection.specification import BisectionSpec
from bisection.values import worse
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


def play(
    spec: BisectionSpec, culprit: int, ledger: Sequence[LedgerEntry] = (), pending: Sequence[Trial] = ()
) -> int:
    """How many more trials the search starts if step ``culprit`` of its line is to blame.

    It goes on from ``ledger``, with ``pending`` started and counted already. A truthful world: no flake, no
    skip, trials end in the order in which they started, and values are as those that were measured.
    """
    search = Search.replay(spec, ledger)
    answer = _Answers.of(search)
    places = {state: place for place, state in enumerate(search.level.states)}
    running = deque(trial for trial in pending if trial.state in places)
    started = 0
    while True:
        decision = search.next(spec.parallel, tuple(running))
        if isinstance(decision, Finding):
            return started
        running.extend(decision)
        started += len(decision)
        trial = running.popleft()
        worker = next(f"w{n}" for n in range(spec.workers + 1) if f"w{n}" not in trial.avoid_workers)
        measured = answer.measurement(trial.state, bad=places[trial.state] >= culprit).evolve(worker=worker)
        search.record(LedgerEntry(sequence=len(search.ledger), trial=trial, measurement=measured))


@dataclass(frozen=True, kw_only=True)
class _Answers:
    """What a good and a bad state measure in a played world."""

    kind: CriterionKind
    signature: str
    good: float  #: bytes or useful tokens a second; not used for a crash
    bad: float

    @classmethod
    def of(cls, search: Search) -> _Answers:
        """The medians of what was measured on either side, and a fifth off the limit where nothing was."""
        criterion, seen = search.spec.criterion, search.standing.evidence.observations
        limit = float(criterion.capacity_bytes or 1) if criterion.threshold is None else criterion.threshold
        off = 0.2 * (abs(limit) or 1.0) * worse(criterion.kind)
        values = {
            side: [one.value for one in seen if one.bad is side and one.value is not None]
            for side in (False, True)
        }
        return cls(
            kind=criterion.kind,
            signature=search.standing.evidence.signature or criterion.signature or "failed",
            good=median(values[False]) if values[False] else limit - off,
            bad=median(values[True]) if values[True] else limit + off,
        )

    def measurement(self, state: State, *, bad: bool) -> Measurement:
        value = self.bad if bad else self.good
        if self.kind is CriterionKind.CRASH:
            outcome = Outcome.CRASHED if bad else Outcome.COMPLETED
            return Measurement(outcome=outcome, state=state, signature=self.signature if bad else "")
        if self.kind.is_metric:
            return Measurement(outcome=Outcome.COMPLETED, state=state, number=value)
        if self.kind is CriterionKind.THROUGHPUT:
            steps = tuple(
                Step(
                    step=index,
                    peak_bytes=0,
                    retained_bytes=0,
                    seconds=1000 / value,
                    loss_tokens=1000,
                    image_tokens=0,
                    padding_tokens=0,
                )
                for index in range(3)
            )
            return Measurement(outcome=Outcome.COMPLETED, state=state, steps=steps, images=1, real_data=True)
        peak = Peak(
            rank=0,
            step=0,
            phase="forward",
            instant="",
            allocated_bytes=int(value),
            reserved_bytes=int(value),
            breakdown=MemoryBreakdown(cells={(Component.DECODER, Category.ACTIVATIONS): int(value)}),
        )
        return Measurement(outcome=Outcome.COMPLETED, state=state, peak=peak)
