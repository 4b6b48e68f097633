"""What a search needs to know of a bisection: the range, the criterion and the limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bisection.commits import Commit, CommitRange
from bisection.criteria import Criterion

VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What may be spent. The best answer so far is given when one of them is used up."""

    trials: int = 60
    gpu_hours: float | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.trials < 2:
            raise ValueError("a budget below two trials cannot even measure both ends")

    def to_json(self) -> dict[str, Any]:
        return {"trials": self.trials, "gpu_hours": self.gpu_hours, "seconds": self.seconds}


@dataclass(frozen=True, kw_only=True)
class BisectionSpec:
    """A bisection with everything resolved: it and a ledger determine every next trial."""

    range: CommitRange
    criterion: Criterion
    budget: Budget = Budget()
    parallel: int = 1  #: trials that may run at once
    confidence: float = 0.99  #: posterior at which a commit may be named
    seed: int = 0
    relevant_paths: tuple[str, ...] = ()  #: prefixes that can change the repro; empty: all
    gpus_per_trial: int = 0
    workers: int = 1  #: distinct worker processes that serve the pool

    def __post_init__(self) -> None:
        if self.parallel < 1:
            raise ValueError("parallel must be at least 1")
        if not 0.5 < self.confidence < 1:
            raise ValueError("confidence must lie between 0.5 and 1")

    def to_json(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "commits": [commit.to_json() for commit in self.range.commits],
            "criterion": self.criterion.to_json(),
            "budget": self.budget.to_json(),
            "parallel": self.parallel,
            "confidence": self.confidence,
            "seed": self.seed,
            "relevant_paths": list(self.relevant_paths),
            "gpus_per_trial": self.gpus_per_trial,
            "workers": self.workers,
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> BisectionSpec:
        if row.get("version") != VERSION:
            raise ValueError(f"specification version {row.get('version')!r} is not known here")
        return cls(
            range=CommitRange(commits=tuple(Commit.from_json(c) for c in row["commits"])),
            criterion=Criterion.from_json(row["criterion"]),
            budget=Budget(**row["budget"]),
            parallel=row["parallel"],
            confidence=row["confidence"],
            seed=row["seed"],
            relevant_paths=tuple(row["relevant_paths"]),
            gpus_per_trial=row["gpus_per_trial"],
            workers=row["workers"],
        )
