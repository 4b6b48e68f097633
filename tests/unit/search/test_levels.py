"""Levels: lines of states below the first one, and a search that runs on the last of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bisection.commits import Commit, CommitRange, State
from bisection.finding import Finding, FindingKind
from bisection.ledger import LedgerEntry
from bisection.levels import Level, LevelKind, canonical, made_step, relevant_below
from bisection.measurement import Measurement, Outcome
from bisection.search import Search
from bisection.specification import BisectionSpec
from tests.unit.search.drawn_lines import DrawnLine, drive, hash_of, worker_for

PIN = "vendor/library"


def inner_level(outer: DrawnLine, inner: int, found: Finding) -> Level:
    """Commits of a library that the outer culprit pins; the ends are the outer corners."""
    assert found.parent is not None
    commits = tuple(Commit(hash=hash_of(1000 + n), tree_key=f"inner-{n}") for n in range(inner))
    culprit = State(commit=found.commits[0])
    between = tuple(replace(culprit, pins=((PIN, commit.hash),)) for commit in commits[1:-1])
    return Level(
        kind=LevelKind.PIN,
        range=CommitRange(commits=commits),
        states=(State(commit=found.parent), *between, culprit),
        path=PIN,
        repository="library",
        opened_by=found,
    )


def test_a_search_goes_on_inside_what_it_found_and_its_ends_cost_nothing() -> None:
    line = DrawnLine(drawing="....X...")
    spec = line.specification(parallel=2, workers=2)
    found, ledger = drive(line, spec)
    assert found.kind is FindingKind.FOUND
    outer_trials = len(ledger)
    deeper = spec.with_level(inner_level(line, 20, found))
    search = Search.replay(deeper, ledger)
    while not isinstance(decision := search.next(1, ()), Finding):
        for trial in decision:
            at = dict(trial.state.pins).get(PIN)
            assert at is not None, f"an end was measured again: {trial.why}"
            bad = int(at, 16) >= 1007
            measurement = Measurement(
                outcome=Outcome.CRASHED if bad else Outcome.COMPLETED,
                signature="ValueError in experts" if bad else "",
                state=trial.state,
                worker=worker_for(trial, 2),
            )
            entry = LedgerEntry(sequence=len(search.ledger), trial=trial, measurement=measurement)
            search.record(entry)
    assert decision.commits == (hash_of(1007),)
    assert decision.parent == hash_of(1006)
    assert len(search.ledger) - outer_trials <= 16
    # Seen from level 0 nothing has changed.
    assert Search.replay(deeper, search.ledger, level=0).next(1, ()) == found


def test_trials_of_the_level_above_are_cancelled() -> None:
    line = DrawnLine(drawing="....X...")
    spec = line.specification(parallel=2, workers=2)
    found, ledger = drive(line, spec)
    search = Search.replay(spec.with_level(inner_level(line, 20, found)), ledger)
    left = replace(ledger[-1].trial, state=State(commit=hash_of(7)), attempt=9)
    assert search.cancellable([left]) == (left,)


def test_a_specification_with_levels_survives_storage_and_one_of_before_them_is_read() -> None:
    line = DrawnLine(drawing="....X...")
    found = Finding(kind=FindingKind.FOUND, commits=(hash_of(4),), parent=hash_of(3), confidence=0.99)
    spec = line.specification().with_level(inner_level(line, 5, found))
    assert BisectionSpec.from_json(spec.to_json()) == spec
    row = line.specification().to_json()
    del row["first"], row["opened"]
    assert BisectionSpec.from_json(row) == line.specification()


def test_the_ground_is_the_last_level_of_the_repositorys_own_commits() -> None:
    line = DrawnLine(drawing="....X...")
    spec = line.specification()
    assert spec.ground == 0
    wider = replace(Level.plain(line.commits()), kind=LevelKind.WIDENED)
    found = Finding(kind=FindingKind.FOUND, commits=(hash_of(4),), parent=hash_of(3))
    assert spec.with_level(wider).with_level(inner_level(line, 5, found)).ground == 1


def test_a_line_through_a_merge_base_speaks_of_the_commit_that_was_lost() -> None:
    #  x2 -> x1 -> base -> y1 -> y2      on the way back to the base each step takes a commit away
    commits = tuple(Commit(hash=hash_of(n), subject=str(n)) for n in (12, 11, 10, 21, 22))
    level = replace(Level.plain(CommitRange(commits=commits)), turn=2)
    assert [level.takes_away(commit.hash) for commit in commits] == [False, True, True, False, False]
    assert level.accused(hash_of(10)).hash == hash_of(11)
    assert level.accused(hash_of(21)).hash == hash_of(21)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ({"pins": {"a": "1" * 40}}, {"pins": {}}),
        ({"pins": {"a": "2" * 40}}, {"pins": {"a": "2" * 40}}),
        ({"pins": {"other": "2" * 40}}, {"pins": {"other": "2" * 40}}),
        ({"packages": {"torch": "2.6.0", "numpy": "2.0"}}, {"packages": {"numpy": "2.0"}}),
    ],
)
def test_an_override_that_changes_nothing_is_no_part_of_a_state(
    state: dict[str, dict[str, str]], expected: dict[str, dict[str, str]]
) -> None:
    given = State.from_json({"commit": "c" * 40, **state})
    own_pins, own_packages = {"a": "1" * 40}, {"torch": "2.6.0", "numpy": "1.26"}
    assert canonical(given, own_pins, own_packages) == State.from_json({"commit": "c" * 40, **expected})


def test_steps_of_our_own_have_a_hash_that_follows_from_their_state() -> None:
    first, again = (made_step(State(commit="c" * 40, packages=(("torch", v),)), "x") for v in ("1", "1"))
    other = made_step(State(commit="c" * 40, packages=(("torch", "2"),)), "x")
    assert first.hash == again.hash != other.hash


def test_relevant_paths_are_seen_from_inside_a_pin() -> None:
    paths = ("src", "3rdparty/lm/core", "3rdparty/lm2/x")
    assert relevant_below(paths, "3rdparty/lm") == ("core",)
    assert relevant_below(paths, "") == paths
    for whole in ("3rdparty", "3rdparty/lm/", "3rdparty/lm"):
        assert relevant_below((*paths, whole), "3rdparty/lm") == ()
    assert relevant_below(("src",), "3rdparty/lm") == ()
