"""Bisections that are made of an ended one, and which of its measurements they begin with.

A measurement is of a state, an environment and a machine, not of a question: another threshold, a longer
range or a second try can start from what was measured already. Verdicts are never carried over; they are
derived anew, under the new bisection's criterion.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from bisection.criteria import Criterion, CriterionKind, Verdict, judge
from bisection.ledger import Purpose
from bisection.measurement import Measurement, Outcome

#: Trials of the job as it was asked about; the others try a revert, or a changed configuration.
EVIDENCE = (Purpose.END, Purpose.SEARCH, Purpose.CONFIRM)


class Derivation(StrEnum):
    """How a bisection was made of another one."""

    RETRY = "retry"  #: the same question; what told nothing is measured anew
    ANEW = "anew"  #: the same question; everything is measured anew
    EXTENSION = "extension"  #: an older good end or a newer bad end
    REPLAY = "replay"  #: the same range, judged by another criterion


@dataclass(frozen=True, kw_only=True)
class Ancestor:
    """Which bisection, and how this one was made of it. A normalised request holds it as ``ancestor``."""

    bisection: str
    derivation: Derivation

    def to_json(self) -> dict[str, Any]:
        return {"bisection": self.bisection, "derivation": self.derivation.value}

    @classmethod
    def of(cls, request: Mapping[str, Any]) -> Ancestor | None:
        """None for a bisection of its own, such as every one that an earlier release stored."""
        row = request.get("ancestor")
        if not row:
            return None
        return cls(bisection=row["bisection"], derivation=Derivation(row["derivation"]))

    @property
    def words(self) -> str:
        """For the report: where this bisection comes from."""
        told = {
            Derivation.RETRY: "asks again what bisection {id} asked: what told something there is "
            "taken over, and what was lost or could not be judged is measured anew",
            Derivation.ANEW: "asks again what bisection {id} asked, and measures everything anew",
            Derivation.EXTENSION: "extends the range of bisection {id}, and takes its measurements over",
            Derivation.REPLAY: "judges the measurements of bisection {id} by another criterion",
        }[self.derivation]
        return f"This bisection {told.format(id=self.bisection)}."


def is_kept(derivation: Derivation, criterion: Criterion, measured: Measurement) -> bool:
    """Whether a bisection begins with this measurement of its ancestor.

    A lost trial tells nothing of its state, and one that was refused memory below a limit that is asked
    about now does not tell what it would have needed. A retry also leaves behind what could not be judged:
    what kept a state from being built or run may be mended by now. For another criterion or another range
    that would only buy the same skip again.
    """
    if derivation is Derivation.ANEW or measured.outcome is Outcome.LOST:
        return False
    if _was_refused_below(criterion, measured):
        return False
    if derivation is Derivation.RETRY:
        return judge(criterion, measured).verdict in (Verdict.GOOD, Verdict.BAD)
    return True


def _was_refused_below(criterion: Criterion, measured: Measurement) -> bool:
    limit = criterion.capacity_bytes if criterion.kind is CriterionKind.OUT_OF_MEMORY else criterion.threshold
    if measured.outcome is not Outcome.OUT_OF_MEMORY or measured.capacity_bytes is None or limit is None:
        return False
    if criterion.kind not in (CriterionKind.OUT_OF_MEMORY, CriterionKind.PEAK_MEMORY):
        return False
    refused = measured.oom
    wanted = refused.allocated_bytes + refused.requested_bytes if refused else 0
    return measured.capacity_bytes < limit and wanted <= limit
