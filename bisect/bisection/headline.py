"""The one sentence on top of a report, and the words for bytes, instants and components in it.

Sentences are runs of text, since what a stranger wrote (a subject, an author) is shown as code in
every format. No markup here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from bisection.answers import OTHER_WORK_PROBLEM
from bisection.commits import Commit
from bisection.criteria import CriterionKind
from bisection.descent_words import way_down
from bisection.finding import MADE, Finding, FindingKind
from bisection.quantities import counted, show_bytes, show_confidence
from bisection.regression import STATES, Regression, RegressionKind
from bisection.rendering.escaping import visible
from bisection.report_parts import MemoryPicture, Run, Subject, TimePicture
from memory_models.breakdown import Activity, Category, Component

COMPONENT_NAMES = {
    Component.VISION: "vision",
    Component.PROJECTOR: "projector",
    Component.DECODER: "decoder",
    Component.EXPERTS: "experts",
    Component.EMBEDDING_AND_LOSS: "embedding and loss",
    Component.RUNTIME: "runtime",
}
CATEGORY_WORDS = {
    Category.PARAMETERS: "parameters",
    Category.GRADIENTS: "gradients",
    Category.OPTIMIZER_STATES: "optimizer states",
    Category.ACTIVATIONS: "activations",
    Category.TEMPORARY: "temporary buffers",
    Category.COMMUNICATION: "communication buffers",
    Category.FRAGMENTATION: "fragmentation",
    Category.CONTEXT: "context",
}
ACTIVITY_WORDS = {
    Activity.VISION: "the vision tower",
    Activity.PROJECTOR: "the projector",
    Activity.DECODER: "the decoder",
    Activity.EXPERTS: "the experts",
    Activity.DISPATCH: "expert dispatch",
    Activity.EMBEDDING_AND_LOSS: "embedding and loss",
    Activity.OPTIMIZER: "the optimizer step",
    Activity.DATA: "data loading",
    Activity.IDLE: "time outside every module",
}

#: Problems with which the whole range was cleared; with others the search only ended without a name.
_CLEARED = frozenset({"", "same-state", "good-end-is-bad", "bad-end-passes"})

#: How a best answer so far begins, where the search had to stop before it was sure.
_STOPPED_EARLY = {
    "budget-spent": "The budget is spent. As far as it went, the first bad commit",
    "cancelled": "The search was cancelled. As far as it went, the first bad commit",
}

_NEITHER_END = "Nothing is known: neither end can be judged, and the profile probably needs repair."
_NOTHING_BAD = "Nothing is known yet: no trial could be judged bad."

_LAYER = re.compile(r"\b(?:layers|blocks)\.(\d+)\b")
_PLAIN_INSTANT = re.compile(r"[\w. :/-]{1,80}", re.ASCII)


def show_instant(instant: str, phase: str) -> str:
    """E.g. "layer 1's backward", from the name of a module and a phase."""
    layer = _LAYER.search(instant)
    if layer and phase:
        in_vision = "vision" in instant or "visual" in instant
        return f"{'vision ' if in_vision else ''}layer {layer[1]}'s {phase}"
    if instant and _PLAIN_INSTANT.fullmatch(instant):
        return instant
    return f"the {phase}" if phase else "an unnamed instant"


def headline(
    subject: Subject | None,
    finding: Finding,
    commits: Sequence[Commit],
    regression: Regression | None,
    memory: MemoryPicture | None,
    time: TimePicture | None,
) -> tuple[Run, ...]:
    """The finding in one sentence. ``commits`` are its suspects, oldest first: of a set, none where
    no trial was judged bad.
    """
    if finding.kind is FindingKind.REJECTED:
        return _plain(f"The bisection was not carried out: {_sentence(finding.why)}")
    if finding.problem == OTHER_WORK_PROBLEM:
        return _plain(f"The work changed, not its speed: {_sentence(finding.why)}")
    if finding.kind is FindingKind.NONE:
        if finding.problem not in _CLEARED:
            return _plain(f"No commit was named: {_sentence(finding.why)}")
        confidence = f"(confidence {show_confidence(finding.confidence)})"
        return _plain(f"No commit of the range is to blame {confidence}: {_sentence(finding.why)}")
    if not commits:
        return _plain(_NEITHER_END if finding.problem == "all-untestable" else _NOTHING_BAD)
    tail = _tail(subject, regression, memory, time)
    confidence = f"(confidence {show_confidence(finding.confidence)})"
    if finding.problem == "drift":
        climb = finding.why.split(". ")[0]
        return _plain(f"No single commit is to blame {confidence}: {climb[:1].lower()}{_sentence(climb[1:])}")
    if finding.kind is FindingKind.FOUND:
        culprit = commits[0]
        made = subject is not None and subject.line in MADE
        name = culprit.subject if made else f"{culprit.short} {culprit.subject}"
        runs = [Run(text=visible(name, limit=172), foreign=True)]
        if culprit.author:
            runs += [Run(text=" by "), Run(text=visible(culprit.author, limit=80), foreign=True)]
        what = "what makes it bad" if made else "the first bad commit"
        more = sum(step.worse and not step.signature for step in finding.others)
        beside = f", with {counted(more, 'more step')} beside it" if more else ""
        below = way_down(finding.descent)
        return (*runs, Run(text=f" is {what} {confidence}{beside}"), *below, Run(text=tail))
    said = _STOPPED_EARLY.get(finding.problem, "The first bad commit")
    if len(commits) == 1:
        return (
            Run(text=f"{said} is probably "),
            Run(text=f"{commits[0].short} {visible(commits[0].subject, limit=160)}", foreign=True),
            Run(text=f" {confidence}, but that could not be confirmed{tail}"),
        )
    return (
        Run(text=f"{said} is one of {len(commits)}, from "),
        Run(text=commits[0].short, foreign=True),
        Run(text=" to "),
        Run(text=commits[-1].short, foreign=True),
        Run(text=f" {confidence}{tail}"),
    )


def plain_text(runs: Sequence[Run]) -> str:
    return "".join(run.text for run in runs)


def growth_words(regression: Regression) -> str:
    """What grew, by how much and where, as a clause; empty if nothing can be said."""
    if regression.kind is RegressionKind.THROUGHPUT:
        return _slowdown_words(regression)
    if regression.kind is RegressionKind.FAILURE:
        return visible(regression.evidence[0].rstrip("."), limit=200) if regression.evidence else ""
    if regression.component is None or regression.category is None:
        return ""
    at_least = "at least " if regression.truncated else ""
    if regression.kind is RegressionKind.FRAGMENTATION:
        return f"fragmentation grew by {show_bytes(regression.category_delta_bytes or 0)}"
    # The component's growth, as in every bar and table: a cell may have grown by more, where others shrank.
    growth = regression.component_delta_bytes or 0
    grew = f"{COMPONENT_NAMES[regression.component]} grew by {at_least}{show_bytes(growth)}"
    if regression.kind in (RegressionKind.LAYOUT, RegressionKind.STATES):
        # All states of the component grow together, and they are there at every instant.
        states = _inside(STATES, regression)
        if states < growth / 2:
            return (
                f"{grew}: {show_bytes(states)} of parameters, gradients and optimizer states, "
                "and the activations that come with them"
            )
        return f"{grew}, {_in(STATES, regression, growth)} parameters, gradients and optimizer states"
    part = f"{_in({regression.category}, regression, growth)} {CATEGORY_WORDS[regression.category]}"
    where = show_instant(regression.instant, regression.phase)
    why = {
        RegressionKind.IMAGE_LOAD: " with a larger image load",
        RegressionKind.RETENTION: ", and that stays allocated after the step",
        RegressionKind.FIRST_STEP: ", in the first step only",
        RegressionKind.IMBALANCE: " with uneven routing",
        RegressionKind.GRAPH_CAPTURE: ", and stays allocated: CUDA graphs hold it",
    }.get(regression.kind, "")
    return f"{grew}, {part}, at {where}{why}"


#: Of a component's growth; from here on it is told to lie in one category.
_NEARLY_ALL = 0.95


def _in(categories: AbstractSet[Category], regression: Regression, growth: int) -> str:
    return "in" if _inside(categories, regression) >= _NEARLY_ALL * growth else "chiefly in"


def _inside(categories: AbstractSet[Category], regression: Regression) -> int:
    """Growth of the component in these categories."""
    return sum(
        cell.delta_bytes
        for cell in regression.cells
        if cell.component is regression.component and cell.category in categories
    )


def _slowdown_words(regression: Regression) -> str:
    if regression.activity is None or regression.delta_seconds is None:
        return "no time by activity was recorded"
    if regression.activity is Activity.DATA and regression.confidence == "weak":
        return "a step holds fewer useful tokens at equal time"
    where = f" in {regression.phase}" if regression.phase else ""
    return (
        f"{ACTIVITY_WORDS[regression.activity]} takes {regression.activity_delta_seconds or 0.0:+.3f} s"
        f" a step{where}, of {regression.delta_seconds:+.3f} s in all"
    )


def _tail(
    subject: Subject | None,
    regression: Regression | None,
    memory: MemoryPicture | None,
    time: TimePicture | None,
) -> str:
    clauses = [growth_words(regression)] if regression else []
    if regression and regression.kind is RegressionKind.THROUGHPUT:
        if time and time.culprit_rate is not None:
            limit = f" against a threshold of {time.lowest_good_rate:,.1f}" if time.lowest_good_rate else ""
            clauses.append(f"{time.culprit_rate:,.1f} useful tokens a second{limit}")
    elif memory and memory.culprit and (subject is None or subject.criterion.kind is not CriterionKind.CRASH):
        words = "stopped at" if memory.truncated else "peak"
        clauses.append(
            f"{words} {show_bytes(memory.culprit.allocated_bytes)}"
            + (f" against a capacity of {show_bytes(memory.capacity_bytes)}" if memory.capacity_bytes else "")
        )
    said = "; ".join(clause for clause in clauses if clause)
    return f": {said}." if said else "."


def _plain(text: str) -> tuple[Run, ...]:
    return (Run(text=text),)


def _sentence(text: str) -> str:
    shown = visible(text) or "no reason was recorded"
    return shown if shown.endswith((".", "!", "?")) else f"{shown}."
