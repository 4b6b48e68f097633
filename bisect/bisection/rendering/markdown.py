"""The report in GitHub's Markdown: for a comment, an issue, a mail.

The headline, one picture, one table, then the evidence folded away. What strangers wrote stands in
code spans, where no mention, reference, link or HTML works.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bisection.rendering import allocation_words, remedy_words, wording
from bisection.rendering.escaping import code_block, code_span, markup, prose
from bisection.rendering.text_pictures import growth_picture, timeline_pictures
from bisection.rendering.trial_words import trial_words
from bisection.report import CulpritReport
from bisection.way_back import Recipe

#: GitHub refuses comments above 65,536 characters.
LONGEST_COMMENT = 65_000


def render_markdown(report: CulpritReport, *, documentation: str = "", longest: int = LONGEST_COMMENT) -> str:
    """The whole report. Trials are left out from the end until it fits ``longest``, then the git log.

    ``documentation`` is the URL of docs/; without it pages are only named.
    """
    most = len(report.trials)
    while True:
        text = _render(report, documentation.rstrip("/"), most)
        if len(text) <= longest:
            return text
        if most == 0:
            return _render(report, documentation.rstrip("/"), most, with_log=False)
        most //= 2


def _render(report: CulpritReport, documentation: str, most: int, *, with_log: bool = True) -> str:
    blocks: list[str] = [
        "## " + "".join(code_span(r.text) if r.foreign else prose(r.text) for r in report.headline)
    ]
    if report.retraction is not None:
        blocks.append(f"> **{prose(wording.retraction(report))}**")
    blocks += _stamp(report)
    if report.subject is None:  # there is no evidence that could tell what was asked
        blocks.append(_bullets(f"{name}: {code_span(value)}" for name, value, _ in wording.facts(report)))
    blocks.append(prose(wording.why(report)))
    blocks += _where(report)
    blocks += _allocations(report)
    blocks += _changed(report)
    blocks += _suspects(report)
    blocks += _descent(report)
    blocks += [block for recipe in report.way_back for block in _recipe(recipe, "The way back: ")]
    blocks += _remedies(report)
    blocks += _trials(report, most)
    by_hand = _by_hand(report, with_log)
    if by_hand:
        blocks.append(_folded("Reproduce by hand, and replay in plain git", by_hand))
    blocks += _stand_ins(report)
    blocks += _notes(report, documentation)
    return "\n\n".join(block for block in blocks if block) + "\n"


def _by_hand(report: CulpritReport, with_log: bool) -> list[str]:
    blocks = _recipe(report.reproduce, "") if report.reproduce else []
    if report.git_bisect_log and with_log:
        blocks += [
            "**Replay in plain git:** `git bisect replay` accepts this.",
            code_block(report.git_bisect_log),
        ]
    elif report.git_bisect_log:
        blocks.append(
            "The log to replay in plain git is too long for here: it is in the JSON and on the page."
        )
    elif wording.no_replay(report):
        blocks.append(prose(wording.no_replay(report)))
    return blocks


def _stamp(report: CulpritReport) -> list[str]:
    if report.simulation is None:
        return []
    lines = [f"> **{wording.stamp(report)}.**", *(f"> {prose(note)}" for note in report.simulation.notes)]
    if report.simulation.not_modelled:
        lines += ["> ", f"> {wording.NOT_MODELLED}:", "> "]
        lines += [f"> - {prose(told)}" for told in report.simulation.not_modelled]
        lines.append("> ")
    used = wording.stand_ins(report)
    if used:
        lines.append(f"> {used}; they are listed below.")
    return ["\n".join(lines)]


def _stand_ins(report: CulpritReport) -> list[str]:
    if report.simulation is None or not report.simulation.patches:
        return []
    rows = [
        (code_span(name, in_table=True), f"{count:,}") for name, count in report.simulation.patches.items()
    ]
    return [_folded(wording.stand_ins(report), [_table(("stand-in", "uses"), rows, numbers=1)])]


def _stamped(report: CulpritReport, words: str) -> str:
    stamp = wording.stamp(report)
    return f"**{words}**" + (f" — **{stamp}**" if stamp else "")


def _where(report: CulpritReport) -> list[str]:
    rows = wording.growth_rows(report)
    if not rows:
        return []
    before, after = wording.sides(report)
    table = [
        (f"**{row.name}**", f"**{row.before}**", f"**{row.after}**", f"**{row.growth}**")
        if row.named
        else (row.name, row.before, row.after, row.growth)
        for row in rows
    ]
    total = wording.total_row(report)
    if total:
        table.append(("in all", *total))
    return [
        _stamped(report, wording.where_words(report)),
        code_block(growth_picture(report), language="text"),
        _table(("", before, after, "change"), table, numbers=3),
        _bullets(prose(sentence) for sentence in wording.evidence_sentences(report)),
    ]


def _allocations(report: CulpritReport) -> list[str]:
    before, after = wording.sides(report)
    rows = [
        (component, code_span(place, in_table=True), *sizes)
        for component, place, *sizes in allocation_words.rows(report)
    ]
    if not rows:
        return []
    heads = ("component", "allocated by", before, after, "change")
    return [
        _folded(
            allocation_words.HEADING, [_table(heads, rows, numbers=3), prose(allocation_words.rest(report))]
        )
    ]


def _changed(report: CulpritReport) -> list[str]:
    before, after = wording.sides(report)
    blocks = []
    if report.config_delta:
        rows = [_spans(row) for row in wording.change_rows(report)]
        blocks += ["**Keys of the resolved configuration that differ**", _table(("key", before, after), rows)]
    elif report.config_delta is not None and report.culprit:
        blocks.append("No key of the resolved configuration differs.")
    if report.pin_delta:
        rows = [_spans(row) for row in wording.pin_rows(report)]
        blocks += ["**Pins that moved**", _table(("pin", before, after), rows)]
    blocks.append(wording.changes_left_out(report))
    if report.diff_summary and report.diff_summary.files:
        files = [
            code_span(file.path) + (f" +{file.added} −{file.removed}" if file.added is not None else "")
            for file in report.diff_summary.files
        ]
        if report.diff_summary.left_out:
            files.append(f"and {report.diff_summary.left_out} more")
        blocks += ["**Files that the commit touches**", _bullets(files)]
    return blocks


def _suspects(report: CulpritReport) -> list[str]:
    if len(report.suspects) < 2:
        return []
    lines = [
        code_span(f"{commit.short} {commit.subject}")
        + (f" by {code_span(commit.author)}" if commit.author else "")
        for commit in report.suspects
    ]
    return ["**The suspects**", _bullets(lines)]


def _descent(report: CulpritReport) -> list[str]:
    blocks = []
    for heading, names, why in wording.descent(report):
        lines = [f"{prose(heading)}", *(f"  - {code_span(name)}" for name in names)]
        blocks.append("- " + "\n".join(lines) + (f"\n  - {prose(why)}" if why else ""))
    return ["**Inside of what it carries**", "\n".join(blocks)] if blocks else []


def _recipe(recipe: Recipe, before: str) -> list[str]:
    blocks = [f"**{before}{prose(recipe.title)}**", _note(recipe.note)]
    if recipe.commands:
        blocks.append(code_block(recipe.text, language="sh"))
    return [block for block in blocks if block]


def _note(text: str) -> str:
    """A note of ours in which commands stand between backticks."""
    parts = text.split("`")
    return "".join(code_span(part) if index % 2 else prose(part) for index, part in enumerate(parts))


def _remedies(report: CulpritReport) -> list[str]:
    rows = [
        (
            f"{prose(one.title)}<br>{code_span(remedy_words.change(one), in_table=True)}",
            prose(remedy_words.effect(report, one)),
            prose(remedy_words.cost(one)),
            prose(remedy_words.standing(one)),
        )
        for one in remedy_words.legal(report)
    ]
    illegal = remedy_words.illegal(report)
    blocks = []
    if rows:
        heads = ("remedy", "saves", "costs", "standing")
        blocks += [
            "**Remedies** (estimates unless proven)",
            prose(remedy_words.warning(report)),
            _table(heads, rows),
        ]
    if illegal:
        summary = f"Remedies that are not legal for this job: {len(illegal)}"
        blocks.append(_folded(summary, [_bullets(prose(line) for line in illegal)]))
    return blocks


def _trials(report: CulpritReport, most: int) -> list[str]:
    if not report.trials:
        return []
    rows = []
    for row in report.trials[:most]:
        words = trial_words(report, row)
        where = f" · {code_span(words.where, in_table=True)}" if words.where else ""
        rows.append(
            (
                words.number,
                code_span(words.commit, in_table=True),
                f"{words.sign} {words.verdict}",
                words.value,
                f"{code_span(words.reason, in_table=True)}<br>{prose(words.purpose)}: "
                f"{code_span(words.why, in_table=True)}; {words.details}{where}"
                + (f"<br>then: {code_span(words.changed, in_table=True)}" if words.changed else ""),
            )
        )
    left_out = len(report.trials) - len(rows)
    shares = wording.suspicion_lines(report)
    inner = [
        *(code_block(picture, language="text") for picture in timeline_pictures(report)),
        _table(("trial", "commit", "verdict", "measured", "evidence"), rows) if rows else "",
        wording.trials_left_out(left_out),
        "**Belief after the last trial**\n\n" + code_block("\n".join(shares), language="text")
        if shares
        else "",
    ]
    stamp = wording.stamp(report)
    summary = f"The evidence: {wording.trials_words(report)}" + (f" ({stamp})" if stamp else "")
    return [_folded(summary, inner)]


def _notes(report: CulpritReport, documentation: str) -> list[str]:
    lines = [prose(note) for note in report.notes]
    for link in report.links:
        page = f"<{documentation}/{link.page}>" if documentation else code_span(link.page)
        lines.append(f"What {code_span(link.name)} means: {page}")
    return ["**Notes**", _bullets(lines)] if lines else []


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: int = 0) -> str:
    """``numbers`` columns at the right are aligned to the right; cells come escaped."""
    rule = ["---"] * (len(heads) - numbers) + ["--:"] * numbers
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (heads, rule, *rows))


def _spans(cells: Sequence[str]) -> tuple[str, ...]:
    return tuple(code_span(cell, in_table=True) for cell in cells)


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _folded(summary: str, blocks: Iterable[str]) -> str:
    inner = "\n\n".join(block for block in blocks if block)
    return f"<details><summary>{markup(summary)}</summary>\n\n{inner}\n\n</details>"
