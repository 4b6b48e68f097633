"""What is told of a search on its way: the belief after each trial, and what each trial changed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from bisection.belief_history import MOST_COLUMNS, belief_histories
from bisection.commits import Commit, CommitRange, State
from bisection.credible import credible_groups
from bisection.finding import Finding, FindingKind
from bisection.ledger import LedgerEntry, Purpose, Trial
from bisection.levels import Level, LevelKind
from bisection.measurement import Measurement, Outcome
from bisection.rendering.belief_scale import spans
from bisection.report_parts import BeliefHistory
from bisection.search import Search
from tests.unit.search.drawn_lines import DrawnLine, drive, hash_of


def told(drawing: str, positions: Sequence[int], **changed: Outcome) -> tuple[BeliefHistory, list[str]]:
    """History and effects of trials at these positions; ``t3=LOST`` changes the outcome of the fourth."""
    line = DrawnLine(drawing=drawing)
    search = Search(line.specification())
    attempts: dict[int, int] = {}
    for number, position in enumerate(positions):
        attempts[position] = attempts.get(position, 0) + 1
        trial = Trial(state=search.line.state(position), attempt=attempts[position], purpose=Purpose.SEARCH)
        measured: Measurement = line.run(trial, f"worker-{number}")
        if f"t{number}" in changed:
            outcome = changed[f"t{number}"]
            measured = measured.evolve(
                outcome=outcome, signature="ValueError in experts" if outcome is Outcome.CRASHED else ""
            )
        search.record(LedgerEntry(sequence=number, trial=trial, measurement=measured))
    histories, effects = belief_histories(search.spec, search.ledger, {hash_of(drawing.find("X"))})
    return histories[0], [effects[number] for number in range(len(positions))]


def test_a_plain_search_is_told_step_by_step() -> None:
    #                  0         1
    history, effects = told("...........X....", [15, 0, 7, 11, 10, 11, 10])
    assert effects[0].startswith("The first failure with ValueError in experts: this is what is looked for.")
    assert re.search(r"It (halved|narrowed) the suspects from 1[45] to \d+\.", effects[2])
    assert effects[5].startswith(f"Confirmed: {hash_of(11)[:10]} failed in 2 trials and never otherwise.")
    assert effects[6].startswith(f"Confirmed: {hash_of(10)[:10]} passed in 2 trials and never otherwise.")
    assert history.named == (11,)
    assert [row.position for row in history.rows] == [15, 0, 7, 11, 10, 11, 10]
    assert history.rows[-1].suspects < history.rows[2].suspects < history.start.suspects


def test_a_failure_before_the_bad_ends_is_told_as_not_yet_the_one() -> None:
    _, effects = told("..X..", [0, 3, 4])
    assert effects[0] == "Nothing has failed yet."
    assert "whether it is the one looked for, the bad end must tell" in effects[1]


def test_a_flake_is_told_as_a_contradiction() -> None:
    _, effects = told("....X...", [7, 0, 5, 5], t3=Outcome.COMPLETED)
    assert f"{hash_of(5)[:10]} passed here, and failed in 1 trial: one or the other is a flake." in effects[3]
    assert "It widened the suspects from" in effects[3]


def test_what_told_nothing_is_told_so() -> None:
    _, effects = told("..s..X..", [7, 2, 3, 3, 3], t2=Outcome.LOST, t3=Outcome.LOST, t4=Outcome.LOST)
    assert effects[1] == "It says nothing of good or bad; another state must."
    assert effects[2] == "It told nothing: its worker was lost."
    assert effects[4] == "It told nothing; lost 3 times in a row, the state counts as untestable."


@pytest.mark.parametrize("suspects", [1, 2, 60, 119, 120, 121, 300, 777])
def test_every_step_has_a_column_and_the_columns_hold_all_belief(suspects: int) -> None:
    history, _ = told("." * suspects + "X", [suspects])
    for row in (history.start, *history.rows):
        assert len(row.mass) == min(suspects, MOST_COLUMNS)
        whole = sum(row.mass) + row.no_culprit + row.good_end_is_bad
        assert whole == pytest.approx(1000, abs=len(row.mass) / 2 + 1)
        covered = [step for span in spans(history, row) for step in range(span.first, span.last + 1)]
        assert covered == sorted(set(covered))
        assert set(covered) <= set(range(suspects + 1))


def test_the_darkest_place_of_a_long_range_is_where_the_culprit_lies() -> None:
    line = DrawnLine(drawing="." * 250 + "X" + "." * 150)
    finding, ledger = drive(line, line.specification())
    assert finding.kind is FindingKind.FOUND
    (history,), _ = belief_histories(line.specification(), ledger, set(finding.commits))
    assert history.rows[-1].suspects == 1
    darkest = max(spans(history, history.rows[-1]), key=lambda span: span.shade)
    assert darkest.first <= 250 <= darkest.last <= darkest.first + 4


def test_each_level_has_its_history_and_a_shared_corner_is_told_once() -> None:
    pinned = DrawnLine(drawing="....X..")
    parent, bump = (Commit(hash=hash_of(900 + n), tree_key=f"bump {n}") for n in range(2))
    states = [State(commit=bump.hash, pins=(("core", hash_of(n)),)) for n in range(6)]
    level = Level(
        kind=LevelKind.PIN,
        range=pinned.commits(),
        states=(*states, State(commit=bump.hash)),
        path="core",
        title="core from 0 to 6",
        opened_by=Finding(kind=FindingKind.FOUND, commits=(bump.hash,), parent=parent.hash),
    )
    outer = replace(pinned.specification(), range=CommitRange(commits=(parent, bump)))
    spec = outer.with_level(level)
    search = Search(spec)
    plan = [State(commit=bump.hash), State(commit=parent.hash), *(states[n] for n in (0, 3, 4))]
    for number, state in enumerate(plan):
        position = level.states.index(state) if state in level.states else 0
        measured = pinned.run(Trial(state=State(commit=hash_of(position)), attempt=1, purpose=Purpose.SEARCH))
        trial = Trial(state=state, attempt=1, purpose=Purpose.SEARCH)
        search.record(LedgerEntry(sequence=number, trial=trial, measurement=measured.evolve(state=state)))
    histories, effects = belief_histories(spec, search.ledger, {hash_of(4)})
    assert [history.title for history in histories] == ["", "core from 0 to 6"]
    assert [[row.sequence for row in history.rows] for history in histories] == [[0, 1], [0, 2, 3, 4]]
    assert [history.named for history in histories] == [(1,), (4,)]
    assert effects[0].startswith("The first failure")
    assert sorted(effects) == [0, 1, 2, 3, 4]


def test_the_credible_suspects_are_the_fewest_that_hold_the_share() -> None:
    belief = np.array([0.3, 0.02, 0.5, 0.1, 0.03, 0.05])
    assert credible_groups(belief) == (2, 3, 4)
    assert credible_groups(belief, 0.7) == (2,)
    assert credible_groups(np.array([0.5, 0.25, 0.25]), 1.0) == (1,)
    assert credible_groups(np.array([0.5, 0.5])) == ()
