"""The belief over the range after each trial, and what each trial changed.

Replays the ledger through the search itself, once a level; stores nothing and draws nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from bisection.commits import State
from bisection.credible import credible_groups
from bisection.effects import ASIDE, OFF_THE_LINE, trial_effect
from bisection.ledger import LedgerEntry
from bisection.report_parts import BeliefHistory, BeliefRow
from bisection.search import GOOD_END_IS_BAD, NO_CULPRIT, Search
from bisection.specification import BisectionSpec

#: Steps beyond this share columns: a screen and a comment have no room for more.
MOST_COLUMNS = 120


def belief_histories(
    spec: BisectionSpec, ledger: Sequence[LedgerEntry], accused: Collection[str]
) -> tuple[tuple[BeliefHistory, ...], Mapping[int, str]]:
    """The history of each level, outermost first; and by sequence number what each trial changed.

    A corner that two levels share is in the history of both. What it changed is told of the level
    that was searched when it was tried. Of ranges that were widened only the widest is told.
    ``accused`` are the commits of the answer, by hash.
    """
    searches = [Search(spec, level) for level in range(len(spec.levels))]
    rows: list[list[BeliefRow]] = [[] for _ in searches]
    starts = [_row(search, None, None) for search in searches]
    effects: dict[int, str] = {}
    searched = 0
    for entry in ledger:
        searched = _level_of(entry.trial.state, searches, searched)
        for level, search in enumerate(searches):
            before = search.standing
            search.record(entry)
            if not entry.trial.is_evidence:
                effects[entry.sequence] = ASIDE[entry.trial.purpose]
                continue
            if entry.trial.state not in search.level.states:
                continue
            if level == searched:
                group = search.line.places.get(entry.trial.state)
                effects[entry.sequence] = (
                    OFF_THE_LINE if group is None else trial_effect(before, search.standing, group)
                )
            position = search.level.states.index(entry.trial.state)
            rows[level].append(_row(search, entry.sequence, position))
    histories = tuple(
        BeliefHistory(
            level=level,
            title=search.level.title,
            first=search.level.name(search.level.range.good),
            last=search.level.name(search.level.range.bad),
            steps=len(search.level.range.commits),
            named=_named(spec, level, accused),
            start=starts[level],
            rows=tuple(rows[level]),
        )
        for level, search in enumerate(searches)
        if level == spec.ground or not search.level.is_ground
    )
    return histories, effects


def _named(spec: BisectionSpec, level: int, accused: Collection[str]) -> tuple[int, ...]:
    """Positions of the steps that this level's search named: what was opened, or the answer."""
    below = spec.levels[level + 1].opened_by if level + 1 < len(spec.levels) else None
    hashes = below.commits if below else accused
    return tuple(
        position for position, step in enumerate(spec.levels[level].range.commits) if step.hash in hashes
    )


def _level_of(state: State, searches: Sequence[Search], searched: int) -> int:
    """Which level was searched when this state was tried; levels are only ever opened, never left."""
    holding = [level for level, search in enumerate(searches) if state in search.level.states]
    deeper = [level for level in holding if level >= searched]
    return min(deeper) if deeper else searched


def _row(search: Search, sequence: int | None, position: int | None) -> BeliefRow:
    probabilities = search.probabilities()
    steps = search.level.range.suspects
    columns = min(len(steps), MOST_COLUMNS)
    mass = [0.0] * columns
    for index, step in enumerate(steps):
        mass[index * columns // len(steps)] += probabilities[step.hash]
    return BeliefRow(
        sequence=sequence,
        position=position,
        mass=tuple(round(1000 * share) for share in mass),
        no_culprit=round(1000 * probabilities[NO_CULPRIT]),
        good_end_is_bad=round(1000 * probabilities[GOOD_END_IS_BAD]),
        suspects=len(credible_groups(search.standing.posterior.belief)),
    )
