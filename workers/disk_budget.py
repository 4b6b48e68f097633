"""Which kept things must go, so that the rest fits into a budget: those that were longest not used.

Workspaces and environments are kept so. What a thing is, and how it is removed, is its keeper's matter.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True, order=True)
class Kept:
    """Something on the disk, ordered by when it was last used."""

    used_ns: int
    name: str
    bytes: int
    folder: Path


def beyond(budget_bytes: int, kept: Iterable[Kept]) -> list[Kept]:
    """What was longest not used, oldest first, once the newest have filled the budget.

    A thing that does not fit goes even if an older and smaller one would: the answer must not depend on sizes
    that happened to be made.
    """
    left = budget_bytes
    going = []
    for thing in sorted(kept, reverse=True):
        left -= thing.bytes
        if left < 0:
            going.append(thing)
    return going[::-1]
