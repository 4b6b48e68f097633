"""One step of advice: what to set, what has to be seen before the next, and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from memory_models.job import TrainingJob

#: Device bytes of the worst rank of a job.
Size = Callable[[TrainingJob], int]


@dataclass(frozen=True, kw_only=True)
class Advice:
    """One step: what to set, what has to hold before the next, and why."""

    title: str
    change: Mapping[str, Any]  #: Bridge configuration key -> value
    gate: str  #: what has to be seen before going on
    reason: str
    #: the worst rank's device bytes after the step; None where it changes no memory
    estimate_bytes: int | None
    fits: bool

    def to_json(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "change": dict(self.change),
            "gate": self.gate,
            "reason": self.reason,
            "estimate_bytes": self.estimate_bytes,
            "fits": self.fits,
        }
