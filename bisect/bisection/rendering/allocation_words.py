"""The lines of code whose allocations differ, in words; the renderings show what strangers wrote as code."""

from __future__ import annotations

from bisection.allocations import AllocationChange
from bisection.quantities import show_bytes
from bisection.report import CulpritReport

HEADING = "Where the allocations behind the peak differ"


def rows(report: CulpritReport) -> list[tuple[str, str, str, str, str]]:
    """Component, place, bytes before and after, difference; the largest first."""
    delta = report.allocations
    if delta is None:
        return []
    return [
        (
            change.component,
            place(change),
            show_bytes(change.before_bytes),
            show_bytes(change.after_bytes),
            show_bytes(change.delta_bytes, signed=True),
        )
        for change in delta.changes
    ]


def place(change: AllocationChange) -> str:
    """The line that allocates, and the module that it runs in."""
    line = change.frames[-1] if change.frames else "unknown line"
    return f"{line} in {change.path}"


def rest(report: CulpritReport) -> str:
    """What the other places differ by together, and what a reader of the table must know."""
    delta = report.allocations
    if delta is None:
        return ""
    said = f"All other places together: {show_bytes(delta.other_bytes, signed=True)}."
    return " ".join([said, *(f"{note[:1].upper()}{note[1:]}." for note in delta.notes)])
