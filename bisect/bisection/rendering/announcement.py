"""What is said of a result where other people work: a title, a summary and a text in GitHub's Markdown.

It is the report, which states how sure the answer is and what would disprove it; nobody is accused below the
confidence that the operator asked for. A retraction takes the place of what was said, and keeps it readable.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bisection.finding import FindingKind
from bisection.quantities import counted
from bisection.rendering import wording
from bisection.rendering.escaping import code_span, prose, visible
from bisection.rendering.markdown import LONGEST_COMMENT, render_markdown
from bisection.report import CulpritReport

LONGEST_TITLE = 200
#: What stands around the report: marker, first words, the runs that failed.
_FRAME = 10_000
_MOST_RUNS = 10
_ADDRESS = re.compile(r"https?://[\w.-]+(:\d+)?/[\w./%?&=#~+-]*", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class FailedRun:
    """A CI run that the result explains. All of it is a stranger's text."""

    job: str
    commit: str
    url: str


@dataclass(frozen=True, kw_only=True)
class Announcement:
    """``title`` and ``summary`` are plain text, ``text`` is Markdown that begins with the marker."""

    title: str
    summary: str
    text: str


def reason_for_silence(report: CulpritReport, confidence: float) -> str:
    """Why nothing is said; "" where something is. Only a named commit, or a set of suspects, is worth it."""
    finding = report.finding
    if finding.kind not in (FindingKind.FOUND, FindingKind.SET) or report.nothing_known:
        return f"no commit is named: {wording.title(report)}"
    if finding.confidence < confidence:
        return f"the confidence is {finding.confidence:.4f}; announce.confidence asks for {confidence:g}"
    return ""


def announce(
    report: CulpritReport,
    *,
    marker: str,
    page: str = "",
    failures: Sequence[FailedRun] = (),
    retraction: Mapping[str, Any] | None = None,
) -> Announcement:
    """``marker`` is hidden, and finds the text again; ``page`` is the report's address, "" if it has none."""
    hidden = f"<!-- {marker} -->"
    if retraction is not None:
        return _retracted(report, hidden, page, retraction)
    report_link = f"[The whole report, with pictures]({page})." if page else ""
    first = " ".join(part for part in (_explains(failures), report_link) if part)
    # The report itself begins with the answer and its confidence, and says what would disprove it.
    lines = [hidden, first, render_markdown(report, longest=LONGEST_COMMENT - _FRAME)]
    return Announcement(
        title=visible(wording.title(report), limit=LONGEST_TITLE),
        summary=visible(report.summary, limit=1_000),
        text="\n\n".join(line for line in lines if line),
    )


def _explains(failures: Sequence[FailedRun]) -> str:
    if not failures:
        return ""
    shown = [_run(failure) for failure in failures[:_MOST_RUNS]]
    left_out = len(failures) - len(shown)
    more = [f"{counted(left_out, 'run')} more"] if left_out else []
    *most, last = [*shown, *more]
    which = f"{', '.join(most)} and {last}" if most else last
    return f"firstbad looked for the reason why {which} failed."


def _run(failure: FailedRun) -> str:
    name = f"{code_span(failure.job or 'the run')} at {code_span(failure.commit[:10])}"
    # An address of another shape is a stranger's play with Markdown.
    return f"{name} ([run]({failure.url}))" if _ADDRESS.fullmatch(failure.url) else name


def _retracted(report: CulpritReport, hidden: str, page: str, retraction: Mapping[str, Any]) -> Announcement:
    reason = str(retraction.get("reason") or "no reason was given")
    by, at = str(retraction.get("by") or ""), str(retraction.get("at") or "")
    who = f" by {code_span(visible(by, limit=100))}" if by else ""
    when = f", {wording.moment(at)}" if at else ""
    lines = [
        hidden,
        "## Retracted",
        f"This result was taken back{who}{when}: {prose(visible(reason, limit=1_000))}",
        "**No commit is accused any more.**",
        *([f"The report: {page}"] if page else []),
        f"<details><summary>What was said</summary>\n\n{code_span(report.summary)}\n\n</details>",
    ]
    return Announcement(
        title="Retracted",
        summary=f"This result was taken back: {visible(reason, limit=500)}",
        text="\n\n".join(lines),
    )
