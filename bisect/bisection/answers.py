"""When a search is over, and what its answer is.

Here lives the rule for naming a commit, and the answers at any other time. What to
try next is `placement`'s matter, how an answer reads `narration`'s.

Open states cut the line into stretches (lower, upper]: the regression began in
one of them. A stretch is the answer when the belief in it is high enough, its lower
state passed and its upper state failed, at least twice each and on different
workers. If it holds one state, that is the culprit; if it holds more, those in it
cannot be tested and the answer is a set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from bisection import narration, value_words
from bisection.belief import Belief
from bisection.criteria import OTHER_WORK_SIGNATURE
from bisection.drift import Drift, find_drift
from bisection.evidence import END_SKIPS, Evidence, StateEvidence
from bisection.finding import Finding, FindingKind
from bisection.posterior import Posterior
from bisection.specification import BisectionSpec
from bisection.states import Line
from bisection.steps import Profile
from bisection.values import Values

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

#: Page of an answer that the two ends cannot be compared, since they do not do the same.
OTHER_WORK_PROBLEM = "other-work"
#: Trials that must agree before a commit is named, at the culprit and at its parent.
AGREEING_TRIALS = 2
#: With so many agreeing trials a second worker is no longer waited for: there seems to be none.
TRIALS_WITHOUT_SECOND_WORKER = 4
#: Doubt that may remain if trials flake much, as a multiple of the doubt that may be stated. Measured over
#: planted culprits: without this, stopping at a belief of .99 was wrong in 1.8 % of cases at .3 and .05.
CAUTION = 1.5


@dataclass(frozen=True, kw_only=True)
class Standing:
    """All that is known and believed at one moment of a search."""

    spec: BisectionSpec
    line: Line
    evidence: Evidence
    belief: Belief
    open: Integers  #: groups that can be tested, ascending
    values: Values | None = None  #: what was measured; None for a criterion that compares no value

    @cached_property
    def profile(self) -> Profile | None:
        """The measured values along the line; None where its steps are no commits one after another."""
        return None if self.values is None or self.line.level.is_made else Profile.of(self.values)

    @cached_property
    def drift(self) -> Drift | None:
        """The slow climb over the limit, if the values show one."""
        if self.profile is None or not len(self.profile.groups):
            return None
        if self.posterior.belief[1:-1].sum() < self.spec.confidence:
            return None
        upper = int(np.searchsorted(self.posterior.bad()[self.profile.groups], 0.5))
        if not 0 < upper < len(self.profile.groups):
            return None
        return find_drift(self.profile, *(int(group) for group in self.profile.groups[upper - 1 : upper + 1]))

    @property
    def posterior(self) -> Posterior:
        """The belief as it is stated."""
        return self.belief.posterior

    def stretch_belief(self, posterior: Posterior | None = None) -> Floats:
        """(len(open)+1,) belief that the first bad state lies in each stretch.

        Stretch k is (open[k-1], open[k]]; the first begins with "the good end is bad", the last ends with
        "no culprit".
        """
        up_to = np.cumsum((posterior or self.posterior).belief)[self.open]
        return np.diff(np.concatenate([[0.0], up_to, [1.0]]))

    def still_to_agree(self, group: int, *, bad: bool) -> int:
        """How many more trials must fail (or pass) at this state before an answer may rest on it."""
        state = self.evidence.of(group)
        count = state.failures if bad else state.passes
        workers = state.failing_workers if bad else state.passing_workers
        missing = AGREEING_TRIALS - count
        if self.spec.workers > 1 and count < TRIALS_WITHOUT_SECOND_WORKER:
            missing = max(missing, AGREEING_TRIALS - len(workers))
        return max(missing, 0)

    def needed(self, running: Sequence[int]) -> Floats:
        """(len(open),) belief that an answer will rest on one more trial of each open state.

        ``running`` are the states that are being tried.
        """
        belief = self.stretch_belief()
        needed = np.zeros(len(self.open))
        for k in np.flatnonzero(np.maximum(belief[:-1], belief[1:]) > 0.01):
            group = int(self.open[k])
            if self.still_to_agree(group, bad=True) > running.count(group):
                needed[k] += belief[k]
            if self.still_to_agree(group, bad=False) > running.count(group):
                needed[k] += belief[k + 1]
        return needed


def conclusion(standing: Standing) -> Finding | None:
    """The answer, if the search is over without any limit having been reached."""
    line, evidence = standing.line, standing.evidence
    if len(line) == 1:
        return Finding(
            kind=FindingKind.NONE, confidence=1.0, why=narration.same_state(line), problem="same-state"
        )
    untestable = _untestable_ends(standing)
    if untestable is not None:
        return untestable
    if not evidence.anchored:
        return None
    if standing.drift is not None:
        if 0 in standing.open and not evidence.of(0).testable:
            return None  # how far the values climbed is known once the good end is
        return _drifting(standing, standing.drift)
    best = _settled(standing, standing.belief)
    if best is None:
        return None
    confidence = float(standing.stretch_belief()[best])
    lower, upper = _bounds(standing, best)
    if lower is None and upper == 0:
        return Finding(
            kind=FindingKind.NONE,
            confidence=confidence,
            why=narration.good_end_is_bad(line, evidence),
            problem="good-end-is-bad",
        )
    if upper is None and lower == line.last:
        return Finding(
            kind=FindingKind.NONE,
            confidence=confidence,
            why=narration.bad_end_passes(line, evidence),
            problem="bad-end-passes",
        )
    first = 1 if lower is None else lower + 1
    last = line.last if upper is None else upper
    if first == last and lower is not None and upper is not None:
        climb = standing.profile and find_drift(standing.profile, lower, upper, naming=True)
        if climb:
            return _drifting(standing, climb)
        return Finding(
            kind=FindingKind.FOUND,
            commits=(line.first_commit(last).hash,),
            parent=line.parent(last).hash,
            confidence=confidence,
            why=narration.found(line, evidence, last, standing.spec.workers) + _overruled(standing),
        )
    problem, why = "untestable-stretch", narration.untestable_stretch(line, evidence, first, last)
    if lower is None:
        problem, why = "good-end-untestable", narration.good_end_untestable(line, evidence, last)
    return Finding(
        kind=FindingKind.SET,
        commits=_hashes(line, range(first, last + 1)),
        confidence=confidence,
        why=why,
        problem=problem,
    )


def _overruled(standing: Standing) -> str:
    """Which workers' verdicts do not count as they stand, as a sentence; "" where all do."""
    if standing.values is None or not standing.values.overruled.any():
        return ""
    workers = [item.worker for item in standing.evidence.observations]
    return f" {value_words.overruled(standing.values, workers)}"


def _drifting(standing: Standing, drift: Drift) -> Finding:
    """No commit is named where none carries the crossing: the answer is all over which the values climb."""
    assert standing.values is not None
    inside = range(drift.first + 1, drift.last + 1)
    return Finding(
        kind=FindingKind.SET,
        commits=_hashes(standing.line, inside),
        confidence=float(standing.posterior.belief[list(inside)].sum()),
        why=value_words.drift(standing.line, standing.values, drift),
        problem="drift",
    )


def may_end(standing: Standing, running: Sequence[int]) -> bool:
    """Whether the search is over once the trials at these states brought what is expected most of them.

    If not, one more trial will be needed in any case.
    """
    return _settled(standing, standing.belief.if_all_agree(running), running) is not None


def _settled(standing: Standing, belief: Belief, running: Sequence[int] = ()) -> int | None:
    """The stretch that holds the answer, if the belief and the agreeing trials suffice for it."""
    stated = standing.stretch_belief(belief.posterior)
    best = int(np.argmax(stated))
    if stated[best] < standing.spec.confidence:
        return None
    doubt = 1 - float(standing.stretch_belief(belief.cautious)[best])
    if doubt > CAUTION * (1 - standing.spec.confidence):
        return None
    lower, upper = _bounds(standing, best)
    if lower is not None and standing.still_to_agree(lower, bad=False) > running.count(lower):
        return None
    if upper is not None and standing.still_to_agree(upper, bad=True) > running.count(upper):
        return None
    return best


def _bounds(standing: Standing, stretch: int) -> tuple[int | None, int | None]:
    """The open states before a stretch and at its end; None beyond the ends of the line."""
    lower = int(standing.open[stretch - 1]) if stretch > 0 else None
    upper = int(standing.open[stretch]) if stretch < len(standing.open) else None
    return lower, upper


def _untestable_ends(standing: Standing) -> Finding | None:
    """The answer where the bad end cannot be tested, or nothing can."""
    line, evidence = standing.line, standing.evidence
    bad_end, good_end = evidence.of(line.last), evidence.of(0)
    if not _given_up(bad_end):
        return None
    if not good_end.testable and good_end.untestable_trials == 0 and not evidence.known_testable():
        return None  # one trial of the good end tells a broken bad end from a broken profile
    if not good_end.testable and good_end.untestable_trials > 0:
        return Finding(
            kind=FindingKind.SET,
            commits=_hashes(line, range(1, len(line))),
            confidence=float(standing.posterior.belief[1:-1].sum()),
            why=narration.nothing_testable(line, evidence),
            problem="all-untestable",
        )
    if line.last in evidence.other_failures.get(OTHER_WORK_SIGNATURE, ()):
        return Finding(
            kind=FindingKind.NONE,
            confidence=0.0,
            why=narration.other_work(line, evidence),
            problem=OTHER_WORK_PROBLEM,
        )
    return Finding(
        kind=FindingKind.NONE,
        confidence=0.0,
        why=narration.bad_end_untestable(line, evidence),
        problem="bad-end-untestable",
    )


def _given_up(end: StateEvidence) -> bool:
    return not end.testable and end.untestable_trials >= END_SKIPS


def best_answer(standing: Standing, why: str, problem: str) -> Finding:
    """The best answer so far, for a search that must stop now; ``why`` says what stopped it.

    The smallest set of suspects that with the null hypotheses reaches the confidence asked for. None of
    its commits is confirmed, even if it is only one.
    """
    over = conclusion(standing)
    if over is not None:
        return over
    belief = standing.posterior.belief
    order = np.argsort(-belief, kind="stable")
    enough = int(np.searchsorted(np.cumsum(belief[order]), standing.spec.confidence)) + 1
    chosen = sorted(int(c) for c in order[:enough])
    suspects = [c for c in chosen if 0 < c < len(belief) - 1]
    null = float(belief[0] + belief[-1])
    if not suspects or null >= standing.spec.confidence:
        which = "good-end-is-bad" if belief[0] > belief[-1] else "bad-end-passes"
        return Finding(
            kind=FindingKind.NONE,
            confidence=float(max(belief[0], belief[-1])),
            why=f"{why} {narration.leaning_to_none(which)}",
            problem=problem,
        )
    return Finding(
        kind=FindingKind.SET,
        commits=_hashes(standing.line, suspects),
        confidence=float(belief[suspects].sum()),
        why=f"{why} {narration.best_so_far(standing.line, standing.evidence, standing.posterior, suspects)}",
        problem=problem,
    )


def _hashes(line: Line, groups: Sequence[int] | range) -> tuple[str, ...]:
    return tuple(line.first_commit(group).hash for group in groups)
