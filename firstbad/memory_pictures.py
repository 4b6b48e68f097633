"""An estimate as one picture: a stacked bar a pipeline rank, by component, against the capacity."""

from __future__ import annotations

from bisection.quantities import show_bytes
from bisection.rendering.svg import WIDE, Canvas, standalone, text_width, ticks
from bisection.rendering.wording import COMPONENT_NAMES
from memory_models.breakdown import GIB, Component
from memory_models.estimation import Estimate, RankEstimate

_BAR, _GAP = 26, 8


def estimate_picture(answer: Estimate, capacity_bytes: int | None) -> str:
    """A whole SVG file. The thin end of a bar is what lies outside the allocator's figure."""
    said = "; ".join(
        f"rank {rank.stage}: {show_bytes(rank.device_bytes)} at {rank.instant}" for rank in answer.ranks
    )
    limit = f" The capacity is {show_bytes(capacity_bytes)}." if capacity_bytes else ""
    canvas = Canvas("estimate", "Estimated memory by pipeline rank", f"{said}.{limit}", width=WIDE)
    labels = [(f"rank {rank.stage}, {rank.instant}", show_bytes(rank.device_bytes)) for rank in answer.ranks]
    left = 12 + max(text_width(label, 11) for label, _ in labels)
    right = canvas.width - 14 - max(text_width(total) for _, total in labels)
    highest = max([rank.device_bytes for rank in answer.ranks] + [capacity_bytes or 0])
    scale = (right - left) / highest
    top = y = canvas.top + (20 if capacity_bytes else 4)
    for rank, (label, total) in zip(answer.ranks, labels, strict=True):
        canvas.text(0, y + 17, label, "fb-small fb-muted")
        end = _bar(canvas, rank, left, y, scale)
        canvas.text(end + 6, y + 17, total, "fb-strong")
        y += _BAR + _GAP
    for value in ticks(highest / GIB, 8):
        x = left + value * GIB * scale
        canvas.line(x, y - 4, x, y)
        canvas.text(x, y + 13, f"{value:g}", "fb-small fb-muted fb-middle")
    canvas.line(left, y - 4, right, y - 4)
    canvas.text(canvas.width, y + 13, "GiB", "fb-small fb-muted fb-end")
    if capacity_bytes:
        x = left + capacity_bytes * scale
        canvas.line(x, top - 6, x, y - 4, "fb-limit")
        canvas.text(x, top - 10, f"capacity {show_bytes(capacity_bytes)}", "fb-limit-text fb-end")
    return standalone(canvas.finish(_legend(canvas, y + 34)))


def _bar(canvas: Canvas, rank: RankEstimate, left: float, y: float, scale: float) -> float:
    x = left
    for index, (component, count) in enumerate(rank.breakdown.by_component().items()):
        if count:
            tip = f"rank {rank.stage}, {COMPONENT_NAMES[component]}: {show_bytes(count)}"
            canvas.rect(x, y, count * scale, _BAR, f"fb-part fb-c{index}", tip=tip)
            x += count * scale
    outside = rank.device_bytes - rank.allocated_bytes
    if outside:
        tip = f"rank {rank.stage}, fragmentation and context: {show_bytes(outside)}"
        canvas.rect(x, y + _BAR / 4, outside * scale, _BAR / 2, "fb-part fb-c8", tip=tip)
        x += outside * scale
    return x


def _legend(canvas: Canvas, y: float) -> float:
    x = 0.0
    names = [(COMPONENT_NAMES[component], index) for index, component in enumerate(Component)]
    for name, colour in [*names, ("outside the allocator", 8)]:
        wide = 16 + text_width(name) + 14
        if x + wide - 14 > canvas.width:
            x, y = 0.0, y + 19
        canvas.rect(x, y - 10, 11, 11, f"fb-c{colour}", round_by=2)
        canvas.text(x + 16, y, name)
        x += wide
    return y + 10
