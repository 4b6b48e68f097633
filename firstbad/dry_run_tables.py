"""A dry run's answer for a terminal. Prints nothing itself."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bisection.quantities import show_bytes
from bisection.rendering.escaping import visible
from bisection.rendering.wording import COMPONENT_NAMES, NOT_MODELLED
from firstbad.dry_run_comparison import NAMED_SHARE, Beside
from firstbad.dry_run_picture import STAMP
from firstbad.dry_run_process import Rehearsed
from workers.rank_files import RankFile


def rehearsal_view(
    result: Rehearsed, compared: Beside | None, why_not: str, capacity_bytes: int | None
) -> RenderableType:
    """The peak, every stage, the cells beside the estimate's, and what was not simulated."""
    worst = result.worst
    lines: list[RenderableType] = [Text(f"*** {STAMP} ***", "bold"), _headline(worst, capacity_bytes)]
    if len(result.ranks) > 1:
        lines.append(_stages(result))
    if compared is not None:
        lines += [Text(""), _cells(compared), *_named(compared)]
        lines += [Text(f"estimate: {visible(note)}", "bright_black") for note in compared.reading.notes]
    elif worst.peak is not None:
        lines += [Text(""), _alone(worst), Text(f"No estimate: {visible(why_not)}")]
    lines.append(Text(f"\n{NOT_MODELLED}:"))
    lines += [Text(f"- {visible(told)}") for told in worst.unseen]
    lines.append(Text("Notes:"))
    lines += [Text(f"- {visible(note)}") for note in worst.notes]
    used = ", ".join(f"{visible(name)} {count:,}" for name, count in worst.patches.items())
    lines.append(Text(f"{len(worst.patches)} stand-ins and patches, with their uses: {used}"))
    lines.append(
        Text(f"It took {result.seconds:.0f} s on this machine; nothing was computed.", "bright_black")
    )
    return Group(*lines)


def _headline(worst: RankFile, capacity_bytes: int | None) -> Text:
    peak = worst.peak
    where = f"Rank {worst.rank} of {worst.world_size}"
    if worst.oom is not None:
        return Text(
            f"{where} does not fit: {show_bytes(worst.oom.requested_bytes)} were refused "
            f"at {show_bytes(worst.oom.allocated_bytes)}, in "
            f"the {worst.oom.phase} of {visible(worst.oom.path)}.",
            "red",
        )
    assert peak is not None
    text = Text.assemble(
        (f"{where} needs {show_bytes(peak.allocated_bytes)}", "bold"),
        f" in step {peak.step}, at {visible(peak.instant)}.",
    )
    if capacity_bytes is not None:
        text.append(f" It fits into {show_bytes(capacity_bytes)}, but for what is not modelled.", "green")
    return text


def _stages(result: Rehearsed) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("rank", "peak", "at"):
        table.add_column(name, justify="right" if name == "peak" else "left")
    for rank, file in sorted(result.ranks.items()):
        peak = file.peak
        table.add_row(
            str(rank), *((show_bytes(peak.allocated_bytes), visible(peak.instant)) if peak else ("–", ""))
        )
    return table


def _alone(file: RankFile) -> Table:
    assert file.peak is not None
    table = Table(box=None, pad_edge=False)
    for name in ("component", "category", "simulated"):
        table.add_column(name, justify="right" if name == "simulated" else "left")
    for cell in file.peak.breakdown:
        table.add_row(COMPONENT_NAMES[cell.component], cell.category.value, show_bytes(cell.bytes))
    return table


def _cells(compared: Beside) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("component", "category", "simulated", "estimate", "difference"):
        table.add_column(name, justify="left" if name in ("component", "category") else "right")
    for row in compared.rows:
        table.add_row(
            COMPONENT_NAMES[row.component],
            row.category.value,
            show_bytes(row.simulated_bytes),
            show_bytes(row.estimated_bytes),
            show_bytes(row.difference_bytes, signed=True),
            style="yellow" if row.simulated or row.estimated else "",
        )
    sums = [
        sum(sizes)
        for sizes in zip(*((r.simulated_bytes, r.estimated_bytes) for r in compared.rows), strict=True)
    ]
    table.add_row(
        "all", "", show_bytes(sums[0]), show_bytes(sums[1]), show_bytes(sums[0] - sums[1], signed=True)
    )
    return table


def _named(compared: Beside) -> Iterator[Text]:
    rows = [row for row in compared.rows if row.simulated or row.estimated]
    yield Text(f"The estimate's peak is at its {compared.estimate.instant}.")
    if rows:
        yield Text(
            f"\nDifferences above {NAMED_SHARE:.0%} of a component: what is held, and what is counted."
        )
    for row in rows:
        yield Text(
            f"{COMPONENT_NAMES[row.component]}, {row.category.value}: "
            f"{show_bytes(row.difference_bytes, signed=True)}",
            "yellow",
        )
        for side, names in (("dry run", row.simulated), ("estimate", row.estimated)):
            if not names:
                yield Text(f"  {side:9} nothing")
            for named in names:
                yield Text(f"  {side:9} {show_bytes(named.bytes):>11}  {visible(named.what)}")
