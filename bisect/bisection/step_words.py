"""The sentences on what the trials show beside a culprit: further steps, falls, other failures.

Words only, as in `narration`: every decision was made elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bisection.answers import Standing
from bisection.criteria import OTHER_WORK_SIGNATURE, CriterionKind
from bisection.finding import OtherStep
from bisection.ledger import Trial
from bisection.quantities import counted
from bisection.steps import Step
from bisection.value_words import amount


def for_step(trial: Trial, standing: Standing, step: Step) -> Trial:
    """A trial that looks for a further step, with the words for it."""
    assert standing.values is not None
    kind, line = standing.values.kind, standing.line
    return replace(
        trial,
        why=f"Beside the culprit's step {_metric(kind)} gets worse by {amount(kind, step.delta)} between "
        f"{line.name(step.lower)} and {line.name(step.upper)}: at which commit? {trial.why}",
    )


def others(standing: Standing, steps: Sequence[OtherStep]) -> str:
    """Sentences on what the trials show beside the culprit, each after a space; "" if that is nothing."""
    said = [_other(standing, step) for step in steps]
    if any(not step.worse for step in steps) and any(step.worse and not step.signature for step in steps):
        said.append("So more than one change breaks it, and something in the range mends it in part.")
    return "".join(f" {sentence}" for sentence in said)


def _other(standing: Standing, step: OtherStep) -> str:
    level = standing.line.level
    last = level.name(level.range.commits[level.range.position(step.commits[-1])])
    parent = level.name(level.range.commits[level.range.position(step.parent)])
    between = f"between {parent} and {last}, in one of {counted(len(step.commits), 'commit')}"
    if len(step.commits) == 1:
        between = f"at {last}"
    if step.signature or step.delta is None or standing.values is None:
        seen = standing.evidence.other_failures[step.signature]
        until = standing.line.name(max(seen))
        where = (
            f"at {until}" if min(seen) == max(seen) else f"from {standing.line.name(min(seen))} to {until}"
        )
        trials = counted(len(seen), "trial")
        what = f"Another failure, {step.signature},"
        if step.signature == OTHER_WORK_SIGNATURE:
            what = "Other work than the good end's, which no speed is compared with,"
        return f"{what} was seen in {trials}, {where}; it begins {between}."
    kind = standing.values.kind
    rises = "rises" if step.delta > 0 else "falls"
    sure = ", confirmed as the culprit is" if step.confirmed else ", which was not looked into further"
    return f"{_metric(kind).capitalize()} also {rises} by {amount(kind, abs(step.delta))} {between}{sure}."


def _metric(kind: CriterionKind) -> str:
    return (
        "the throughput"
        if kind is CriterionKind.THROUGHPUT
        else "the metric"
        if kind.is_metric
        else "the peak"
    )
