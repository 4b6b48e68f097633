"""The course of a dry run's memory as one picture: allocated bytes from instant to instant, by step."""

from __future__ import annotations

from bisection.quantities import show_bytes
from bisection.rendering.svg import WIDE, Canvas, standalone, ticks
from memory_models.breakdown import GIB, MIB
from workers.rank_files import RankFile

STAMP = "SIMULATED on DRY RUN, not a GPU"
_HEIGHT = 220.0
_STEP_WIDTH = 40.0


def timeline_picture(file: RankFile, capacity_bytes: int | None) -> str:
    """A whole SVG file. Instants are of equal width: a dry run has no seconds."""
    points = file.instants
    peak = file.peak.allocated_bytes if file.peak else 0
    highest = max([peak, capacity_bytes or 0, *(point.allocated_bytes for point in points)])
    where = f"{file.peak.instant}, step {file.peak.step}" if file.peak else "nowhere"
    canvas = Canvas(
        "timeline",
        f"Allocated memory of rank {file.rank} of {file.world_size}",
        f"The peak is {show_bytes(peak)} at {where}; {len(points)} instants, each of a module in a phase.",
        width=WIDE,
        stamp=STAMP,
    )
    left, top, right = 48.0, canvas.top + 16, canvas.width - 8.0
    unit, name = (GIB, "GiB") if highest >= GIB else (MIB, "MiB")

    def x_of(index: int) -> float:
        return left + (right - left) * index / max(1, len(points) - 1)

    def y_of(size: float) -> float:
        return top + _HEIGHT * (1 - size / max(highest, 1) / 1.05)

    canvas.text(0, top - 4, name, "fb-small fb-muted")
    for value in ticks(highest / unit, 6):
        y = y_of(value * unit)
        canvas.line(left, y, right, y)
        canvas.text(left - 6, y + 4, f"{value:g}", "fb-small fb-muted fb-end")
    for index, point in enumerate(points):
        begins = index == 0 or point.step != points[index - 1].step
        if begins and x_of(index) < right - _STEP_WIDTH:  # the run's end is no step
            canvas.line(x_of(index), top, x_of(index), top + _HEIGHT)
            words = f"step {point.step}" if point.step >= 0 else "start"
            canvas.text(x_of(index) + 3, top + _HEIGHT + 14, words, "fb-small fb-muted")
    if capacity_bytes:
        canvas.line(left, y_of(capacity_bytes), right, y_of(capacity_bytes), "fb-limit")
        words = f"capacity {show_bytes(capacity_bytes)}"
        canvas.text(right, y_of(capacity_bytes) - 4, words, "fb-limit-text fb-end")
    canvas.path([(x_of(at), y_of(point.allocated_bytes)) for at, point in enumerate(points)], "fb-bad-line")
    if points:
        at = max(range(len(points)), key=lambda index: points[index].allocated_bytes)
        tip = f"{points[at].instant}: {show_bytes(points[at].allocated_bytes)}"
        canvas.rect(x_of(at) - 3, y_of(points[at].allocated_bytes) - 3, 6, 6, "fb-bad", tip=tip, round_by=3)
        side = "fb-strong fb-end" if x_of(at) > canvas.width / 2 else "fb-strong"
        canvas.text(x_of(at), y_of(points[at].allocated_bytes) - 8, show_bytes(peak), side)
    return standalone(canvas.finish(top + _HEIGHT + 24))
