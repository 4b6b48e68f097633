"""Remedies proven: runs the best remedies at the culprit, each as a trial with changed keys.

Like the revert test it comes after the answer and takes nothing from it. Which remedies there are, and which
of them are decided, is derived from rows each time, so a crash anywhere only repeats a step.
"""

from __future__ import annotations

from bisection.adapters.catalogue import Profile
from bisection.adapters.storage.bisections import BisectionRow
from bisection.adapters.storage.trials import Trials
from bisection.approval import used_up
from bisection.commit_record import best_measurement, compared_states
from bisection.commits import State
from bisection.finding import Finding
from bisection.ledger import LedgerEntry, Purpose, Trial
from bisection.remedy_proofs import wanted_proofs
from bisection.report_parts import RemedyRow
from bisection.specification import BisectionSpec
from workers.context import WorkerContext
from workers.evidence import gather_evidence


def prove(context: WorkerContext, row: BisectionRow) -> bool:
    """Queue the proofs that are still wanted; True if none is, now or ever."""
    rows = context.trials.of(row.id)
    if row.cancel_requested:
        context.trials.cancel_all(row.id)
        return True
    if Trials.pending(rows):
        return False
    spec = row.specification
    assert spec is not None  # a finding of commits has a range
    assert row.finding is not None
    finding, ledger = Finding.from_json(row.finding), Trials.ledger(rows)
    state = _state(spec, ledger, finding)
    if state is None:
        return True
    wanted = wanted_proofs(gather_evidence(context, row, spec, finding).remedies, row.prove, ledger)
    if not wanted:
        return True
    profile = Profile.model_validate(row.profile)
    used = used_up(profile.limits.gpu_hours_without_approval, spec, ledger)
    if used is not None and row.approval is None:
        text = f"{len(wanted)} remedies were not tried: it has used {used:.2f} GPU hours without approval."
        context.bisections.note(row.id, "proofs_not_run", {"text": text})
        return True
    asked = [known.trial for known in rows]
    added = [_trial(remedy, state, asked) for remedy in wanted]
    if context.trials.apply(row.id, row.version, queue=profile.queue, add=added):
        for _ in added:
            context.hints.work(profile.queue)
    return False


def _state(spec: BisectionSpec, ledger: tuple[LedgerEntry, ...], finding: Finding) -> State | None:
    """Where the remedies' configuration was measured: the side of the comparison that is bad."""
    sides = compared_states(spec, ledger, finding)
    if sides is None:
        return None
    measured = best_measurement(ledger, sides[1])
    return measured.state if measured is not None else min(sides[1])


def _trial(remedy: RemedyRow, state: State, asked: list[Trial]) -> Trial:
    changes = dict(remedy.change)
    earlier = [trial for trial in asked if trial.state == state and dict(trial.overrides) == changes]
    return Trial(
        state=state,
        attempt=1 + max((trial.attempt for trial in earlier), default=0),
        purpose=Purpose.PROOF,
        why=f"{remedy.title}: does {state.commit[:10]} pass with it?",
        overrides=changes,
    )
