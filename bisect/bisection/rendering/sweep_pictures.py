"""A picture of a sweep: speed against memory, each point beside what was estimated for it.

Draws what a report holds; judges nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from bisection.quantities import show_bytes
from bisection.rendering.svg import WIDE, Canvas, ticks
from bisection.rendering.sweep_words import point_name, stamp
from bisection.sweep_report import PointResult, Standing, SweepReport
from memory_models.breakdown import GIB, MIB

_HEIGHT = 260.0
_Scale = Callable[[float], float]


def sweep_picture(report: SweepReport, *, width: int = WIDE, suffix: str = "") -> str:
    """Useful tokens a second over the peak; "" before anything was measured.

    A ring is the estimate, joined to what was measured; a square on the ground ran out of memory there.
    """
    measured = [row for row in report.points if row.rate is not None and row.peak_bytes is not None]
    refused = [row for row in report.points if row.standing is Standing.OUT_OF_MEMORY and row.least_bytes]
    if not measured and not refused:
        return ""
    sizes = [row.peak_bytes or row.least_bytes or 0 for row in (*measured, *refused)]
    sizes += [row.estimate.allocated_bytes for row in (*measured, *refused)]
    widest = max([*sizes, report.capacity_bytes or 0]) * 1.08
    fastest = max((row.rate or 0.0 for row in measured), default=1.0) * 1.12
    unit, unit_name = (GIB, "GiB") if widest >= 10 * GIB else (MIB, "MiB")
    told = "; ".join(
        f"{point_name(row)}: {row.rate:,.1f} useful tokens a second, {show_bytes(row.peak_bytes or 0)}"
        for row in measured
    )
    canvas = Canvas(
        f"sweep{suffix}",
        "Useful tokens a second, by peak memory",
        f"{told or 'Every point ran out of memory'}.",
        width=width,
        stamp=stamp(report),
    )
    left, top, right = 52.0, canvas.top + 12, canvas.width - 10.0
    ground = top + _HEIGHT

    def across(size: float) -> float:
        return left + (right - left) * size / widest

    def up(rate: float) -> float:
        return ground - _HEIGHT * rate / fastest

    for value in ticks(fastest, 5):
        canvas.line(left, up(value), right, up(value))
        canvas.text(left - 6, up(value) + 4, f"{value:,g}", "fb-small fb-muted fb-end")
    for value in ticks(widest / unit, 6 if width > 500 else 3):
        canvas.text(across(value * unit), ground + 16, f"{value:,g}", "fb-small fb-muted fb-middle")
    canvas.text(right, ground + 32, f"peak, {unit_name}", "fb-small fb-muted fb-end")
    if report.capacity_bytes:
        x = across(report.capacity_bytes)
        canvas.line(x, top, x, ground, "fb-limit")
        canvas.text(x - 4, top + 10, "capacity", "fb-small fb-limit-text fb-end")
    for row in measured:
        _measured(canvas, report, row, across, up)
    for row in refused:
        x = across(row.least_bytes or 0)
        number = report.points.index(row) + 1
        _estimated(canvas, row, across, x, ground - 4)
        canvas.rect(x - 4, ground - 8, 8, 8, "fb-bad", tip=f"{point_name(row)}: {row.why}")
        canvas.text(x, ground - 12, str(number), "fb-small fb-halo fb-middle")
    canvas.text(0, ground + 50, "numbers are the rows of the table", "fb-small fb-muted")
    y = ground + 66
    canvas.text(0, y, "dot: measured; ring: estimated; square: ran out of memory", "fb-small fb-muted")
    return canvas.finish(y + 8)


def _measured(canvas: Canvas, report: SweepReport, row: PointResult, across: _Scale, up: _Scale) -> None:
    x, y = across(row.peak_bytes or 0), up(row.rate or 0.0)
    index = report.points.index(row)
    _estimated(canvas, row, across, x, y)
    size = 6 if index == report.best else 4
    canvas.shape(
        f"M{x - size:.1f} {y:.1f} a{size} {size} 0 1 0 {2 * size} 0 a{size} {size} 0 1 0 {-2 * size} 0 Z",
        "fb-skip" if row.incomparable else "fb-good",
        tip=f"{point_name(row)}: {row.rate:,.1f} useful tokens a second, {show_bytes(row.peak_bytes or 0)}",
    )
    bold = " fb-strong" if index == report.best else ""
    canvas.text(x, y - 9, str(index + 1), f"fb-small fb-halo fb-middle{bold}")


def _estimated(canvas: Canvas, row: PointResult, across: _Scale, x: float, y: float) -> None:
    """A ring at the estimate, joined to what was measured; nothing where there is no estimate."""
    if not row.estimate.allocated_bytes:
        return
    at = across(row.estimate.allocated_bytes)
    canvas.line(at, y, x, y, "fb-path")
    canvas.shape(
        f"M{at - 4:.1f} {y:.1f} a4 4 0 1 0 8 0 a4 4 0 1 0 -8 0 Z",
        "fb-retry",
        tip=f"{point_name(row)}: estimated {show_bytes(row.estimate.allocated_bytes)}",
    )
