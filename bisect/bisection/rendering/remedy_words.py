"""What all formats of a report say of its remedies: the change, what it saves and costs, how sure that is.

Plain text, not yet escaped for any format. Nothing is estimated here.
"""

from __future__ import annotations

from bisection.quantities import show_bytes
from bisection.regression import RegressionKind
from bisection.report import RETENTION_NOTE, CulpritReport
from bisection.report_parts import RemedyRow
from bisection.way_back import override_value


def change(remedy: RemedyRow) -> str:
    """As overrides: "key=value", comma separated."""
    return ", ".join(f"{key}={override_value(value)}" for key, value in remedy.change.items())


def effect(report: CulpritReport, remedy: RemedyRow) -> str:
    """Estimated saving and peak, and whether it fits: an estimate is a band, and its upper end counts."""
    capacity = report.memory.capacity_bytes if report.memory else None
    near = capacity is not None and remedy.estimate.peak_bytes <= capacity
    fits = "fits" if remedy.estimate.fits else "too near the limit to be sure" if near else "does not fit"
    return f"{show_bytes(remedy.saving_bytes)} less, peak {show_bytes(remedy.estimate.peak_bytes)}: {fits}"


def warning(report: CulpritReport) -> str:
    """What the remedies' estimates leave out; "" if nothing is known to be."""
    regression = report.regression
    return RETENTION_NOTE if regression and regression.kind is RegressionKind.RETENTION else ""


def cost(remedy: RemedyRow) -> str:
    share = round(100 * remedy.estimate.slowdown)
    speed = f"about {abs(share)} % {'slower' if share > 0 else 'faster'}" if share else "no slower"
    return f"{speed}; {remedy.cost}" if remedy.cost else speed


def standing(remedy: RemedyRow) -> str:
    if remedy.proven is None:
        return f"estimated; not proven: {remedy.proof}" if remedy.proof else "estimated, not tried"
    return f"{'proven' if remedy.proven else 'tried, and it failed'}: {remedy.proof}"


def legal(report: CulpritReport) -> list[RemedyRow]:
    return [remedy for remedy in report.remedies if remedy.legal]


def illegal(report: CulpritReport) -> list[str]:
    """One line each: what cannot be done with this job, and the rule against it."""
    return [f"{remedy.title}: {remedy.why_not}" for remedy in report.remedies if not remedy.legal]
