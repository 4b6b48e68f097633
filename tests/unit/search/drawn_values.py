"""Ranges drawn by the peak of each commit, in GiB, as a metric with or without noise sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bisection.criteria import Criterion, CriterionKind
from bisection.ledger import Trial
from bisection.measurement import Measurement, Outcome, Step
from bisection.specification import BisectionSpec, Budget
from memory_models.breakdown import GIB
from tests.unit.search.drawn_lines import DrawnLine, hash_of, peak_of

#: Tokens a second that stand for one GiB, where the values are read as a throughput.
TOKENS = 100


class DrawnValues(DrawnLine):
    """A line whose commits have a value each; the criterion compares them with ``limit``."""

    def __init__(
        self,
        values: Sequence[float],
        limit: float,
        *,
        kind: CriterionKind = CriterionKind.PEAK_MEMORY,
        noise: float = 0.0,
        seed: int = 0,
    ) -> None:
        super().__init__(drawing="." * len(values), kind=kind, seed=seed)
        self.values, self.limit, self.noise = values, limit, noise

    def specification(self, **changes: Any) -> BisectionSpec:
        if self.kind is CriterionKind.OUT_OF_MEMORY:
            criterion = Criterion(kind=self.kind, capacity_bytes=round(self.limit * GIB))
        else:
            unit = TOKENS if self.kind is CriterionKind.THROUGHPUT else GIB
            criterion = Criterion(kind=self.kind, threshold=self.limit * unit)
        fields: dict[str, Any] = {"budget": Budget(trials=80), **changes}
        return BisectionSpec(range=self.commits(), criterion=criterion, **fields)

    def run(self, trial: Trial, worker: str = "worker-0") -> Measurement:
        position = int(trial.state.commit, 16)
        value = self.values[position] + self.random.gauss(0, self.noise)
        found = Measurement(outcome=Outcome.COMPLETED, state=trial.state, worker=worker, seconds=30.0)
        if self.kind is CriterionKind.THROUGHPUT:
            # The work is the same at every commit; the time that it takes is not.
            steps = tuple(
                Step(step=n, peak_bytes=0, retained_bytes=0, seconds=100 / value, loss_tokens=100 * TOKENS,
                     image_tokens=0, padding_tokens=0)
                for n in range(2)
            )  # fmt: skip
            return found.evolve(steps=steps, images=4, real_data=True)
        if self.kind is CriterionKind.OUT_OF_MEMORY and value > self.limit and trial.enforce_capacity:
            return found.evolve(outcome=Outcome.OUT_OF_MEMORY, signature="out_of_memory")
        return found.evolve(peak=peak_of(round(value * GIB)))


def steps_at(size: int, *steps: tuple[int, float], base: float = 60.0) -> list[float]:
    """Values of ``size`` commits that rise by so much at each of these positions."""
    return [base + sum(rise for at, rise in steps if position >= at) for position in range(size)]


def climb(size: int, rise: float, *, base: float = 60.0) -> list[float]:
    return [base + rise * position / (size - 1) for position in range(size)]


def hashes(positions: range) -> tuple[str, ...]:
    return tuple(hash_of(position) for position in positions)
