"""What the ledger shows beside the culprit: further steps of the values, falls, failures of another kind.

Here lives which of them are told with an answer, and which are worth a search of their own. That search
is `search.Search` once more, over the two levels that meet at the step, with a limit halfway between them:

    70              o--o      the culprit crosses the limit of 65 at d; from f to g the values rise
    66      o--o--o           again: a search over d to h with a limit of 68 finds where
    60 o--o
       a  c d  e  f g  h
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from bisection import step_words
from bisection.answers import AGREEING_TRIALS, Standing
from bisection.commits import CommitRange
from bisection.criteria import Criterion, CriterionKind
from bisection.drift import LEAST_SHARE
from bisection.finding import Finding, FindingKind, OtherStep
from bisection.ledger import LedgerEntry, Trial
from bisection.levels import Level
from bisection.specification import BisectionSpec
from bisection.states import Line
from bisection.steps import Step, levels
from bisection.values import worse


@dataclass(frozen=True, kw_only=True)
class SeenStep:
    """A step beside the culprit's, with what is told of it."""

    step: Step
    told: OtherStep

    def narrowed(self, answer: Finding) -> OtherStep:
        """What is told once its own search has ended."""
        if answer.kind is not FindingKind.FOUND or answer.parent is None:
            return self.told
        return replace(self.told, commits=answer.commits, parent=answer.parent, confirmed=True)


class StepSearch(Protocol):
    """What is needed here of a search."""

    def next(self, workers: int, pending: Sequence[Trial] = ()) -> tuple[Trial, ...] | Finding: ...
    def cancellable(self, pending: Sequence[Trial]) -> tuple[Trial, ...]: ...


#: Begins the search for a step, after the trials that it can use; None where that is not worth it.
Begin = Callable[[Step], StepSearch | None]


def with_others(
    answer: Finding, standing: Standing, begin: Begin, workers: int, pending: Sequence[Trial]
) -> tuple[Trial, ...] | Finding:
    """The answer with what the trials show beside its culprit, or trials that find the commit of a step.

    ``workers`` and ``pending`` are as in `search.Search.next`.
    """
    if answer.kind is not FindingKind.FOUND:
        return answer
    told = []
    for seen in seen_steps(standing, _culprit(standing, answer)):
        search = begin(seen.step)
        decision = search.next(workers, pending) if search else None
        if isinstance(decision, tuple):
            return tuple(step_words.for_step(trial, standing, seen.step) for trial in decision)
        told.append(seen.narrowed(decision) if decision else seen.told)
    others = (*told, *other_failures(standing))
    return replace(answer, others=others, why=answer.why + step_words.others(standing, others))


def needless(
    answer: Finding, standing: Standing, begin: Begin, workers: int, pending: Sequence[Trial]
) -> tuple[Trial, ...]:
    """What need not run any more once there is an answer: all that no search for a step waits for."""
    if answer.kind is FindingKind.FOUND:
        for seen in seen_steps(standing, _culprit(standing, answer)):
            search = begin(seen.step)
            if search and not isinstance(search.next(workers, pending), Finding):
                return search.cancellable(pending)
    return tuple(pending)


def _culprit(standing: Standing, answer: Finding) -> int:
    """The culprit's state."""
    return standing.line.places[standing.line.level.state_of(answer.commits[0])]


def seen_steps(standing: Standing, culprit: int) -> tuple[SeenStep, ...]:
    """The steps of the values beside the one into the culprit's state, oldest first."""
    if standing.profile is None or standing.values is None:
        return ()
    sign = worse(standing.values.kind)
    return tuple(
        SeenStep(
            step=step,
            told=OtherStep(
                commits=_between(standing.line, step.lower, step.upper),
                parent=standing.line.first_commit(step.lower).hash,
                delta=sign * step.delta,
                worse=step.delta > 0,
            ),
        )
        for step in levels(standing.profile, culprit)
        if not step.lower < culprit <= step.upper
    )


def other_failures(standing: Standing) -> tuple[OtherStep, ...]:
    """Where each failure of another kind begins, as far as the trials bound it; not looked for any further.

    A failure begins after the last state before its first sighting that did not show it: that passed, or that
    failed in the way looked for.
    """
    line, evidence = standing.line, standing.evidence
    told = []
    for signature, groups in sorted(evidence.other_failures.items(), key=lambda item: min(item[1])):
        first = min(groups)
        before = [group for group in evidence.known_testable() if group < first]
        if not before:
            continue
        told.append(
            OtherStep(
                commits=_between(line, before[-1], first),
                parent=line.first_commit(before[-1]).hash,
                delta=None,
                worse=True,
                signature=signature,
            )
        )
    return tuple(told)


def worth_a_search(standing: Standing, step: Step, left: int) -> bool:
    """Whether to look for the commit of a step, with so many trials left.

    It must be for the worse, and as large a share of all that the values span as a culprit must carry:
    undoing the culprit alone would leave that much. The trials must suffice to halve its stretch
    down to one commit and to confirm it. Above a capacity nothing can be measured, so a
    step up there is only told. Steps inside of what a commit carries are not what was asked about.
    """
    assert standing.profile is not None
    if not standing.line.level.is_ground or step.delta < LEAST_SHARE * standing.profile.span:
        return False
    if standing.spec.criterion.kind is CriterionKind.OUT_OF_MEMORY and step.middle >= 0:
        return False
    return left >= math.ceil(math.log2(step.upper - step.lower)) + 2 * (AGREEING_TRIALS - 1)


def specification_for(standing: Standing, step: Step) -> BisectionSpec:
    """The bisection of one step: the states of the two levels, with the limit halfway between them."""
    assert standing.values is not None
    spec, line, level = standing.spec, standing.line, standing.line.level
    start, end = (level.range.position(line.first_commit(group).hash) for group in (step.first, step.last))
    commits = CommitRange(commits=level.range.commits[start : end + 1])
    kind = standing.values.kind
    if kind is CriterionKind.OUT_OF_MEMORY:
        kind = CriterionKind.PEAK_MEMORY
    return replace(
        spec,
        range=commits,
        first=Level(kind=level.kind, range=commits, states=level.states[start : end + 1]),
        opened=(),
        criterion=Criterion(kind=kind, threshold=standing.values.at(step.middle)),
    )


def entries_for(line: Line, ledger: Sequence[LedgerEntry]) -> tuple[LedgerEntry, ...]:
    """The entries that speak of the states of a line, as a ledger of their own."""
    inside = [entry for entry in ledger if entry.trial.state in line.places and entry.trial.is_evidence]
    return tuple(replace(entry, sequence=sequence) for sequence, entry in enumerate(inside))


def _between(line: Line, lower: int, upper: int) -> tuple[str, ...]:
    """The commits of the states after one and up to another."""
    return tuple(line.first_commit(group).hash for group in range(lower + 1, upper + 1))
