"""A picture of peak and retained bytes from step to step.

Draws what a report holds; judges nothing.
"""

from __future__ import annotations

from bisection.quantities import show_bytes
from bisection.rendering.svg import WIDE, Canvas, text_width, ticks
from bisection.rendering.wording import sides, stamp
from bisection.report import CulpritReport
from memory_models.breakdown import GIB, MIB


def step_lines(report: CulpritReport, *, width: int = WIDE, suffix: str = "") -> str:
    """Peak and retained bytes by step, both sides; "" with fewer than two steps on a side."""
    memory = report.memory
    if memory is None or min(len(memory.parent_steps), len(memory.culprit_steps)) < 2:
        return ""
    before, after = sides(report)
    series = [
        (side, kind, "fb-good-line" if old else "fb-bad-line", [getattr(s, name) for s in rows])
        for old, side, rows in (
            (True, before, memory.parent_steps),
            (False, after, memory.culprit_steps),
        )
        for kind, name in (("peak", "peak_bytes"), ("after the step", "retained_bytes"))
    ]
    limit = memory.capacity_bytes
    highest = max([max(values) for *_, values in series] + [limit or 0])
    unit, unit_name = (GIB, "GiB") if highest >= 10 * GIB else (MIB, "MiB")
    said = "; ".join(
        f"{side}, {kind}: " + ", ".join(show_bytes(v) for v in values) for side, kind, _, values in series
    )
    canvas = Canvas(
        f"steps{suffix}", "Peak and retained bytes, by step", f"{said}.", width=width, stamp=stamp(report)
    )
    left, top, height = 44.0, canvas.top + 10, 150.0
    right = canvas.width - 8.0
    count = max(len(values) for *_, values in series)

    def at(index: int, value: float) -> tuple[float, float]:
        across = (right - left - 28) * index / (count - 1)
        return left + 14 + across, top + height * (1 - value / highest / 1.05)

    for value in ticks(highest / unit, 5):
        y = at(0, value * unit)[1]
        canvas.line(left, y, right, y)
        canvas.text(left - 6, y + 4, f"{value:g}", "fb-small fb-muted fb-end")
    for index in range(count):
        canvas.text(at(index, 0)[0], top + height + 16, f"step {index}", "fb-small fb-muted fb-middle")
    canvas.text(0, top - 2, unit_name, "fb-small fb-muted")
    if limit:
        y = at(0, limit)[1]
        canvas.line(left, y, right, y, "fb-limit")
    for side, kind, style, values in series:
        points = [at(index, value) for index, value in enumerate(values)]
        canvas.path(points, _style(style, kind))
        for (x, y), value in zip(points, values, strict=True):
            mark = "fb-good" if style == "fb-good-line" else "fb-bad"
            _dot(canvas, x, y, mark, f"{side}, {kind}: {show_bytes(value)}")
    y, x = top + height + 38, 0.0
    legend = [(f"{side}, {kind}", _style(line, kind)) for side, kind, line, _ in series]
    for words, style in legend + ([("capacity", "fb-limit")] if limit else []):
        wide = 30 + text_width(words) * 1.02 + 12
        if x + wide - 12 > canvas.width:
            x, y = 0.0, y + 19
        canvas.line(x, y - 4, x + 24, y - 4, style)
        canvas.text(x + 30, y, words)
        x += wide
    return canvas.finish(y + 8)


def _style(line: str, kind: str) -> str:
    return line if kind == "peak" else f"{line} fb-dashed"


def _dot(canvas: Canvas, x: float, y: float, style: str, tip: str) -> None:
    """A round mark for the parent, a square one for the culprit: told apart without colour."""
    if style == "fb-good":
        canvas.shape(f"M{x - 4:.1f} {y:.1f} a4 4 0 1 0 8 0 a4 4 0 1 0 -8 0 Z", style, tip=tip)
    else:
        canvas.rect(x - 3.5, y - 3.5, 7, 7, style, tip=tip)
