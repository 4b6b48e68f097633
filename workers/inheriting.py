"""Begins a bisection that was made of another one with what that one measured; no trial is run for it.

What is kept is `bisection.ancestry`'s matter. States are matched by content, as where measurements of
unrelated bisections are taken over: an extended range may call one state by another of its commits. Other
than there, no trial of the bisection's own has to come first: it is the same job on the same machines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from bisection.adapters.storage.bisections import BisectionRow
from bisection.adapters.storage.measurements import Measurements, TakenOver
from bisection.ancestry import EVIDENCE, Ancestor, Derivation, is_kept
from bisection.commits import State
from bisection.criteria import Criterion
from bisection.forecast import forecast
from bisection.ledger import Purpose, Trial
from bisection.replaying import replay_specification
from bisection.reuse import ContentKeys
from bisection.search import Search
from bisection.specification import BisectionSpec, Budget
from workers.context import WorkerContext
from workers.resolution import Resolved
from workers.taking_over import content_keys


def replayed(
    context: WorkerContext, request: Mapping[str, Any], past_seconds: float | None
) -> Resolved | None:
    """The specification of a replay: its ancestor's range under another criterion; git is not asked.

    None for every other bisection. What the ancestor opened is left out: another answer opens something else.
    """
    ancestor = Ancestor.of(request)
    if ancestor is None or ancestor.derivation is not Derivation.REPLAY:
        return None
    known = context.bisections.get(ancestor.bisection).specification
    assert known is not None  # only what has a range can be replayed
    criterion = Criterion.from_json(request["criterion"])
    spec = replace(
        replay_specification(known, criterion, request["confidence"]), budget=Budget(**request["budget"])
    )
    return Resolved(spec=spec, plan=forecast(spec, past_seconds).to_json())


def inherit(
    context: WorkerContext, row: BisectionRow, search: Search, asked: Sequence[Trial], keys: ContentKeys
) -> bool:
    """Whether the ledger has changed, or had changed already: look again.

    Takes all at once that the ancestor measured of the states of the level that is searched now.
    """
    line = map(search.line.state, range(len(search.line)))
    states = {keys.key(state): state for state in line}
    found = [
        (taken, states[key], taken.trial.purpose)
        for taken, key in _heritage(context, row, search.spec)
        if key in states and taken.trial.purpose in EVIDENCE
    ]
    return _take(context, row, found, asked)


def inherit_revert(context: WorkerContext, row: BisectionRow, trial: Trial, asked: Sequence[Trial]) -> bool:
    """The same for the revert test's state, which no line holds."""
    spec = row.specification
    assert spec is not None  # only a resolved bisection has a culprit to take back
    wanted = content_keys(row, spec).key(trial.state)
    found = [
        (taken, trial.state, Purpose.REVERT)
        for taken, key in _heritage(context, row, spec)
        if key == wanted and taken.trial.purpose is Purpose.REVERT
    ]
    return _take(context, row, found, asked)


def _heritage(context: WorkerContext, row: BisectionRow, spec: BisectionSpec) -> list[tuple[TakenOver, str]]:
    """What is kept of the ancestor's ledger and not taken yet, each with its content key."""
    ancestor = Ancestor.of(row.request)
    if ancestor is None:
        return []
    try:
        parent = context.bisections.get(ancestor.bisection)
    except KeyError:  # deleted meanwhile: what it measured is measured anew
        return []
    if parent.specification is None:
        return []
    entries = Measurements(context.database).of_ancestor(parent.id, row.id)
    keys = content_keys(parent, parent.specification)
    return [
        (entry, keys.key(entry.trial.state))
        for entry in entries
        if is_kept(ancestor.derivation, spec.criterion, entry.source.measurement)
    ]


def _take(
    context: WorkerContext,
    row: BisectionRow,
    found: Sequence[tuple[TakenOver, State, Purpose]],
    asked: Sequence[Trial],
) -> bool:
    if not found:
        return False
    attempts: dict[State, int] = {}
    for trial in asked:
        attempts[trial.state] = max(trial.attempt, attempts.get(trial.state, 0))
    entries = []
    for taken, state, purpose in found:
        attempts[state] = attempts.get(state, 0) + 1
        entries.append(_entry(taken, state, attempts[state], purpose))
    Measurements(context.database).take_over(row.id, row.version, entries)
    return True


def _entry(taken: TakenOver, state: State, attempt: int, purpose: Purpose) -> TakenOver:
    source = taken.source
    here = f"{source.bisection_id}/{source.ordinal + 1}"
    trial = replace(
        taken.trial,
        state=state,
        attempt=attempt,
        purpose=purpose,
        why=f"Taken over from bisection {source.bisection_id}, its trial {source.ordinal + 1}; costs no run.",
        avoid_workers=(),
        taken_from=here,
    )
    return TakenOver(source=source, trial=trial)
