"""What the measurements of an ended bisection say under another criterion, without a new trial.

Pure: nothing is stored and nothing is run. A bisection that is made of it (`ancestry`) begins where this
stops: with the same answer, or with the trials that are still wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bisection.ancestry import EVIDENCE, Derivation, is_kept
from bisection.commit_record import circumstances_of
from bisection.criteria import Criterion, Judgement, judge
from bisection.descent import only_step, whole_answer
from bisection.finding import Finding
from bisection.ledger import LedgerEntry, Trial
from bisection.progress import Progress, progress
from bisection.search import Search
from bisection.specification import BisectionSpec


@dataclass(frozen=True, kw_only=True)
class Rejudged:
    """One measurement that counts, before and after."""

    entry: LedgerEntry
    before: Judgement
    after: Judgement


@dataclass(frozen=True, kw_only=True)
class Replay:
    """The answer, or what is missing for one."""

    spec: BisectionSpec  #: with the new criterion, and as far down as the answer leads
    finding: Finding | None  #: None while trials are wanted
    wanted: tuple[Trial, ...]  #: that would be started next
    so_far: Progress
    judged: tuple[Rejudged, ...]  #: all that count, in the order of the ledger
    left_behind: tuple[LedgerEntry, ...]  #: that tell nothing under the new criterion, and are measured anew


def replay_specification(spec: BisectionSpec, criterion: Criterion, confidence: float) -> BisectionSpec:
    """The range under another criterion. What was opened is left out: another answer opens something else."""
    return replace(spec, criterion=criterion, confidence=confidence, opened=(), excluded=())


def replay(
    known: BisectionSpec, ledger: Sequence[LedgerEntry], criterion: Criterion, confidence: float
) -> Replay:
    """Judge the ledger of a bisection anew.

    Where the answer is the same that was opened before, its levels are replayed too; what another answer
    carries only git knows, and is opened by the bisection that is made of this.
    """
    spec = replay_specification(known, criterion, confidence)
    kept = [entry for entry in ledger if is_kept(Derivation.REPLAY, criterion, entry.measurement)]
    beside = circumstances_of(spec, kept)
    decision = _decide(spec, kept)
    for level in known.levels[1:]:
        above = level.opened_by
        if not isinstance(decision, Finding) or above is None:
            break
        if (above.kind, above.commits, above.problem) != (decision.kind, decision.commits, decision.problem):
            break
        spec = spec.with_level(replace(level, opened_by=decision))
        decision = only_step(level, decision) if len(level.states) == 2 else _decide(spec, kept)
    return Replay(
        spec=spec,
        finding=whole_answer(spec, decision) if isinstance(decision, Finding) else None,
        wanted=() if isinstance(decision, Finding) else decision,
        so_far=progress(spec, _of_levels(spec, kept), ()),
        judged=tuple(
            Rejudged(
                entry=entry,
                before=judge(known.criterion, entry.measurement, beside),
                after=judge(criterion, entry.measurement, beside),
            )
            for entry in kept
        ),
        left_behind=tuple(entry for entry in ledger if entry not in kept),
    )


def _decide(spec: BisectionSpec, kept: Sequence[LedgerEntry]) -> Finding | tuple[Trial, ...]:
    return Search.replay(spec, _of_levels(spec, kept)).next(spec.parallel)


def _of_levels(spec: BisectionSpec, kept: Sequence[LedgerEntry]) -> tuple[LedgerEntry, ...]:
    """What was measured of the specification's states, numbered anew and at no cost: a ledger of its own."""
    states = {state for level in spec.levels for state in level.states}
    here = [entry for entry in kept if entry.trial.state in states and entry.trial.purpose in EVIDENCE]
    return tuple(
        replace(
            entry, sequence=number, trial=replace(entry.trial, taken_from=entry.trial.taken_from or "replay")
        )
        for number, entry in enumerate(here)
    )
