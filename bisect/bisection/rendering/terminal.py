"""The report as plain text for a terminal or a mail: no colours, no control characters.

Text, not markup: a program that prints it must not interpret brackets in it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from bisection.quantities import counted
from bisection.rendering import allocation_words, remedy_words, wording
from bisection.rendering.escaping import terminal_safe, visible
from bisection.rendering.text_pictures import growth_picture, timeline_pictures
from bisection.rendering.trial_words import trial_words
from bisection.report import CulpritReport
from bisection.way_back import Recipe


def render_text(report: CulpritReport, *, columns: int = 100) -> str:
    """The whole report, wrapped at ``columns`` (commands are not: they are to be copied)."""
    return terminal_safe("\n".join(_lines(report, max(columns, 60))), limit=1_000_000).rstrip() + "\n"


def _lines(report: CulpritReport, columns: int) -> Iterable[str]:
    stamp = wording.stamp(report)
    yield from _wrap(
        "".join(f"`{visible(r.text)}`" if r.foreign else r.text for r in report.headline), columns
    )
    yield ""
    if report.retraction:
        yield from _wrap(visible(wording.retraction(report), limit=1000), columns)
        yield ""
    if report.simulation:
        yield f"*** {stamp} ***"
        yield from _wrap(" ".join(report.simulation.notes), columns)
        if report.simulation.not_modelled:
            yield f"{wording.NOT_MODELLED}:"
        for told in report.simulation.not_modelled:
            yield from _wrap(f"- {visible(told)}", columns, indent=2)
        if wording.stand_ins(report):
            yield f"{wording.stand_ins(report)}; they are listed at the end."
        yield ""
    if wording.why(report):
        yield from _wrap(wording.why(report), columns)
        yield ""
    for name, value, _ in wording.facts(report):
        yield f"{name + ':':<12}{visible(value)}"
    yield from _where(report, columns)
    yield from _allocations(report, columns)
    yield from _changed(report)
    if len(report.suspects) > 1:
        yield from _heading("THE SUSPECTS", "")
        yield from (
            f"  {wording.commit_words(commit)} by {visible(commit.author)}" for commit in report.suspects
        )
    if report.finding.descent:
        yield from _heading("INSIDE OF WHAT IT CARRIES", "")
        for heading, names, why in wording.descent(report):
            yield from _wrap(visible(heading), columns)
            yield from (f"  {visible(name)}" for name in names)
            yield from _wrap(f"  {visible(why, limit=4_000)}", columns, indent=2)
    if report.way_back:
        yield from _heading("THE WAY BACK", "")
        for recipe in report.way_back:
            yield from _recipe(recipe, columns)
    yield from _remedies(report, columns)
    yield from _trials(report, columns)
    if report.reproduce:
        yield from _heading("BY HAND", "")
        yield from _recipe(report.reproduce, columns)
    if report.git_bisect_log:
        yield from _heading("REPLAY IN PLAIN GIT (git bisect replay FILE)", "")
        yield report.git_bisect_log.rstrip()
    elif wording.no_replay(report):
        yield ""
        yield from _wrap(wording.no_replay(report), columns)
    if report.simulation and report.simulation.patches:
        yield from _heading("STAND-INS", "")
        used = [f"{visible(name)} {count:,}" for name, count in report.simulation.patches.items()]
        yield from _wrap(", ".join(used), columns)
    if report.notes or report.links:
        yield from _heading("NOTES", "")
        for note in report.notes:
            yield from _wrap(f"- {visible(note, limit=4_000)}", columns, indent=2)
        yield from (f"- what {visible(link.name)} means: {visible(link.page)}" for link in report.links)


def _heading(words: str, stamp: str) -> list[str]:
    return ["", f"{words}  [{stamp}]" if stamp else words]


def _where(report: CulpritReport, columns: int) -> Iterable[str]:
    rows = wording.growth_rows(report)
    if not rows:
        return
    yield from _heading(wording.where_words(report).upper(), wording.stamp(report))
    yield growth_picture(report, columns=columns)
    yield ""
    before, after = wording.sides(report)
    table = [("", before, after, "change")]
    table += [(f"{'>' if row.named else ' '} {row.name}", row.before, row.after, row.growth) for row in rows]
    total = wording.total_row(report)
    if total:
        table.append(("  in all", *total))
    yield from _columns(table)
    yield ""
    for sentence in wording.evidence_sentences(report):
        yield from _wrap(f"- {visible(sentence)}", columns, indent=2)


def _columns(rows: Sequence[Sequence[str]]) -> Iterable[str]:
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    for row in rows:
        cells = [
            row[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
        ]
        yield "  ".join(cells).rstrip()


def _changed(report: CulpritReport) -> Iterable[str]:
    changes, pins = wording.change_rows(report), wording.pin_rows(report)
    files = report.diff_summary.files if report.diff_summary else ()
    if not (changes or pins or files):
        return
    yield from _heading("WHAT CHANGED", "")
    for name, before, after in (*changes, *pins):
        yield f"  {visible(name)}: {visible(before)} -> {visible(after)}"
    if wording.changes_left_out(report):
        yield f"  {wording.changes_left_out(report)}"
    for file in files:
        lines = f"  +{file.added} -{file.removed}" if file.added is not None else ""
        yield f"  {visible(file.path)}{lines}"
    if report.diff_summary and report.diff_summary.left_out:
        yield f"  and {counted(report.diff_summary.left_out, 'more file')}"


def _recipe(recipe: Recipe, columns: int) -> Iterable[str]:
    yield from _wrap(f"{visible(recipe.title)}. {visible(recipe.note, limit=4_000)}".rstrip(), columns)
    yield from (f"    {line}" for line in recipe.text.split("\n") if line)


def _allocations(report: CulpritReport, columns: int) -> Iterable[str]:
    rows = allocation_words.rows(report)
    if not rows:
        return
    yield from _heading(allocation_words.HEADING.upper(), wording.stamp(report))
    for component, place, _, _, change in rows:
        yield from _wrap(f"{change:>12}  {component}: {visible(place)}", columns, indent=14)
    yield from _wrap(visible(allocation_words.rest(report), limit=4_000), columns)


def _remedies(report: CulpritReport, columns: int) -> Iterable[str]:
    if not report.remedies:
        return
    yield from _heading("REMEDIES (estimates unless proven)", "")
    if remedy_words.warning(report):
        yield from _wrap(remedy_words.warning(report), columns)
    for remedy in remedy_words.legal(report):
        yield from _wrap(
            f"- {visible(remedy.title)}: {remedy_words.effect(report, remedy)}.", columns, indent=2
        )
        yield from _wrap(f"  {visible(remedy_words.change(remedy))}", columns, indent=2)
        said = f"  {remedy_words.cost(remedy)}. {wording.sentence(remedy_words.standing(remedy))}"
        yield from _wrap(visible(said), columns, indent=2)
    for line in remedy_words.illegal(report):
        yield from _wrap(f"- not legal for this job: {visible(line)}", columns, indent=2)


def _trials(report: CulpritReport, columns: int) -> Iterable[str]:
    if not report.trials:
        return
    yield from _heading(f"THE EVIDENCE: {wording.trials_words(report).upper()}", wording.stamp(report))
    for picture in timeline_pictures(report, columns=columns):
        yield picture
        yield ""
    for row in report.trials:
        words = trial_words(report, row)
        yield from _wrap(
            f"{words.number:>3} {words.sign} {words.verdict:<5} {words.value:>10}  {words.commit}",
            columns,
            indent=23,
        )
        yield from _wrap(f"{'':23}{words.reason} ({words.purpose}; {words.details})", columns, indent=23)
        if words.why:
            yield from _wrap(f"{'':23}Why: {visible(words.why)}", columns, indent=23)
        if words.changed:
            yield from _wrap(f"{'':23}Then: {visible(words.changed)}", columns, indent=23)
    shares = wording.suspicion_lines(report)
    if shares:
        yield ""
        yield "Belief after the last trial:"
        yield from (f"  {line}" for line in shares)


def _wrap(text: str, columns: int, *, indent: int = 0) -> list[str]:
    return textwrap.wrap(
        text,
        columns,
        subsequent_indent=" " * indent,
        break_on_hyphens=False,
        break_long_words=False,
        drop_whitespace=True,
    ) or [""]
