"""A sweep's report for a terminal: the answer, a plot of letters, the points, and what was said of them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from bisection.quantities import show_bytes
from bisection.rendering.escaping import visible
from bisection.rendering.sweep_words import (
    SHORT_HEADS,
    PointWords,
    answer,
    limit_words,
    point_words,
    said_words,
    stamp,
    tally,
    title,
    trainable_words,
)
from bisection.rendering.wording import NOT_MODELLED
from bisection.sweep_report import SweepReport

_LEFT = {1, 7}  #: columns of words; the others are numbers


def render_sweep_text(report: SweepReport, *, columns: int = 110) -> str:
    """The whole report as plain text without control characters."""
    lines = [visible(title(report)) + (f"  [{stamp(report)}]" if stamp(report) else ""), ""]
    lines += _wrap(visible(answer(report)), columns)
    if report.failure and report.points:
        lines += _wrap(visible(report.failure), columns)
    lines += _wrap(f"{tally(report)}; {limit_words(report)}; {trainable_words(report)}.", columns)
    if report.points:
        lines += ["", *plot(report, columns=columns), "", *_table(report)]
    said = said_words(report)
    if said:
        lines.append("")
        for numbers, standing, words in said:
            lines += _wrap(f"{numbers}  {standing}: {visible(words)}", columns, indent=4)
    if report.simulation is not None:
        lines.append("")
        for note in report.simulation.notes:
            lines += _wrap(visible(note), columns)
        if report.simulation.not_modelled:
            lines.append(f"{NOT_MODELLED}:")
        for told in report.simulation.not_modelled:
            lines += _wrap(f"- {visible(told)}", columns, indent=2)
    return "\n".join(lines) + "\n"


def plot(report: SweepReport, *, columns: int = 110) -> list[str]:
    """Two bars a point: useful tokens a second, and the peak with its estimate and the capacity marked."""
    width = max(10, (columns - 44) // 2)
    fastest = max((row.rate or 0.0 for row in report.points), default=0.0)
    sizes = [row.peak_bytes or row.least_bytes or 0 for row in report.points]
    estimates = [row.estimate.allocated_bytes for row in report.points]
    widest = max([*sizes, *estimates, report.capacity_bytes or 0, 1])
    speed, memory = "useful tokens/s", f"peak to {show_bytes(widest)}, | the estimate, ! the capacity"
    lines = [f"{'#':>3} {speed:<{width + 11}} {memory}"]
    for words, row, size in zip(point_words(report), report.points, sizes, strict=True):
        if not size:
            continue
        rate = "=" * round(width * (row.rate or 0.0) / fastest) if fastest else ""
        bar = list(("#" if row.peak_bytes else "x") * round(width * size / widest))
        bar += " " * (width + 1 - len(bar))
        if report.capacity_bytes:
            bar[round(width * report.capacity_bytes / widest)] = "!"
        if row.estimate.allocated_bytes:
            bar[round(width * row.estimate.allocated_bytes / widest)] = "|"
        told = f"{rate} {words.rate or words.standing}"[: width + 11]
        lines.append(f"{words.number:>3} {told:<{width + 11}} {''.join(bar)}".rstrip())
    return lines


def _table(report: SweepReport) -> Iterable[str]:
    rows = [SHORT_HEADS, *(words.short_cells for words in point_words(report))]
    widths = [max(len(row[n]) for row in rows) for n in range(len(SHORT_HEADS))]
    yield "  ".join(_cell(head, widths[n], n) for n, head in enumerate(SHORT_HEADS)).rstrip()
    for words in point_words(report):
        yield _row(words, widths)


def _row(words: PointWords, widths: list[int]) -> str:
    line = "  ".join(_cell(visible(cell), widths[n], n) for n, cell in enumerate(words.short_cells)).rstrip()
    return f"{line}  <- best" if words.is_best else line


def _cell(text: str, width: int, column: int) -> str:
    return text.ljust(width) if column in _LEFT else text.rjust(width)


def _wrap(text: str, columns: int, *, indent: int = 0) -> list[str]:
    return textwrap.wrap(
        text, columns, subsequent_indent=" " * indent, break_on_hyphens=False, break_long_words=False
    ) or [""]
