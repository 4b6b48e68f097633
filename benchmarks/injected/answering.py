"""What attribution says of an injected regression, from two runs alone, and whether that is right.

Nothing about the case reaches the classifier but what a report would know: the two measurements, the
delta of the resolved configurations, whether pins moved, and the comparison of the two estimates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from benchmarks.injected.injection import Injection
from benchmarks.injected.overlay import TRAINING
from benchmarks.injected.training import Run
from bisection.attribution import Regression, attribute
from bisection.configuration_delta import configuration_delta
from bisection.criteria import CriterionKind
from bisection.regression import RegressionKind
from firstbad.demo.scenarios import templates
from memory_models.breakdown import MIB
from memory_models.comparison import Comparison, compare
from workers.evidence import Side, read_side

#: A regression must be one: this many bytes above the parent's peak, many times the measurement's grain,
SMALLEST_SHOWN_BYTES = 4 * MIB
#: or this share above the parent's seconds a step, above what a busy CPU adds by itself.
SMALLEST_SHOWN_SLOWDOWN = 0.15


@dataclass(frozen=True, kw_only=True)
class Pair:
    """An injected regression as it was measured."""

    injection: Injection
    parent: Run
    culprit: Run

    @property
    def slow(self) -> bool:
        return self.injection.kind is RegressionKind.THROUGHPUT

    @property
    def growth(self) -> float:
        """Bytes of the peak, or the share of a steady step's seconds, by which the culprit is worse."""
        before, after = self.parent.measurement, self.culprit.measurement
        if self.slow:
            return after.time.total_seconds / before.time.total_seconds - 1
        assert before.peak is not None
        assert after.peak is not None
        return after.peak.allocated_bytes - before.peak.allocated_bytes

    @property
    def shows(self) -> bool:
        return self.growth >= (SMALLEST_SHOWN_SLOWDOWN if self.slow else SMALLEST_SHOWN_BYTES)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What was expected of attribution, and what it said."""

    pair: Pair
    regression: Regression

    @property
    def place_right(self) -> bool:
        """The component; the activity of a slow-down."""
        wanted = self.pair.injection
        if self.pair.slow:
            return self.regression.activity is wanted.activity
        return self.regression.component is wanted.component

    @property
    def kind_right(self) -> bool:
        return self.regression.kind is self.pair.injection.kind

    @property
    def right(self) -> bool:
        return self.place_right and self.kind_right and self.pair.shows

    @property
    def expected(self) -> str:
        wanted = self.pair.injection
        return f"{wanted.activity}" if self.pair.slow else f"{wanted.component}, {wanted.kind}"

    @property
    def answered(self) -> str:
        said = self.regression
        return f"{said.activity}" if self.pair.slow else f"{said.component}, {said.kind}"

    def table_row(self) -> str:
        """A row of docs/reference/attribution.md."""
        wanted, growth = self.pair.injection, self.pair.growth
        grew = f"{growth:+.0%}" if self.pair.slow else f"{growth / MIB:+.1f}"
        answered = "right" if self.right else self.answered if self.pair.shows else "does not show"
        return f"| {wanted.name} | {wanted.what} | {grew} | {self.expected} | {answered} |"

    def to_json(self) -> dict[str, Any]:
        wanted, said = self.pair.injection, self.regression
        return {
            "name": wanted.name,
            "expected": self.expected,
            "answered": self.answered,
            "growth": self.pair.growth,
            "shows": self.pair.shows,
            "right": [self.place_right, self.kind_right],
            "confidence": said.confidence,
            "explained_share": said.explained_share,
            "evidence": list(said.evidence),
        }


def answer(pair: Pair) -> Answer:
    changes = configuration_delta(pair.parent.config, pair.culprit.config)
    regression = attribute(
        pair.parent.measurement,
        pair.culprit.measurement,
        comparison=_comparison(pair),
        criterion=CriterionKind.THROUGHPUT if pair.slow else CriterionKind.OUT_OF_MEMORY,
        changed_keys=[change.key for change in changes],
        pins_moved=any(not edit.path.startswith(TRAINING) for edit in pair.injection.edits),
    )
    return Answer(pair=pair, regression=regression)


def _comparison(pair: Pair) -> Comparison | None:
    lock = templates()["requirements.lock"]
    sides = [
        Side(commit="", measurement=run.measurement, config=run.config, lock=lock)
        for run in (pair.parent, pair.culprit)
    ]
    try:
        old, new = (read_side(side, pair.culprit.processes) for side in sides)
        return compare(old.job, new.job)
    except (ValueError, ArithmeticError):  # as in a report, which then says so
        return None
