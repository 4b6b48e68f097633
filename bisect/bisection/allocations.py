"""Two lists of the allocations behind a peak, and where they differ: by component, module and line of code.

What the probe's full mode wrote at the last good and the first bad commit. A place is a component and the
functions that the allocation came through; line numbers are left out of the comparison, since any change of
a file moves them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

VERSION = 1
#: More would bury the few that matter; the rest is told as a sum.
MOST_CHANGES = 12
_MOST_ROWS = 1000
_MOST_BYTES = 2**50
_LONGEST = 500
_LINE = re.compile(r":\d+(?= )")


@dataclass(frozen=True, kw_only=True)
class AllocationRow:
    """The allocations of one place."""

    component: str
    path: str  #: of the module that ran
    frames: tuple[str, ...]  #: file:line function, the innermost last; on a CPU perhaps an operation
    size_bytes: int
    count: int


@dataclass(frozen=True, kw_only=True)
class AllocationTable:
    """The allocations behind one peak. Rows and what was left out sum to ``allocated_bytes``."""

    rank: int
    allocated_bytes: int
    rows: tuple[AllocationRow, ...]
    left_out_bytes: int = 0
    notes: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, row: Any) -> AllocationTable:
        """Raises ValueError for what is not the probe's file: it was written inside a training job."""
        try:
            if row["version"] != VERSION or len(row["rows"]) > _MOST_ROWS:
                raise ValueError("allocations of another version, or too many of them")
            return cls(
                rank=_number(row["rank"]),
                allocated_bytes=_number(row["allocated_bytes"]),
                rows=tuple(_row(one) for one in row["rows"]),
                left_out_bytes=_number(row["left_out_bytes"]),
                notes=tuple(_text(note) for note in row["notes"][:10]),
            )
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"not a list of allocations: {error}") from error


@dataclass(frozen=True, kw_only=True)
class AllocationChange:
    """A place whose bytes differ."""

    component: str
    path: str  #: of the first module there, at the bad commit where it is known
    frames: tuple[str, ...]  #: as at the bad commit where it is known
    before_bytes: int
    after_bytes: int
    before_count: int
    after_count: int

    @property
    def delta_bytes(self) -> int:
        return self.after_bytes - self.before_bytes


@dataclass(frozen=True, kw_only=True)
class AllocationDelta:
    """What differs, the largest first, and the difference of all other places together."""

    changes: tuple[AllocationChange, ...]
    other_bytes: int
    before_bytes: int
    after_bytes: int
    notes: tuple[str, ...] = ()


def allocation_delta(before: AllocationTable, after: AllocationTable) -> AllocationDelta:
    """Changes and the rest sum to the difference of the two peaks."""
    places: dict[tuple[str, tuple[str, ...]], list[Sequence[AllocationRow]]] = {}
    for side, table in enumerate((before, after)):
        for key, rows in _by_place(table).items():
            places.setdefault(key, [(), ()])[side] = rows
    changes = sorted(
        (_change(rows[0], rows[1]) for rows in places.values()),
        key=lambda change: (-abs(change.delta_bytes), change.component, change.frames),
    )
    shown = tuple(change for change in changes[:MOST_CHANGES] if change.delta_bytes)
    whole = after.allocated_bytes - before.allocated_bytes
    return AllocationDelta(
        changes=shown,
        other_bytes=whole - sum(change.delta_bytes for change in shown),
        before_bytes=before.allocated_bytes,
        after_bytes=after.allocated_bytes,
        notes=tuple(dict.fromkeys((*before.notes, *after.notes))),
    )


def _by_place(table: AllocationTable) -> Mapping[tuple[str, tuple[str, ...]], list[AllocationRow]]:
    found: dict[tuple[str, tuple[str, ...]], list[AllocationRow]] = {}
    for row in table.rows:
        functions = tuple(_LINE.sub("", frame, count=1) for frame in row.frames)
        found.setdefault((row.component, functions), []).append(row)
    return found


def _change(before: Sequence[AllocationRow], after: Sequence[AllocationRow]) -> AllocationChange:
    shown = (after or before)[0]
    return AllocationChange(
        component=shown.component,
        path=shown.path,
        frames=shown.frames,
        before_bytes=sum(row.size_bytes for row in before),
        after_bytes=sum(row.size_bytes for row in after),
        before_count=sum(row.count for row in before),
        after_count=sum(row.count for row in after),
    )


def _row(row: Mapping[str, Any]) -> AllocationRow:
    return AllocationRow(
        component=_text(row["component"]),
        path=_text(row["path"]),
        frames=tuple(_text(frame) for frame in row["frames"][:10]),
        size_bytes=_number(row["bytes"]),
        count=_number(row["count"]),
    )


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _MOST_BYTES:
        raise ValueError(f"{str(value)[:40]!r} is no number of bytes")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{str(value)[:40]!r} is no text")
    return value[:_LONGEST]
