"""The report as one self-contained page: inline styles and pictures, no script, nothing fetched.

The page forbids itself everything else by its content security policy: a service that sends it may
send the same policy as a header.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from bisection.finding import FindingKind
from bisection.quantities import show_bytes
from bisection.regression import RegressionKind
from bisection.rendering import allocation_words, remedy_words, wording
from bisection.rendering.belief_pictures import belief_map
from bisection.rendering.escaping import terminal_safe, visible
from bisection.rendering.memory_pictures import memory_bars, time_bars
from bisection.rendering.step_pictures import step_lines
from bisection.rendering.svg import NARROW, WIDE, stylesheet
from bisection.rendering.trial_pictures import posterior_bars
from bisection.rendering.trial_words import trial_words
from bisection.report import CulpritReport
from bisection.report_parts import BeliefHistory, RemedyRow

_PICTURES: dict[str, Callable[..., str]] = {
    "memory": memory_bars,
    "time": time_bars,
    "steps": step_lines,
    "posterior": posterior_bars,
}


@dataclass(frozen=True, kw_only=True)
class _RemedyWords:
    title: str
    change: str
    effect: str
    cost: str
    standing: str
    style: str

    @classmethod
    def of(cls, report: CulpritReport, remedy: RemedyRow) -> _RemedyWords:
        return cls(
            title=remedy.title,
            change=remedy_words.change(remedy),
            effect=remedy_words.effect(report, remedy),
            cost=remedy_words.cost(remedy),
            standing=remedy_words.standing(remedy),
            style="standing-proven" if remedy.proven else "",
        )


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """Where a page leads to, besides itself: URLs that the service which shows it made."""

    home: str = ""  #: the list; without it the page stands alone
    bisection: str = ""  #: its trials, logs and decisions
    explanations: str = ""  #: where the page of each outcome and problem is, by its name; else only named
    trials: Mapping[int, str] = field(default_factory=dict)  #: sequence to the trial's own page, with its log


def render_html(report: CulpritReport, *, surroundings: Surroundings = Surroundings()) -> str:
    """The whole page."""
    growth = wording.growth_rows(report)
    throughput = report.regression is not None and report.regression.kind is RegressionKind.THROUGHPUT
    maps = {f"timeline{level.level or ''}": _map_of(level) for level in report.history}
    pictures = {
        name: (
            Markup(draw(report, width=WIDE, suffix="-wide")),
            Markup(draw(report, width=NARROW, suffix="-narrow")),
        )
        if draw(report)
        else None
        for name, draw in (_PICTURES | maps).items()
    }
    page: str = (
        page_environment()
        .get_template("report.html.jinja")
        .render(
            report=report,
            title=wording.title(report),
            kicker=_kicker(report),
            style=Markup(page_style()),
            policy=content_security_policy(),
            stamp=wording.stamp(report),
            stand_ins=wording.stand_ins(report),
            why=wording.why(report),
            retraction=wording.retraction(report),
            no_replay=wording.no_replay(report),
            facts=wording.facts(report),
            pictures=pictures,
            maps=list(maps),
            throughput_first=throughput,
            growth=growth,
            total=wording.total_row(report),
            growth_column="activity" if throughput else "component",
            growth_caption="Seconds of a steady step" if throughput else "Bytes at the instant of the peak",
            where_heading=wording.where_words(report),
            time_caption=f"Seconds of a steady step by activity. {wording.seconds_warning(report)}".rstrip(),
            memory_caption=_memory_caption(report),
            sides=wording.sides(report),
            sentences=wording.evidence_sentences(report),
            changes=wording.change_rows(report),
            pins=wording.pin_rows(report),
            descent=wording.descent(report),
            allocations=allocation_words.rows(report),
            allocations_heading=allocation_words.HEADING,
            allocations_rest=allocation_words.rest(report),
            changes_left_out=wording.changes_left_out(report),
            remedies=[_RemedyWords.of(report, remedy) for remedy in remedy_words.legal(report)],
            remedy_warning=remedy_words.warning(report),
            illegal=remedy_words.illegal(report),
            trials_words=wording.trials_words(report),
            trials=[
                (trial_words(report, row), surroundings.trials.get(row.sequence)) for row in report.trials
            ],
            links=surroundings,
        )
    )
    return re.sub(r"\n{2,}", "\n", page)


def _map_of(level: BeliefHistory) -> Callable[..., str]:
    """A picture like those of `_PICTURES`."""

    def draw(report: CulpritReport, **size: Any) -> str:
        return belief_map(report, level, **size)

    return draw


def content_security_policy() -> str:
    """What the page may do: use its own styles, and nothing else."""
    digest = base64.b64encode(hashlib.sha256(page_style().encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def _kicker(report: CulpritReport) -> str:
    if report.nothing_known:
        return "nothing known yet"
    if report.finding.kind is FindingKind.SET and report.finding.problem in ("budget-spent", "cancelled"):
        return "best answer so far"
    return _KICKERS[report.finding.kind]


_KICKERS = {
    FindingKind.FOUND: "first bad commit found",
    FindingKind.SET: "narrowed to a set",
    FindingKind.NONE: "no commit named",
    FindingKind.REJECTED: "not carried out",
}


def _memory_caption(report: CulpritReport) -> str:
    memory = report.memory
    if memory is None or memory.culprit is None:
        return "Bytes at the instant of the peak, on the worst rank."
    if memory.truncated:
        return "Bytes when the allocation was refused: the run did not get to its own peak."
    if memory.partial:
        return f"Bytes at the highest instant that was recorded, on the worst rank. {wording.PARTIAL}"
    if not memory.capacity_bytes:
        return "Bytes at the instant of the peak, on the worst rank."
    over = memory.culprit.allocated_bytes - memory.capacity_bytes
    side = wording.sides(report)[1]
    return (
        "Bytes at the instant of the peak, on the worst rank. "
        f"The {side} is {show_bytes(abs(over))} {'above' if over > 0 else 'below'} the limit."
    )


@cache
def page_style() -> str:
    page = resources.files("bisection.rendering").joinpath("report.css").read_text(encoding="utf-8")
    return page + stylesheet()


@cache
def page_environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("bisection", "rendering"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["visible"] = lambda text, limit=600: visible(str(text), limit=limit)
    environment.filters["block"] = terminal_safe
    environment.filters["moment"] = wording.moment
    environment.filters["ticks"] = _ticks
    return environment


def _ticks(text: str) -> Markup:
    """A note of ours in which commands stand between backticks."""
    parts = visible(text, limit=4_000).split("`")
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if index % 2 else escape(part)
        for index, part in enumerate(parts)
    )
