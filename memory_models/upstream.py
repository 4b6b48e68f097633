"""Which behaviour of upstream a job runs with: changes of megatron-core and Bridge that moved memory.

Here live the changes, when they came, and how a date or a release says which of them a run
lacks. The formulas ask ``Upstream.has``; nothing else in the memory model knows a commit. Without a
word about the version, the newest behaviour is taken.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from typing import Any


class Repository(StrEnum):
    """Where a change was made, by the names that a request gives the pins."""

    BRIDGE = "megatron-bridge"
    CORE = "megatron-lm"


class Change(StrEnum):
    """A change of behaviour that memory follows from."""

    EARLY_PROBABILITIES = "routing probabilities weigh the experts' activation, and no longer their output"
    EXPERT_TENSOR_ONE = "an unset expert tensor size means 1 where EP > 1, and no longer TP"
    DISPATCH_RELEASED = "the unfused combine no longer keeps its permuted tokens under recompute"
    GRADIENT_UNITS = "FSDP's optim_grads reduces unit by unit, and no longer the whole model at once"
    UNIT_CAP = "FSDP's communication unit is at most 1e9 elements, and no longer at least"


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """When a change came: the day of its merge, and the first release that can hold it."""

    repository: Repository
    reference: str
    day: date
    release: tuple[int, int]


#: Of PR #6357 only the month is known (opened 2026-08-07): a day within it counts as before. No release of
#: megatron-core up to 0.18 (July 2026) holds a change of August.
ARRIVALS: Mapping[Change, Arrival] = {
    Change.EARLY_PROBABILITIES: Arrival(
        repository=Repository.CORE, reference="4345720d00", day=date(2025, 4, 9), release=(0, 13)
    ),
    Change.EXPERT_TENSOR_ONE: Arrival(
        repository=Repository.BRIDGE, reference="6f2f546ef (#4579)", day=date(2026, 7, 1), release=(0, 6)
    ),
    Change.DISPATCH_RELEASED: Arrival(
        repository=Repository.CORE, reference="07a0de65ad (#5197)", day=date(2026, 8, 7), release=(0, 19)
    ),
    Change.GRADIENT_UNITS: Arrival(
        repository=Repository.CORE, reference="#6357", day=date(2026, 9, 1), release=(0, 19)
    ),
    Change.UNIT_CAP: Arrival(
        repository=Repository.CORE, reference="#7134", day=date(2026, 9, 8), release=(0, 19)
    ),
}

_RELEASE = re.compile(r"v?(\d+)\.(\d+)(\.\w+)*(\+\S*)?")


@dataclass(frozen=True, kw_only=True)
class Upstream:
    """The changes that the code of a run lacks; none of them by default."""

    lacks: frozenset[Change] = frozenset()

    def has(self, change: Change) -> bool:
        return change not in self.lacks

    def told(self) -> tuple[str, ...]:
        """A note for each change that the run lacks, in a fixed order."""
        return tuple(
            f"before {ARRIVALS[change].repository.value} {ARRIVALS[change].reference}: estimated without "
            f"its change ({change.value})"
            for change in Change
            if change in self.lacks
        )


NEWEST = Upstream()


def upstream_at(versions: Mapping[str, Any]) -> Upstream:
    """The behaviour of ``{"megatron-bridge": "0.3.1", "megatron-lm": "2026-06-01"}``: releases or days.

    A day is that of the commit that runs. A repository that is not named is taken at its newest. Raises
    ValueError for another repository, and for words that are neither a release nor a day: a hash alone
    does not say what came before it.
    """
    unknown = sorted(set(versions) - set(Repository))
    if unknown:
        raise ValueError(f"{unknown[0]!r} is no upstream repository; name {' or '.join(Repository)}")
    lacks: set[Change] = set()
    for change, arrival in ARRIVALS.items():
        known = versions.get(arrival.repository.value)
        if known is not None and _before(str(known), arrival):
            lacks.add(change)
    return Upstream(lacks=frozenset(lacks))


def _before(known: str, arrival: Arrival) -> bool:
    try:
        return date.fromisoformat(known[:10]) < arrival.day
    except ValueError:
        pass
    release = _RELEASE.fullmatch(known)
    if release is None:
        raise ValueError(
            f"{known!r} is neither a release (0.3.1) nor the day of a commit (2026-06-01) of "
            f"{arrival.repository.value}; a hash alone does not say what came before it"
        )
    return (int(release[1]), int(release[2])) < arrival.release
