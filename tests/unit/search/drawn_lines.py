"""Ranges drawn as text, and a driver that runs a search on them as a pool of workers would.

".....X..s.B"     one character a commit, oldest first; the first one is the good end

.  an ordinary commit        X  the culprit: it and all after it fail
s  not buildable             o  fails for another reason
=  the same state to the profile as the commit before it
a  the state of the good end again
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bisection.commits import Commit, CommitRange
from bisection.criteria import Criterion, CriterionKind
from bisection.finding import Finding
from bisection.ledger import LedgerEntry, Trial
from bisection.measurement import Measurement, Outcome, OutOfMemory, Peak
from bisection.search import Search
from bisection.specification import BisectionSpec, Budget
from memory_models.breakdown import GIB, Category, Component, MemoryBreakdown

CAPACITY = 80 * GIB


def hash_of(position: int) -> str:
    return f"{position:040x}"


def peak_of(allocated_bytes: int) -> Peak:
    cells = {(Component.EXPERTS, Category.ACTIVATIONS): allocated_bytes}
    return Peak(
        rank=0,
        step=0,
        phase="forward",
        instant="",
        allocated_bytes=allocated_bytes,
        reserved_bytes=allocated_bytes,
        breakdown=MemoryBreakdown(cells=cells),
    )


@dataclass(kw_only=True)
class DrawnLine:
    """A drawn range, what its trials come to, and with which flake rates."""

    drawing: str
    kind: CriterionKind = CriterionKind.CRASH
    false_negative: float = 0.0
    false_positive: float = 0.0
    good_bytes: int = 60 * GIB
    bad_bytes: int = 90 * GIB
    noise_bytes: int = 0
    seed: int = 0
    random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    @property
    def culprit(self) -> int | None:
        return self.drawing.index("X") if "X" in self.drawing else None

    def commits(self) -> CommitRange:
        commits: list[Commit] = []
        for position, drawn in enumerate(self.drawing):
            tree = f"tree-{position}"
            if drawn == "=":
                tree = commits[-1].tree_key
            elif drawn == "a":
                tree = commits[0].tree_key
            parents = (hash_of(position - 1),) if position else ()
            commits.append(
                Commit(hash=hash_of(position), parents=parents, tree_key=tree, environment_key="environment")
            )
        return CommitRange(commits=tuple(commits))

    def specification(self, **changes: Any) -> BisectionSpec:
        criterion = {
            CriterionKind.CRASH: Criterion(kind=CriterionKind.CRASH),
            CriterionKind.OUT_OF_MEMORY: Criterion(kind=CriterionKind.OUT_OF_MEMORY, capacity_bytes=CAPACITY),
            CriterionKind.PEAK_MEMORY: Criterion(kind=CriterionKind.PEAK_MEMORY, threshold=float(CAPACITY)),
        }[self.kind]
        spec = BisectionSpec(range=self.commits(), criterion=criterion, budget=Budget(trials=200))
        return replace(spec, **changes)

    def bad(self, position: int) -> bool:
        return self.culprit is not None and position >= self.culprit

    def run(self, trial: Trial, worker: str = "worker-0") -> Measurement:
        """What a trial comes to."""
        position = int(trial.state.commit, 16)
        drawn = self.drawing[position]
        found = Measurement(outcome=Outcome.COMPLETED, state=trial.state, worker=worker, seconds=30.0)
        if drawn == "s":
            return found.evolve(outcome=Outcome.UNBUILDABLE, reason="an import failed")
        if drawn == "o":
            return found.evolve(
                outcome=Outcome.CRASHED, reason="KeyError: 'lr'", signature="KeyError in setup"
            )
        flake = self.random.random() < (self.false_negative if self.bad(position) else self.false_positive)
        bad = self.bad(position) != flake
        if self.kind is CriterionKind.CRASH:
            if bad:
                return found.evolve(outcome=Outcome.CRASHED, signature="ValueError in experts")
            return found
        peak = round((self.bad_bytes if bad else self.good_bytes) + self.random.gauss(0, self.noise_bytes))
        if peak > CAPACITY and self.kind is CriterionKind.OUT_OF_MEMORY and trial.enforce_capacity:
            refused = OutOfMemory(
                component="experts",
                phase="forward",
                requested_bytes=GIB,
                allocated_bytes=CAPACITY - GIB // 2,
                reserved_bytes=CAPACITY - GIB // 2,
            )
            return found.evolve(outcome=Outcome.OUT_OF_MEMORY, oom=refused, signature="out_of_memory")
        return found.evolve(peak=peak_of(peak))


Order = Callable[[list[Trial]], int]


def oldest_first(_running: list[Trial]) -> int:
    return 0


def drive(
    line: DrawnLine,
    spec: BisectionSpec,
    *,
    order: Order = oldest_first,
    ledger: Sequence[LedgerEntry] = (),
    most: int = 400,
) -> tuple[Finding, list[LedgerEntry]]:
    """Run a search to its end with ``spec.parallel`` slots; ``order`` picks which running trial ends next."""
    search = Search.replay(spec, ledger)
    entries = list(ledger)
    running: list[Trial] = []
    for _ in range(most):
        decision = search.next(spec.parallel, running)
        if isinstance(decision, Finding):
            return decision, entries
        running += decision
        assert running, "the search waits for nothing"
        running = _without_cancelled(search, running)
        trial = running.pop(order(running))
        entry = LedgerEntry(
            sequence=len(entries), trial=trial, measurement=line.run(trial, worker_for(trial, spec.workers))
        )
        search.record(entry)
        entries.append(entry)
    raise AssertionError("the search does not come to an end")


def _without_cancelled(search: Search, running: list[Trial]) -> list[Trial]:
    """As production does; what is cancelled must not be asked for again before anything new is known."""
    gone = search.cancellable(running)
    kept = [trial for trial in running if trial not in gone]
    asked = search.next(search.spec.parallel, kept)
    assert isinstance(asked, Finding) or not {t.state for t in gone} & {t.state for t in asked}
    assert kept, "every running trial is cancelled, and the search is not over"
    return kept


def worker_for(trial: Trial, workers: int) -> str:
    """The first worker that the trial does not avoid; any, if it avoids them all."""
    names = [f"worker-{number}" for number in range(workers)]
    return next((name for name in names if name not in trial.avoid_workers), names[0])
