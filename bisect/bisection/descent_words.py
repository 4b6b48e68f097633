"""What a descent found, in words: for the headline and for every format of the report.

Runs of text, since subjects are a stranger's. Nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Sequence

from bisection.finding import FindingKind, LevelFinding, LevelKind
from bisection.quantities import show_confidence
from bisection.rendering.escaping import visible
from bisection.report_parts import Run


def way_down(descent: Sequence[LevelFinding]) -> tuple[Run, ...]:
    """The way from the culprit to what it carries, as a clause of a sentence; empty if there is none."""
    runs: list[Run] = []
    for number, level in enumerate(descent):
        last = number == len(descent) - 1
        runs += _clause(level, last=last)
    return tuple(runs)


def _clause(level: LevelFinding, *, last: bool) -> list[Run]:
    if level.joint:
        return [
            Run(text=", by parts of it that could not be told apart: "),
            *_listed(level.names),
        ]
    if level.kind is FindingKind.SET and last:
        return _one_of(level)
    if level.kind is not FindingKind.FOUND:
        return []
    what = Run(text=visible(level.names[0], limit=160), foreign=True)
    match level.level:
        case LevelKind.FACTORS:  # which of them it was is told by the level below, if there is one
            return [Run(text=", by "), what] if last else []
        case LevelKind.MERGE if level.lost:  # which commit mended it is told by the level below
            return [Run(text=", by losing in the merge what mended it after "), what] if last else []
        case LevelKind.PIN | LevelKind.COMMITS if level.lost:
            return [Run(text=f", by losing a fix in {_place(level)}: "), what]
        case LevelKind.PIN | LevelKind.MERGE | LevelKind.COMMITS:
            return [Run(text=f", in {_place(level)} by "), what]
        case LevelKind.PACKAGES:
            return [Run(text=f", in {_place(level)} by "), what]
    return []


def _one_of(level: LevelFinding) -> list[Run]:
    place = "" if level.level is LevelKind.FACTORS else f" in {_place(level)}"
    if len(level.names) > 1:
        return [Run(text=f", by one of {len(level.names)} {'changes' if place else 'parts of it'}{place}")]
    name = Run(text=visible(level.names[0], limit=160), foreign=True)
    return [Run(text=f",{place} probably by "), name, Run(text=", which could not be confirmed")]


def _place(level: LevelFinding) -> str:
    if level.level is LevelKind.MERGE:
        return "the merged branch"
    if level.level is LevelKind.COMMITS:
        return "the source"
    return visible(level.path, limit=160) or "the change"


def _listed(names: Sequence[str]) -> list[Run]:
    runs: list[Run] = []
    for number, name in enumerate(names):
        runs += [Run(text=", " if number else ""), Run(text=visible(name, limit=160), foreign=True)]
    return [run for run in runs if run.text]


def level_lines(level: LevelFinding) -> tuple[str, tuple[str, ...], str]:
    """A level as a heading, what was found (subjects, still to be escaped), and why."""
    lost = "a fix is lost after" if level.level is LevelKind.MERGE else "lost fix"
    answers = {
        FindingKind.FOUND: lost if level.lost else "found",
        FindingKind.SET: "cannot be told apart" if level.joint else "one of these",
        FindingKind.NONE: "nothing was named",
    }
    confidence = f" (confidence {show_confidence(level.confidence)})" if level.commits else ""
    title = level.title
    if title.startswith(("what ", "the ")):  # a path keeps its spelling
        title = title[0].upper() + title[1:]
    return f"{title}: {answers.get(level.kind, level.kind.value)}{confidence}", level.names, level.why
