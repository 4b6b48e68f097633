"""What a search needs to know of a bisection: the range, the criterion and the limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from bisection.commits import Commit, CommitRange
from bisection.criteria import Criterion
from bisection.levels import Level, LevelKind

VERSION = 1


def end_words(end: Any) -> str:
    """An end of a range as a request named it, for people: a ref, or a ref for each repository."""
    if isinstance(end, Mapping):
        return ", ".join(f"{name} {ref}" for name, ref in end.items())
    return str(end)


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
    first: Level | None = None  #: level 0, where it is not the commits of ``range`` as they are
    opened: tuple[Level, ...] = ()  #: the levels below, outermost first; the search runs on the last one
    excluded: tuple[str, ...] = ()  #: commits that were found, and change nothing: never the culprit

    def __post_init__(self) -> None:
        if self.first is not None and self.first.range != self.range:
            raise ValueError("level 0 has another range than the specification")
        if self.parallel < 1:
            raise ValueError("parallel must be at least 1")
        if not 0.5 < self.confidence < 1:
            raise ValueError("confidence must lie between 0.5 and 1")

    @cached_property
    def levels(self) -> tuple[Level, ...]:
        """All levels, level 0 first."""
        return (self.first or Level.plain(self.range), *self.opened)

    @property
    def ground(self) -> int:
        """Which level shows what was asked about: the last one of the repository's own commits.

        Where pairs of pins were the ends and no level has those, the last one that tells the factors apart.
        """
        levels = self.levels
        ground = 0
        for number, level in enumerate(levels):
            again = level.kind is LevelKind.FACTORS and all(
                above.kind is level.kind for above in levels[:number]
            )
            if level.is_ground or again:
                ground = number
        return ground

    @property
    def shown(self) -> BisectionSpec:
        """The bisection as if the ground level were all of it: what a report is about."""
        level = self.levels[self.ground]
        plain = level.is_ground and level.is_plain
        return replace(self, range=level.range, first=None if plain else level, opened=())

    def with_level(self, level: Level) -> BisectionSpec:
        """The same bisection, one level further down."""
        return replace(self, opened=(*self.opened, level))

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
            "first": self.first.to_json() if self.first else None,
            "opened": [level.to_json() for level in self.opened],
            "excluded": list(self.excluded),
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
            # Rows of earlier releases have no levels.
            first=Level.from_json(row["first"]) if row.get("first") else None,
            opened=tuple(Level.from_json(level) for level in row.get("opened", ())),
            excluded=tuple(row.get("excluded", ())),
        )
