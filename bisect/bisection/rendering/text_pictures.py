"""Pictures made of letters: for a terminal, and for code blocks in Markdown.

Draws what a report holds; judges nothing. Every line is plain text without control characters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bisection.criteria import Verdict
from bisection.quantities import counted, show_bytes
from bisection.regression import RegressionKind
from bisection.rendering.belief_scale import spans
from bisection.rendering.escaping import visible
from bisection.rendering.wording import ACTIVITY_NAMES, COMPONENT_NAMES, VERDICT_SIGNS, sides
from bisection.report import CulpritReport
from bisection.report_parts import BeliefHistory, BeliefRow
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


#: A letter for each shade of `belief_scale`, from none on.
_SPARKS = "·▁▂▃▅▆█"


def timeline_pictures(report: CulpritReport, *, columns: int = 76) -> list[str]:
    """A picture a level: a line a trial, a column a step (or a few), belief as the height of blocks."""
    return [picture for history in report.history if (picture := _timeline(report, history, columns))]


def _timeline(report: CulpritReport, history: BeliefHistory, columns: int) -> str:
    trials = {row.sequence: row for row in report.trials}
    rows = [(row, trials[row.sequence]) for row in history.rows if row.sequence in trials]
    if not rows or history.steps < 2:
        return ""
    room = min(columns - 20, history.steps)
    marked = {_column(position, history.steps, room) for position in history.named}
    title = [f"inside {visible(history.title, limit=60)}"] if history.level else []
    lines = [*title, "trial " + "".join("v" if column in marked else " " for column in range(room)).rstrip()]
    if not report.nothing_known:
        lines.append(f"   0  {_sparks(history, history.start, room)}")
    for row, trial in rows:
        line = "·" * room if report.nothing_known else _sparks(history, row, room)
        at = _column(row.position or 0, history.steps, room)
        left = "" if report.nothing_known else f"  {counted(row.suspects, 'suspect')}"
        lines.append(
            f"{trial.sequence + 1:>4}  {line[:at]}{VERDICT_SIGNS[trial.verdict]}{line[at + 1 :]}{left}"
        )
    seen = [verdict for verdict in Verdict if any(trial.verdict is verdict for _, trial in rows)]
    signs = "  ".join(f"{VERDICT_SIGNS[verdict]} {verdict}" for verdict in seen)
    named = "  v suspected" if len(marked) > 1 else "  v answer" if marked else ""
    blocks = "" if report.nothing_known else "; the taller a block, the likelier that it began there"
    return "\n".join([*lines, f"      {signs}{named}", f"      good end left, bad end right{blocks}"])


def _sparks(history: BeliefHistory, row: BeliefRow, room: int) -> str:
    shades = [0] * room
    for span in spans(history, row):
        for position in range(span.first, span.last + 1):
            column = _column(position, history.steps, room)
            shades[column] = max(shades[column], span.shade)
    return "".join(_SPARKS[depth] for depth in shades)


def _column(position: int, count: int, room: int) -> int:
    return round(position * (room - 1) / (count - 1))
