"""Takes over what other bisections have measured of the states that this one asks about.

The rules are `bisection.reuse`'s. A crash anywhere is harmless: all of a decision is written at once,
conditional on what was read, and each measurement at most once a bisection.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import Enum, auto

from bisection.adapters.catalogue import Profile
from bisection.adapters.storage.bisections import BisectionRow
from bisection.adapters.storage.measurements import Measured, Measurements, TakenOver
from bisection.ancestry import Ancestor
from bisection.commits import State
from bisection.ledger import Purpose, Trial
from bisection.reuse import MOST_PER_STATE, ContentKeys, Job, counts_here, is_own, oldest_allowed
from bisection.search import Search
from bisection.specification import BisectionSpec
from workers.context import WorkerContext


class Standing(Enum):
    """What taking over came to."""

    NOTHING = auto()  #: nothing else was measured of these states
    AWAITED = auto()  #: something was, and counts once a trial of this bisection's own has ended
    CHANGED = auto()  #: the ledger has changed: look again


def content_keys(row: BisectionRow, spec: BisectionSpec) -> ContentKeys:
    """The keys under which the trials of this bisection are found by others, and find others."""
    profile = Profile.model_validate(row.profile)
    job = Job(
        repository=profile.repository,
        profile_digest=profile.digest,
        relevant_paths=spec.relevant_paths,
        overrides=row.request.get("overrides") or {},
    )
    return ContentKeys(spec, job)


def take_over(
    context: WorkerContext,
    row: BisectionRow,
    search: Search,
    asked: Sequence[Trial],
    keys: ContentKeys,
) -> Standing:
    """All at once for the states of the level that is searched now, unless the request refuses it.

    ``asked`` are all trials of this bisection, cancelled ones too: no two may have one attempt of a state.
    """
    data = Profile.model_validate(row.profile).data
    # Of data that lie outside the tree and have no digest, nobody can say that they are the same.
    if row.request.get("reuse") is False or (data.path is not None and data.digest is None):
        return Standing.NOTHING
    states = {keys.key(state): state for state in map(search.line.state, range(len(search.line)))}
    store = Measurements(context.database)
    found = store.of_others(row.id, list(states), since=oldest_allowed(datetime.now(UTC)))
    lineage = _lineage(context, row)
    found = [one for one in found if one.bisection_id not in lineage]
    if not found:
        return Standing.NOTHING
    own = [
        entry.measurement
        for entry in search.ledger
        if not entry.trial.taken_from and is_own(entry.measurement)
    ]
    if not own:
        return Standing.AWAITED
    counting = [
        one
        for one in found
        if counts_here(search.spec.criterion, one.measurement, states[one.key], own, keys)
    ]
    entries = _entries(counting, states, asked)
    if not entries:
        return Standing.NOTHING
    store.take_over(row.id, row.version, entries)
    return Standing.CHANGED


def _lineage(context: WorkerContext, row: BisectionRow) -> set[str]:
    """The bisections that this one was made of: what it left behind of theirs must not come back here."""
    ids: set[str] = set()
    ancestor = Ancestor.of(row.request)
    while ancestor is not None and ancestor.bisection not in ids:
        ids.add(ancestor.bisection)
        try:
            ancestor = Ancestor.of(context.bisections.get(ancestor.bisection).request)
        except KeyError:  # deleted
            break
    return ids


def _entries(found: Sequence[Measured], states: dict[str, State], asked: Sequence[Trial]) -> list[TakenOver]:
    """The newest few of each state, the oldest of these first; ``found`` is newest first."""
    taken = Counter(trial.state for trial in asked if trial.taken_from)
    attempts: dict[State, int] = {}
    for trial in asked:
        attempts[trial.state] = max(trial.attempt, attempts.get(trial.state, 0))
    chosen = []
    for one in found:
        state = states[one.key]
        if taken[state] < MOST_PER_STATE:
            taken[state] += 1
            chosen.append(one)
    entries = []
    for one in reversed(chosen):
        state = states[one.key]
        attempts[state] = attempts.get(state, 0) + 1
        entries.append(TakenOver(source=one, trial=_trial(one, state, attempts[state])))
    return entries


def _trial(source: Measured, state: State, attempt: int) -> Trial:
    day = source.ended_at[:16].replace("T", " ")
    return Trial(
        state=state,
        attempt=attempt,
        purpose=Purpose.SEARCH,
        why=f"Bisection {source.bisection_id} measured the same files in the same job and environment on "
        f"the same hardware ({day} UTC, its trial {source.ordinal + 1}): it is taken over and costs no run.",
        taken_from=f"{source.bisection_id}/{source.ordinal + 1}",
    )
