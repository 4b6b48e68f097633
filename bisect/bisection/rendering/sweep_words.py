"""What all formats of a sweep's report say of it: its rows in words. Plain text, not yet escaped."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from bisection.quantities import counted, show_bytes
from bisection.sweep import AXIS_WORDS
from bisection.sweep_report import PointResult, Standing, SweepReport

HEADS = ("#", "point", "useful tokens/s", "peak", "estimate", "off by", "headroom", "trainable", "standing")
#: For a terminal: what is alike at every point is told once, by `trainable_words`.
SHORT_HEADS = ("#", "point", "tokens/s", "peak", "estimate", "off by", "headroom", "standing")

STANDING_WORDS = {
    Standing.MEASURED: "measured",
    Standing.OUT_OF_MEMORY: "out of memory",
    Standing.REFUSED: "refused by the code",
    Standing.FAILED: "failed",
    Standing.ILLEGAL: "not legal, not run",
    Standing.LOST: "lost",
    Standing.WAITING: "waits",
    Standing.RUNNING: "runs",
    Standing.NOT_RUN: "not run",
}


@dataclass(frozen=True, kw_only=True)
class PointWords:
    """One row. ``said`` may quote the code under test."""

    number: str
    name: str
    rate: str
    peak: str
    estimate: str
    off: str
    headroom: str
    trainable: str
    standing: str
    said: str  #: why it stands so; "" where nothing is to be said
    is_best: bool

    @property
    def short_cells(self) -> tuple[str, ...]:
        """Under `SHORT_HEADS`."""
        return (
            self.number,
            self.name,
            self.rate,
            self.peak,
            self.estimate,
            self.off,
            self.headroom,
            self.standing,
        )

    @property
    def cells(self) -> tuple[str, ...]:
        """Under `HEADS`."""
        return (
            self.number, self.name, self.rate, self.peak, self.estimate, self.off, self.headroom,
            self.trainable, self.standing,
        )  # fmt: skip


def point_words(report: SweepReport) -> list[PointWords]:
    return [_words(report, index, row) for index, row in enumerate(report.points)]


def _words(report: SweepReport, index: int, row: PointResult) -> PointWords:
    estimate = row.estimate
    known = not (estimate.unknown or estimate.why_not)
    fits = {"yes": "fits", "maybe": "may fit", "no": "does not fit"}.get(row.fits, "")
    peak = show_bytes(row.peak_bytes) if row.peak_bytes is not None else ""
    if row.least_bytes is not None:
        peak = f"over {show_bytes(row.least_bytes)}" if row.least_bytes else ""
    standing = STANDING_WORDS[row.standing]
    if row.standing is Standing.MEASURED:
        standing = f"place {row.place}" if row.place is not None else "not ranked"
    said = row.incomparable or row.why
    if row.standing is Standing.MEASURED and not row.incomparable:
        said = ""
    return PointWords(
        number=str(index + 1),
        name=point_name(row),
        rate=f"{row.rate:,.1f}" if row.rate is not None else "",
        peak=peak,
        estimate=f"{show_bytes(estimate.allocated_bytes)}{f', {fits}' if fits else ''}" if known else "",
        off=_off(row),
        headroom=show_bytes(row.headroom_bytes) if row.headroom_bytes is not None else "",
        trainable=f"{row.trainable_parameters:,}" if row.trainable_parameters else "",
        standing=standing,
        said=said,
        is_best=index == report.best,
    )


def said_words(report: SweepReport) -> list[tuple[str, str, str]]:
    """What was said of the points: (their numbers, how they stand, why), once for all that it was said of."""
    found: dict[tuple[str, str], list[str]] = {}
    for words in point_words(report):
        if words.said:
            found.setdefault((words.standing, words.said), []).append(words.number)
    return [(", ".join(numbers), standing, said) for (standing, said), numbers in found.items()]


def point_name(row: PointResult) -> str:
    name = ", ".join(f"{AXIS_WORDS[axis]} {word}" for axis, word in row.settings.items())
    return f"{name} (as it is)" if row.is_base else name


def _off(row: PointResult) -> str:
    if row.off_bytes is None or not row.peak_bytes:
        return ""
    return f"{100 * row.off_bytes / row.peak_bytes:+.1f} %"


def title(report: SweepReport) -> str:
    return f"Sweep of {report.swept.profile} at {report.swept.commit[:10] or report.swept.at}"


def answer(report: SweepReport) -> str:
    """The answer in a few sentences, whole or so far."""
    return f"{headline(report)} {report.best_why}".rstrip()


def headline(report: SweepReport) -> str:
    if report.best is not None:
        name = point_name(report.points[report.best])
        return f"{'Best' if report.ended else 'Best so far'}: {name}."
    if report.failure and not report.points:
        return report.failure
    return (
        "No point has been measured whose speed can be compared."
        if report.ended
        else "Nothing is measured yet."
    )


def tally(report: SweepReport) -> str:
    """E.g. "9 points: 5 measured, 1 out of memory, 3 not legal, not run"."""
    counts = Counter(row.standing for row in report.points)
    told = ", ".join(f"{counts[one]} {words}" for one, words in STANDING_WORDS.items() if counts[one])
    batch = f"; every point keeps the global batch of {report.batch}" if report.batch else ""
    return f"{counted(len(report.points), 'point')}: {told}{batch}" if report.points else "no points yet"


def trainable_words(report: SweepReport) -> str:
    """E.g. "13,309,184 trainable parameters at every point"; where they differ, the points say so."""
    counts = {row.trainable_parameters for row in report.points if row.trainable_parameters}
    if not counts:
        return "trainable parameters are not known"
    if len(counts) > 1:
        return f"{min(counts):,} to {max(counts):,} trainable parameters"
    return f"{counts.pop():,} trainable parameters at every point that ran"


def stamp(report: SweepReport) -> str:
    """What stands next to every figure that no GPU made; "" where one did."""
    if report.simulation is None:
        return ""
    devices = " and ".join(device.replace("_", " ").upper() for device in report.simulation.devices)
    return f"SIMULATED on {devices}, not a GPU"


def limit_words(report: SweepReport) -> str:
    if report.capacity_bytes is None:
        return "no capacity was enforced"
    return f"capacity {show_bytes(report.capacity_bytes)}, enforced"
