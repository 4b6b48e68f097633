"""The report as a mail: a page that mail programs show, and the plain text for those that show none.

Mail programs drop style sheets, scripts, vector pictures and whatever would be fetched. So every style
stands at its element, the picture is made of table cells, and what is long stands in the text alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from email.message import EmailMessage
from email.policy import SMTP
from html import escape

from bisection.rendering import remedy_words, wording
from bisection.rendering.escaping import visible
from bisection.rendering.terminal import render_text
from bisection.rendering.trial_words import trial_words
from bisection.report import CulpritReport
from memory_models.breakdown import Component

#: Lines of a mail are wrapped by whoever quotes it.
_COLUMNS = 78
_MOST_TRIALS = 20
_FONT = "font-family:Helvetica,Arial,sans-serif;font-size:15px;line-height:1.5;color:#1f2328"
_CELL = "padding:4px 12px 4px 0;text-align:left;vertical-align:top;border-bottom:1px solid #d1d9e0"
_CODE = "font-family:Menlo,Consolas,monospace;font-size:13px"
#: Of each component, in the order of `Component`: told apart without colours too, by the table below it.
_COLOURS = dict(
    zip(Component, ("#0072b2", "#56b4e9", "#009e73", "#e69f00", "#d55e00", "#999999"), strict=True)
)


def render_mail(report: CulpritReport) -> bytes:
    """A message without sender and recipient, to be piped into whatever sends mail (RFC 5322)."""
    message = EmailMessage(policy=SMTP)
    message["Subject"] = visible(wording.title(report), limit=200)
    message.set_content(render_text(report, columns=_COLUMNS))
    message.add_alternative(_page(report), subtype="html")
    return message.as_bytes()


def _page(report: CulpritReport) -> str:
    parts = [
        f'<h1 style="font-size:20px;line-height:1.35">{_headline(report)}</h1>',
        _paragraph(wording.retraction(report), "font-weight:bold;color:#b42318") if report.retraction else "",
        _paragraph(f"{wording.stamp(report)}. {' '.join(report.simulation.notes)}", "background:#fff8c5")
        if report.simulation
        else "",
        _paragraph(wording.why(report)),
        _picture(report),
        _growth(report),
        _table(("", ""), [(name, value) for name, value, _ in wording.facts(report)]),
        _way_back(report),
        _remedies(report),
        _trials(report),
        _paragraph("The plain text of this mail has every trial with its reasons, and the log for git."),
    ]
    body = "\n".join(part for part in parts if part)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"></head>'
        f'<body style="margin:0;padding:16px;background:#ffffff;{_FONT}">'
        f'<div style="max-width:680px;margin:0 auto">\n{body}\n</div></body></html>\n'
    )


def _text(words: str) -> str:
    return escape(visible(words, limit=4000))


def _headline(report: CulpritReport) -> str:
    return "".join(
        f'<code style="{_CODE}">{_text(run.text)}</code>' if run.foreign else _text(run.text)
        for run in report.headline
    )


def _paragraph(words: str, style: str = "") -> str:
    return f'<p style="margin:12px 0;{style}">{_text(words)}</p>' if words else ""


def _heading(words: str) -> str:
    return f'<h2 style="font-size:16px;margin:24px 0 8px">{_text(words)}</h2>'


def _table(names: Sequence[str], rows: Sequence[Sequence[str]], *, bold: Sequence[int] = ()) -> str:
    if not rows:
        return ""
    head = "".join(f'<th style="{_CELL};color:#59636e">{_text(name)}</th>' for name in names)
    lines = [f"<tr>{head}</tr>"] if any(names) else []
    for number, row in enumerate(rows):
        weight = ";font-weight:bold" if number in bold else ""
        cells = "".join(f'<td style="{_CELL}{weight}">{_text(value)}</td>' for value in row)
        lines.append(f"<tr>{cells}</tr>")
    return f'<table role="presentation" style="border-collapse:collapse;{_FONT}">{"".join(lines)}</table>'


def _picture(report: CulpritReport) -> str:
    """Parent and culprit as two bars, a cell a component; "" where no memory was measured."""
    memory = report.memory
    if memory is None or memory.parent is None or memory.culprit is None or wording.is_of_speed(report):
        return ""
    peaks = (memory.parent, memory.culprit)
    highest = max(peak.allocated_bytes for peak in peaks) or 1
    bars = []
    for name, peak in zip(wording.sides(report), peaks, strict=True):
        shares = {c: 100 * size / highest for c, size in peak.breakdown.by_component().items() if size > 0}
        cells = "".join(
            f'<td style="width:{share:.1f}%;background:{_COLOURS[component]};height:22px"></td>'
            for component, share in shares.items()
        )
        rest = 100 - sum(shares.values())
        cells += f'<td style="width:{rest:.1f}%"></td>' if rest >= 0.1 else ""
        bars.append(
            f'<div style="font-size:13px;color:#59636e">{_text(name)}</div>'
            '<table role="presentation" style="width:100%;border-collapse:collapse;table-layout:fixed">'
            f"<tr>{cells}</tr></table>"
        )
    return "".join(bars)


def _growth(report: CulpritReport) -> str:
    rows = wording.growth_rows(report)
    before, after = wording.sides(report)
    shown = [(row.name, row.before, row.after, row.growth) for row in rows]
    named = [number for number, row in enumerate(rows) if row.named]
    return _table(("", before, after, "growth"), shown, bold=named)


def _way_back(report: CulpritReport) -> str:
    if not report.way_back:
        return ""
    told = [_heading("The way back")]
    for recipe in report.way_back:
        told.append(_paragraph(f"{recipe.title}. {recipe.note}"))
        if recipe.commands:
            told.append(f'<pre style="{_CODE};white-space:pre-wrap">{_text_lines(recipe.text)}</pre>')
    return "".join(told)


def _text_lines(text: str) -> str:
    return "\n".join(_text(line) for line in text.splitlines())


def _remedies(report: CulpritReport) -> str:
    rows = [
        (remedy.title, remedy_words.effect(report, remedy), remedy_words.standing(remedy))
        for remedy in remedy_words.legal(report)
    ]
    if not rows:
        return ""
    return _heading("Remedies") + _table(("change", "effect", ""), rows)


def _trials(report: CulpritReport) -> str:
    told = [trial_words(report, row) for row in report.trials]
    rows = [(row.number, row.commit, row.verdict, row.reason) for row in told[:_MOST_TRIALS]]
    if not rows:
        return ""
    left_out = wording.trials_left_out(len(told) - len(rows)) if len(told) > len(rows) else ""
    heading = _heading(f"The evidence: {wording.trials_words(report)}")
    return heading + _table(("#", "commit", "verdict", "what happened"), rows) + _paragraph(left_out)
