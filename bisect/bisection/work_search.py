"""Which commit changed the work, where the bad end does other work than the good end.

That is no slow-down, and no commit is blamed for one; but whoever asked wants to know where their comparison
broke. The same search tells it, with the other work as the failure that is looked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bisection import narration
from bisection.answers import Standing
from bisection.criteria import OTHER_WORK_SIGNATURE, Criterion, CriterionKind, Verdict
from bisection.evidence import JudgedEntry
from bisection.finding import Finding, FindingKind, OtherStep
from bisection.ledger import LedgerEntry, Trial
from bisection.measurement import Measurement, Outcome
from bisection.specification import BisectionSpec


def specification_of_work(spec: BisectionSpec) -> BisectionSpec:
    """The same range; bad is what does other work."""
    return replace(spec, criterion=Criterion(kind=CriterionKind.CRASH, signature=OTHER_WORK_SIGNATURE))


def entries_of_work(judged: Sequence[JudgedEntry]) -> tuple[LedgerEntry, ...]:
    """The judged entries as a ledger of their own, in which a run that did other work failed by that."""
    return tuple(
        replace(item.entry, sequence=number, measurement=_as_seen(item)) for number, item in enumerate(judged)
    )


def _as_seen(item: JudgedEntry) -> Measurement:
    measured, judgement = item.entry.measurement, item.judgement
    if measured.outcome is not Outcome.COMPLETED or judgement.verdict is not Verdict.SKIP:
        return measured
    if judgement.signature == OTHER_WORK_SIGNATURE:
        return measured.evolve(outcome=Outcome.CRASHED, signature=OTHER_WORK_SIGNATURE, reason=judgement.why)
    return measured.evolve(outcome=Outcome.INVALID, reason=judgement.why)


def for_work(trial: Trial) -> Trial:
    """A trial that looks for the commit, with the words for it."""
    return replace(
        trial,
        why=f"The bad end does other work than the good end: which commit changed it? {trial.why}",
    )


def with_change(answer: Finding, changed: Finding, standing: Standing) -> Finding:
    """The answer with where the work changed, as far as the search for that has come."""
    if changed.kind not in (FindingKind.FOUND, FindingKind.SET):
        return answer
    level = standing.line.level
    parent = changed.parent or level.before(changed.commits[0]).hash
    step = OtherStep(
        commits=changed.commits,
        parent=parent,
        delta=None,
        worse=True,
        confirmed=changed.kind is FindingKind.FOUND,
        signature=OTHER_WORK_SIGNATURE,
    )
    names = [level.name(level.range.commits[level.range.position(one)]) for one in (*changed.commits, parent)]
    return replace(
        answer,
        confidence=changed.confidence,
        others=(step,),
        why=f"{answer.why} {narration.work_changed(names[:-1], names[-1])}",
    )
