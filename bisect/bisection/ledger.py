"""The append-only record of a bisection: which trial was run, and what it measured.

It holds measurements and never verdicts. Replaying it through `search.Search`
gives the same next trials, so a crash anywhere is a replay.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from bisection.commits import State
from bisection.measurement import Measurement


class Purpose(StrEnum):
    """Why a trial is run; shown to people, and what decides how it is run."""

    END = "end"  #: is the good end good, the bad end bad?
    SEARCH = "search"  #: narrows the suspects
    CONFIRM = "confirm"  #: the culprit must fail again, its parent pass again
    REVERT = "revert"  #: the bad end without the culprit
    PROOF = "proof"  #: a remedy at the culprit: does the changed configuration pass?
    POINT = "point"  #: a point of a sweep: one commit under a changed configuration


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One run of the repro at one state. ``attempt`` counts its trials with these changes from 1."""

    state: State
    attempt: int
    purpose: Purpose
    why: str = ""  #: for people: what this trial is expected to tell
    enforce_capacity: bool = True  #: False: measure the whole peak, and compare it afterwards
    avoid_workers: tuple[str, ...] = ()  #: workers that measured this state already
    taken_from: str = ""  #: another bisection and the number of its trial, where it was measured; "": here
    #: keys of the configuration that it changes, on top of what all trials of its request change
    overrides: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if self.attempt < 1:
            raise ValueError("attempts count from 1")

    @property
    def key(self) -> str:
        changed = f"-{overrides_key(self.overrides)}" if self.overrides else ""
        return f"{self.state.key}{changed}-{self.attempt}"

    @property
    def is_evidence(self) -> bool:
        """Whether it is a run of the job as it was asked about: what a search may learn from."""
        return self.purpose in (Purpose.END, Purpose.SEARCH, Purpose.CONFIRM)

    def to_json(self) -> dict[str, Any]:
        return {
            "state": self.state.to_json(),
            "attempt": self.attempt,
            "purpose": self.purpose.value,
            "why": self.why,
            "enforce_capacity": self.enforce_capacity,
            "avoid_workers": list(self.avoid_workers),
            "taken_from": self.taken_from,
            "overrides": dict(self.overrides),
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Trial:
        return cls(
            state=State.from_json(row["state"]),
            attempt=row["attempt"],
            purpose=Purpose(row["purpose"]),
            why=row.get("why", ""),
            enforce_capacity=row.get("enforce_capacity", True),
            avoid_workers=tuple(row.get("avoid_workers", ())),
            taken_from=row.get("taken_from", ""),
            overrides=row.get("overrides", {}),
        )


def overrides_key(overrides: Mapping[str, Any]) -> str:
    """A digest that is equal exactly for equal changes."""
    return hashlib.sha256(json.dumps(dict(overrides), sort_keys=True).encode()).hexdigest()[:12]


@dataclass(frozen=True, kw_only=True)
class LedgerEntry:
    """One finished trial. ``sequence`` is its place in the order of arrival, from 0."""

    sequence: int
    trial: Trial
    measurement: Measurement

    def to_json(self) -> dict[str, Any]:
        return {
            "sequence": self.sequence,
            "trial": self.trial.to_json(),
            "measurement": self.measurement.to_json(),
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> LedgerEntry:
        """Raises ValueError for what is no entry."""
        try:
            return cls(
                sequence=row["sequence"],
                trial=Trial.from_json(row["trial"]),
                measurement=Measurement.from_json(row["measurement"]),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not an entry of a ledger: {error}") from error
