"""The memory model's answers for a terminal: bars and tables. Prints nothing itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bisection.quantities import show_bytes
from bisection.rendering.wording import COMPONENT_NAMES
from memory_models.advice_step import Advice
from memory_models.breakdown import Component
from memory_models.comparison import TOGETHER, Comparison, plain
from memory_models.estimation import Estimate, RankEstimate
from memory_models.reading import Reading
from memory_models.remedies import Remedy

_STYLES = dict(zip(Component, ("cyan", "blue", "green", "magenta", "yellow", "white"), strict=True))
_BAR_COLUMNS, _MOST_PARTS = 48, 12


def estimate_view(answer: Estimate, reading: Reading, capacity_bytes: int | None) -> RenderableType:
    """Ranks, their bars, the largest parts of the worst, and what was assumed."""
    worst = answer.worst
    lines: list[RenderableType] = [_headline(worst, answer, capacity_bytes), _ranks(answer, capacity_bytes)]
    lines += [_legend(answer), _parts(worst), *_said(reading)]
    return Group(*lines)


def _headline(worst: RankEstimate, answer: Estimate, capacity_bytes: int | None) -> Text:
    outside = worst.device_bytes - worst.allocated_bytes
    text = Text.assemble(
        ("Pipeline rank ", ""),
        (f"{worst.stage} needs most: {show_bytes(worst.device_bytes)}", "bold"),
        f" at its {worst.instant}"
        f" ({show_bytes(worst.allocated_bytes)} allocated, 90 % between {show_bytes(worst.low_bytes)}"
        f" and {show_bytes(worst.high_bytes)}; {show_bytes(outside)} outside the allocator).",
    )
    if capacity_bytes is not None:
        spare = answer.headroom_bytes(capacity_bytes)
        words = f"leaves {show_bytes(spare)}" if spare >= 0 else f"is {show_bytes(-spare)} too much"
        text.append(f" On {show_bytes(capacity_bytes)} that {words}.", "green" if spare >= 0 else "red")
    return text


def _ranks(answer: Estimate, capacity_bytes: int | None) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("rank", "peak at", "device", "allocated", "by component"):
        table.add_column(name, justify="right" if name in ("device", "allocated") else "left", no_wrap=True)
    highest = max([rank.device_bytes for rank in answer.ranks] + [capacity_bytes or 0])
    for rank in answer.ranks:
        table.add_row(
            str(rank.stage),
            rank.instant + (", first step" if rank.peak.first_step else ""),
            show_bytes(rank.device_bytes),
            show_bytes(rank.allocated_bytes),
            _bar(rank, highest, capacity_bytes),
        )
    return table


def _bar(rank: RankEstimate, highest: int, capacity_bytes: int | None) -> Text:
    bar, so_far = Text(), 0
    for component, count in rank.breakdown.by_component().items():
        so_far += count
        bar.append("█" * (round(_BAR_COLUMNS * so_far / highest) - len(bar)), _STYLES[component])
    bar.append("░" * (round(_BAR_COLUMNS * rank.device_bytes / highest) - len(bar)), "bright_black")
    if capacity_bytes is not None:
        at = round(_BAR_COLUMNS * capacity_bytes / highest)
        if at >= len(bar):
            bar.append(" " * (at - len(bar)) + "▏", "red")
    return bar


def _legend(answer: Estimate) -> Text:
    used = {c for rank in answer.ranks for c, count in rank.breakdown.by_component().items() if count}
    text = Text()
    for component in Component:
        if component in used:
            text.append("█ ", _STYLES[component])
            text.append(f"{COMPONENT_NAMES[component]}  ")
    text.append("░ ", "bright_black")
    return text.append("fragmentation, CUDA context, NCCL")


def _parts(worst: RankEstimate) -> Table:
    table = Table(
        box=None, pad_edge=False, title=f"Largest parts of rank {worst.stage}", title_justify="left"
    )
    for name in ("bytes", "component", "category", "tensor", "formula"):
        table.add_column(name, justify="right" if name == "bytes" else "left")
    parts = sorted(worst.parts, key=lambda part: -part.bytes)
    for part in parts[:_MOST_PARTS]:
        name = COMPONENT_NAMES[part.component]
        table.add_row(show_bytes(part.bytes), name, part.category.value, part.tensor, Text(part.formula))
    rest = parts[_MOST_PARTS:]
    if rest:
        table.add_row(show_bytes(sum(part.bytes for part in rest)), "", "", f"{len(rest)} others", "")
    return table


def comparison_view(answer: Comparison, before: Reading, after: Reading) -> RenderableType:
    """The two peaks, what grew, and which key explains it."""
    pair = (("good", answer.before.worst), ("bad", answer.after.worst))
    lines: list[RenderableType] = [
        Text(f"{name}: {show_bytes(rank.allocated_bytes)} on rank {rank.stage}, at its {rank.instant}")
        for name, rank in pair
    ]
    words = f"difference: {show_bytes(answer.delta_bytes, signed=True)} allocated"
    words += f", {show_bytes(answer.device_delta_bytes, signed=True)} on the card"
    lines.append(Text(words, "bold"))
    if answer.delta:
        table = _table("grew by", "component", "category")
        for (component, category), count in sorted(answer.delta.items(), key=lambda row: -abs(row[1])):
            table.add_row(show_bytes(count, signed=True), COMPONENT_NAMES[component], category.value)
        lines.append(table)
    if answer.keys:
        table = _table("alone", "key", "good", "bad")
        for effect in answer.keys:
            values = ["" if effect.key == TOGETHER else _words(v) for v in (effect.before, effect.after)]
            table.add_row(_alone(effect.delta_bytes), Text(effect.key), *map(Text, values))
        lines.append(table)
        if answer.groups:
            table = _table("at once", "part", "keys")
            for group in answer.groups:
                table.add_row(_alone(group.delta_bytes), group.name, Text(", ".join(group.keys)))
            lines.append(table)
    else:
        lines.append(Text("The two configurations are the same as far as memory goes."))
    return Group(*lines, *_said(before, "good"), *_said(after, "bad"))


def _alone(delta_bytes: int | None) -> str:
    return "not possible" if delta_bytes is None else show_bytes(delta_bytes, signed=True)


def remedies_view(remedies: Sequence[Remedy], reading: Reading, capacity_bytes: int) -> RenderableType:
    """Best first; what is refused comes last, with the check."""
    table = _table("saves", "then", "step time", "change")
    refused: list[RenderableType] = []
    for remedy in remedies:
        if not remedy.legal:
            refused.append(Text(f"not possible: {remedy.title}: {remedy.why_not}", "bright_black"))
            continue
        words = Text(remedy.title + (" (alters training)" if remedy.alters_training else ""))
        words.append(f"\n  {_change(remedy.change)}\n  cost: {remedy.cost}", "bright_black")
        table.add_row(
            show_bytes(remedy.saving_bytes),
            Text(show_bytes(remedy.estimate_bytes), "green" if remedy.fits else "red"),
            f"{remedy.slowdown:+.0%}",
            words,
        )
    fits = sum(remedy.fits for remedy in remedies)
    verb = "fits" if fits == 1 else "fit"
    head = f"{fits} of {len(remedies)} changes {verb} {show_bytes(capacity_bytes)} with a margin. "
    head += "Times are estimates."
    return Group(Text(head), table, *refused, *_said(reading))


def advice_view(steps: Sequence[Advice], reading: Reading) -> RenderableType:
    """Numbered steps, each with its gate."""
    lines: list[RenderableType] = []
    for number, step in enumerate(steps, 1):
        text = Text(f"{number}. {step.title}", "bold")
        if step.estimate_bytes is not None:
            text.append(f"  {show_bytes(step.estimate_bytes)}", "green" if step.fits else "red")
        lines.append(text)
        if step.change:
            lines.append(Text(f"   {_change(step.change)}"))
        lines.append(Text(f"   because {step.reason}", "bright_black"))
        lines.append(Text(f"   before going on: {step.gate}", "bright_black"))
    return Group(*lines, *_said(reading))


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in names:
        right = name in ("grew by", "alone", "saves", "then", "step time")
        table.add_column(name, justify="right" if right else "left", no_wrap=right)
    return table


def _change(change: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={_words(value)}" for key, value in change.items())


def _words(value: Any) -> str:
    value = plain(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_words(inner)}" for key, inner in value.items())
    return f"[{','.join(map(str, value))}]" if isinstance(value, list) else str(value)


def _said(reading: Reading, of: str = "") -> Iterator[Text]:
    prefix = f"{of}: " if of else ""
    yield from _lines(f"{prefix}note: ", reading.notes, "yellow")
    yield from _lines(f"{prefix}not followed: ", reading.ignored, "yellow")


def _lines(prefix: str, words: Iterable[str], style: str) -> Iterator[Text]:
    for line in words:
        yield Text(prefix + line, style)
