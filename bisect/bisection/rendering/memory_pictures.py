"""Pictures of where bytes and seconds go: parent against culprit against the limit.

Draws what a report holds; attributes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bisection.quantities import show_bytes
from bisection.regression import RegressionKind
from bisection.rendering.svg import WIDE, Canvas, text_width, ticks
from bisection.rendering.wording import ACTIVITY_NAMES, COMPONENT_NAMES, seconds_warning, sides, stamp
from bisection.report import CulpritReport
from memory_models.breakdown import GIB, MIB, Activity, Component

#: An activity has the colour of its component, where it has one.
_ACTIVITY_COLOURS = {
    Activity.VISION: 0,
    Activity.PROJECTOR: 1,
    Activity.DECODER: 2,
    Activity.EXPERTS: 3,
    Activity.DISPATCH: 6,
    Activity.EMBEDDING_AND_LOSS: 4,
    Activity.OPTIMIZER: 7,
    Activity.DATA: 8,
    Activity.IDLE: 5,
}


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One stacked bar: its parts in the unit of the axis, by name, and the words at its end."""

    label: str
    parts: Mapping[str, float]
    total_words: str
    grown: Mapping[str, float]  #: of a part, how much is new
    open_ended: bool = False  #: cut off: the true bar is longer


def memory_bars(report: CulpritReport, *, width: int = WIDE, suffix: str = "") -> str:
    """The two peaks by component, against the capacity; "" if there is no peak."""
    memory = report.memory
    if memory is None or not (memory.parent or memory.culprit):
        return ""
    both = zip(sides(report), (memory.parent, memory.culprit), strict=True)
    peaks = [(label, peak) for label, peak in both if peak]
    largest = max([peak.allocated_bytes for _, peak in peaks] + [memory.capacity_bytes or 0])
    unit, unit_name = (GIB, "GiB") if largest >= 10 * GIB else (MIB, "MiB")
    deltas = report.regression.by_component if report.regression else {}
    named = report.regression.component if report.regression else None
    bars = [
        Bar(
            label=label,
            parts={COMPONENT_NAMES[c]: count / unit for c, count in peak.breakdown.by_component().items()},
            total_words=show_bytes(peak.allocated_bytes),
            grown={COMPONENT_NAMES[c]: deltas[c] / unit for c in deltas if c is named and deltas[c] > 0}
            if peak is memory.culprit
            else {},
            open_ended=memory.truncated and peak is memory.culprit,
        )
        for label, peak in peaks
    ]
    said = "; ".join(
        f"{label}: {show_bytes(peak.allocated_bytes)}, of which "
        + ", ".join(
            f"{COMPONENT_NAMES[c]} {show_bytes(count)}"
            for c, count in peak.breakdown.by_component().items()
            if count
        )
        for label, peak in peaks
    )
    limit = memory.capacity_bytes
    return _stacked(
        Canvas(
            f"memory{suffix}",
            "Memory at the peak, by component",
            f"{said}. " + (f"The capacity is {show_bytes(limit)}." if limit else "No capacity is set."),
            width=width,
            stamp=stamp(report),
        ),
        bars,
        colours={COMPONENT_NAMES[c]: index for index, c in enumerate(Component)},
        unit=unit_name,
        limit=limit / unit if limit else None,
        limit_words=f"capacity {show_bytes(limit)}" if limit else "",
    )


def time_bars(report: CulpritReport, *, width: int = WIDE, suffix: str = "") -> str:
    """Seconds of a steady step by activity; "" if no time was recorded."""
    time, regression = report.time, report.regression
    if time is None:
        return ""
    slow = regression if regression and regression.kind is RegressionKind.THROUGHPUT else None
    bars = [
        Bar(
            label=label,
            parts={ACTIVITY_NAMES[a]: seconds for a, seconds in breakdown.by_activity().items()},
            total_words=f"{breakdown.total_seconds:.3f} s",
            grown={
                ACTIVITY_NAMES[a]: seconds
                for a, seconds in (slow.by_activity.items() if slow else ())
                if slow and a is slow.activity and seconds > 0
            }
            if breakdown is time.culprit
            else {},
        )
        for label, breakdown in zip(sides(report), (time.parent, time.culprit), strict=True)
    ]
    said = "; ".join(
        f"{bar.label}: {bar.total_words}, of which "
        + ", ".join(f"{name} {seconds:.3f} s" for name, seconds in bar.parts.items() if seconds)
        for bar in bars
    )
    warning = seconds_warning(report)
    return _stacked(
        Canvas(
            f"time{suffix}",
            f"Seconds of a step{' (noisy, not judged)' if warning else ', by activity'}",
            f"{said}. {warning}".rstrip(),
            width=width,
            stamp=stamp(report),
        ),
        bars,
        colours={ACTIVITY_NAMES[a]: colour for a, colour in _ACTIVITY_COLOURS.items()},
        unit="s",
        limit=None,
        limit_words="",
    )


def _stacked(
    canvas: Canvas,
    bars: Sequence[Bar],
    *,
    colours: Mapping[str, int],
    unit: str,
    limit: float | None,
    limit_words: str,
) -> str:
    narrow = canvas.width < 500
    words = [(bar.label, f"{bar.total_words}{' or more' if bar.open_ended else ''}") for bar in bars]
    left = 0.0 if narrow else 12 + max(text_width(word) for pair in words for word in pair)
    right = canvas.width - (8.0 if any(bar.open_ended for bar in bars) else 2.0)
    highest = max([sum(bar.parts.values()) for bar in bars] + [limit or 0.0]) or 1.0
    scale = (right - left) / highest
    y = canvas.top + (22 if limit else 4)
    top = y
    labels: list[tuple[float, float, str]] = []
    for bar, (label, total) in zip(bars, words, strict=True):
        if narrow:
            canvas.text(0, y + 11, label, "fb-muted")
            canvas.text(text_width(label) + 10, y + 11, total, "fb-strong fb-halo")
            y += 17
        if bar.grown:
            y += 17
        if not narrow:
            canvas.text(0, y + 16, label, "fb-muted")
            canvas.text(0, y + 32, total, "fb-strong")
        labels += _bar(canvas, bar, colours, left, y, 38, scale, unit)
        y += 38 + 14
    bottom = y - 6
    for value in ticks(highest, 4 if narrow else 8):
        x = left + value * scale
        canvas.line(x, bottom, x, bottom + 4)
        centred = "" if value == 0 and narrow else "fb-middle"
        label = f"{value:g}"
        at = min(x, canvas.width - text_width(label, 11) / 2) if centred else x
        canvas.text(at, bottom + 17, label, f"fb-small fb-muted {centred}")
    canvas.line(left, bottom, right, bottom)
    canvas.text(canvas.width, bottom + 31, unit, "fb-small fb-muted fb-end")
    if limit is not None:
        x = left + limit * scale
        canvas.line(x, top - 6, x, bottom, "fb-limit")
        half = text_width(limit_words) * 0.54
        at = min(max(x, half), canvas.width - half)
        canvas.text(at, top - 10, limit_words, "fb-limit-text fb-middle")
    for x, at, text in labels:  # last, so that the limit does not cross them
        half = text_width(text) * 0.55
        middle = min(max(x, half), canvas.width - half)
        canvas.text(middle, at, text, "fb-strong fb-middle fb-halo")
    return canvas.finish(_legend(canvas, colours, bars, bottom + 38))


def _bar(
    canvas: Canvas,
    bar: Bar,
    colours: Mapping[str, int],
    left: float,
    y: float,
    height: float,
    scale: float,
    unit: str,
) -> list[tuple[float, float, str]]:
    """Draws one bar; gives the labels (middle, baseline, words) that stand above it."""
    x = left
    outline: tuple[float, float, str] | None = None
    for name, colour in colours.items():
        value = bar.parts.get(name, 0.0)
        if value <= 0:
            continue
        wide = value * scale
        amount = _amount(value, unit)
        canvas.rect(x, y, wide, height, f"fb-part fb-c{colour}", tip=f"{bar.label}, {name}: {amount}")
        new = min(bar.grown.get(name, 0.0) * scale, wide)
        needed = max(text_width(name, 11), text_width(amount, 11)) + 8
        # Beside the outline of what grew, not under it.
        at = x if needed < wide - new else x + wide - new
        if needed < x + wide - at:
            canvas.text(at + 5, y + 16, name, "fb-inside fb-strong")
            canvas.text(at + 5, y + 30, amount, "fb-inside")
        if new:
            outline = (x + wide - new, new, f"+{_amount(bar.grown[name], unit)} {name}")
        x += wide
    if outline is not None:
        at, wide, words = outline
        canvas.rect(at, y - 1, wide, height + 2, "fb-grown", tip=words)
    if bar.open_ended:
        teeth = " ".join(f"L{x - (7 if i % 2 else 0):.1f} {y + height * i / 8:.1f}" for i in range(9))
        canvas.shape(f"M{x + 1:.1f} {y:.1f} {teeth} L{x + 1:.1f} {y + height:.1f} Z", "fb-torn")
    return [(outline[0] + outline[1] / 2, y - 6, outline[2])] if outline else []


def _amount(value: float, unit: str) -> str:
    return (
        f"{value:.3f} s"
        if unit == "s"
        else f"{value:,.1f} {unit}"
        if unit == "MiB"
        else f"{value:,.2f} {unit}"
    )


def _legend(canvas: Canvas, colours: Mapping[str, int], bars: Sequence[Bar], y: float) -> float:
    x = 0.0
    for name, colour in colours.items():
        if not any(bar.parts.get(name, 0) > 0 for bar in bars):
            continue
        wide = 16 + text_width(name) * 1.02 + 14
        if x + wide - 14 > canvas.width:
            x, y = 0.0, y + 19
        canvas.rect(x, y - 10, 11, 11, f"fb-c{colour}", round_by=2)
        canvas.text(x + 16, y, name)
        x += wide
    return y + 8
