"""A sweep's report in GitHub's Markdown: for an issue, or a pull request that changes a recipe."""

from __future__ import annotations

from bisection.rendering.escaping import code_block, code_span, prose
from bisection.rendering.sweep_terminal import plot
from bisection.rendering.sweep_words import (
    HEADS,
    answer,
    limit_words,
    point_words,
    said_words,
    stamp,
    tally,
    title,
)
from bisection.rendering.wording import NOT_MODELLED
from bisection.sweep_report import SweepReport

_NUMBERS = range(2, 8)


def render_sweep_markdown(report: SweepReport) -> str:
    blocks = [f"### {prose(title(report))}"]
    if stamp(report):
        blocks.append(f"> **{prose(stamp(report))}**")
    blocks.append(f"**{prose(answer(report))}**")
    if report.failure and report.points:
        blocks.append(prose(report.failure))
    swept = report.swept
    where = f"Profile {code_span(swept.profile)} of {code_span(swept.repository)} at {code_span(swept.at)}"
    if swept.commit:
        where += f" ({code_span(swept.commit[:10])} {code_span(swept.subject)})"
    blocks.append(f"{where}. {prose(tally(report))}; {prose(limit_words(report))}.")
    if report.points:
        rules = ["--:" if column in _NUMBERS else "---" for column in range(len(HEADS))]
        lines = [" | ".join(HEADS), " | ".join(rules)]
        for words in point_words(report):
            cells = [prose(cell) for cell in words.cells]
            if words.is_best:
                cells[1] = f"**{cells[1]}**"
            lines.append(" | ".join(cells))
        blocks.append("\n".join(f"| {line} |" for line in lines))
        blocks.append(code_block("\n".join(plot(report, columns=100))))
    said = said_words(report)
    if said:
        lines = [f"- {numbers}, {prose(standing)}: {code_span(words)}" for numbers, standing, words in said]
        blocks.append("\n".join(lines))
    if report.simulation is not None:
        blocks.append(" ".join(prose(note) for note in report.simulation.notes))
        if report.simulation.not_modelled:
            blocks.append(f"{NOT_MODELLED}:")
            blocks.append("\n".join(f"- {prose(told)}" for told in report.simulation.not_modelled))
    return "\n\n".join(blocks) + "\n"
