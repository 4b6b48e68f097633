"""Pictures made of letters: for a terminal, and for code blocks in Markdown.

Draws what a report holds; judges nothing. Every line is plain text without control characters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bisection.criteria import Verdict
from bisection.quantities import show_bytes
from bisection.regression import RegressionKind
from bisection.rendering.wording import ACTIVITY_NAMES, COMPONENT_NAMES, VERDICT_SIGNS, sides
from bisection.report import CulpritReport
from memory_models.breakdown import Activity, Component

_COMPONENT_LETTERS = dict(zip(Component, "VPDXLR", strict=True))
_ACTIVITY_LETTERS = dict(zip(Activity, "VPDXTLOAI", strict=True))


def growth_picture(report: CulpritReport, *, columns: int = 76) -> str:
    """Two bars of letters, a letter a component; "" if nothing was measured."""
    regression = report.regression
    if regression and regression.kind is RegressionKind.THROUGHPUT:
        if report.time is None:
            return ""
        return _bars(
            sides(report),
            [
                {_ACTIVITY_LETTERS[a]: seconds for a, seconds in time.by_activity().items()}
                for time in (report.time.parent, report.time.culprit)
            ],
            [f"{time.total_seconds:.3f} s" for time in (report.time.parent, report.time.culprit)],
            {letter: ACTIVITY_NAMES[a] for a, letter in _ACTIVITY_LETTERS.items()},
            None,
            columns,
        )
    memory = report.memory
    if memory is None or memory.parent is None or memory.culprit is None:
        return ""
    limit = memory.capacity_bytes
    return _bars(
        sides(report),
        [
            {_COMPONENT_LETTERS[c]: count for c, count in peak.breakdown.by_component().items()}
            for peak in (memory.parent, memory.culprit)
        ],
        [
            show_bytes(memory.parent.allocated_bytes),
            show_bytes(memory.culprit.allocated_bytes) + (" or more" if memory.truncated else ""),
        ],
        {letter: COMPONENT_NAMES[c] for c, letter in _COMPONENT_LETTERS.items()},
        (limit, f"capacity {show_bytes(limit)}") if limit else None,
        columns,
    )


def _bars(
    labels: Sequence[str],
    parts: Sequence[Mapping[str, float]],
    totals: Sequence[str],
    names: Mapping[str, str],
    limit: tuple[float, str] | None,
    columns: int,
) -> str:
    left = max(len(label) for label in labels) + 2
    room = columns - left - max(len(total) for total in totals) - 2
    highest = max([sum(bar.values()) for bar in parts] + [limit[0] if limit else 0.0]) or 1.0
    at = round(room * limit[0] / highest) if limit else -1
    lines = []
    for label, bar, total in zip(labels, parts, totals, strict=True):
        letters, so_far = "", 0.0
        for letter, value in bar.items():
            so_far += value
            letters += letter * (round(room * so_far / highest) - len(letters))
        row = letters.ljust(room)
        if 0 <= at < len(row) and row[at] == " ":
            row = f"{row[:at]}|{row[at + 1 :]}"
        lines.append(f"{label.ljust(left)}{row}  {total}")
    if limit:
        words = f"| {limit[1]}"
        lines.append(
            " " * left + (" " * at + words if at + len(words) < room else f"{limit[1]} |".rjust(at + 1))
        )
    used = [letter for letter in names if any(bar.get(letter, 0) > 0 for bar in parts)]
    return "\n".join([*lines, "  ".join(f"{letter} {names[letter]}" for letter in used)])


def timeline_picture(report: CulpritReport, *, columns: int = 76) -> str:
    """A row a trial, a column a commit (or a few); "" if nothing was tried."""
    rows = [row for row in report.trials if row.position is not None]
    count = len(report.commits)
    if not rows or count < 2:
        return ""
    room = min(columns - 6, count)
    culprits = {commit.hash for commit in report.suspects}
    marked = {_column(i, count, room) for i, commit in enumerate(report.commits) if commit.hash in culprits}
    lines = ["trial " + "".join("v" if column in marked else " " for column in range(room)).rstrip()]
    for row in rows:
        assert row.position is not None  # kept above
        at = _column(row.position, count, room)
        line = "".join(VERDICT_SIGNS[row.verdict] if column == at else "·" for column in range(room))
        lines.append(f"{row.sequence + 1:>4}  {line}")
    seen = [verdict for verdict in Verdict if any(row.verdict is verdict for row in rows)]
    signs = "  ".join(f"{VERDICT_SIGNS[verdict]} {verdict}" for verdict in seen)
    suspects = "  v suspected" if len(marked) > 1 else "  v first bad commit" if marked else ""
    return "\n".join([*lines, f"      {signs}{suspects}; good end left, bad end right"])


def _column(position: int, count: int, room: int) -> int:
    return round(position * (room - 1) / (count - 1))
