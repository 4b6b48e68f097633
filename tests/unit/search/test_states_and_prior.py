"""Which commits are one state, and where a regression is likely to have begun."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bisection.commits import Commit, CommitRange, State
from bisection.levels import Level
from bisection.prior import log_prior
from bisection.states import Line
from tests.unit.search.drawn_lines import hash_of


def line_of(*trees: str) -> Line:
    commits = tuple(Commit(hash=hash_of(i), tree_key=tree) for i, tree in enumerate(trees))
    return Line.through(Level.plain(CommitRange(commits=commits)))


def positions(line: Line) -> list[list[int]]:
    return [[int(commit.hash, 16) for commit in group] for group in line.groups]


@pytest.mark.parametrize(
    ("trees", "groups"),
    [
        ("ABC", [[0], [1], [2]]),
        ("AABBC", [[0, 1], [2, 3], [4]]),
        ("ABAC", [[0, 2], [3]]),  # B was undone
        ("ABCBD", [[0], [1, 3], [4]]),  # C was undone
        ("ABCDBCE", [[0], [1, 4], [5], [6]]),  # C was undone and came again: only then it can count
        ("ABA", [[0, 2]]),
    ],
)
def test_equal_states_are_one_and_detours_are_taken_out(trees: str, groups: list[list[int]]) -> None:
    assert positions(line_of(*trees)) == groups


def test_the_parent_is_the_commit_right_before_and_in_the_state_before() -> None:
    line = line_of(*"AABAC")
    assert line.first_commit(1).hash == hash_of(4)
    assert line.parent(1).hash == hash_of(3)
    assert line.places[State(commit=line.parent(1).hash)] == 0
    assert State(commit=hash_of(2)) not in line.places


def test_without_tree_keys_every_commit_is_its_own_state() -> None:
    assert len(line_of("", "", "")) == 3


def test_an_environment_of_its_own_makes_a_state_of_its_own() -> None:
    commits = tuple(
        Commit(hash=hash_of(i), tree_key="same", environment_key=key) for i, key in enumerate("aab")
    )
    assert positions(Line.through(Level.plain(CommitRange(commits=commits)))) == [[0, 1], [2]]


def prior_of(*changes: dict[str, Any], relevant: tuple[str, ...] = ()) -> np.ndarray:
    """Share of each suspect, given what it changes."""
    good = Commit(hash=hash_of(0), tree_key="0", pins={"core": "1"}, environment_key="e")
    commits = [good]
    for i, change in enumerate(changes, start=1):
        fields = {"pins": {"core": "1"}, "environment_key": "e", **change}
        commits.append(Commit(hash=hash_of(i), tree_key=str(i), **fields))
    prior = np.exp(log_prior(Line.through(Level.plain(CommitRange(commits=tuple(commits)))), relevant))
    assert prior.sum() == pytest.approx(1)
    return np.asarray(prior[1:-1] / prior[1:-1].sum())


def test_a_prior_prefers_model_code_to_other_code_and_both_to_text() -> None:
    model, other, text = prior_of(
        {"paths": ("src/models/moe.py",)}, {"paths": ("src/cli.py",)}, {"paths": ("docs/moe.md",)}
    )
    assert model > other > text
    assert text > 0.05  # a share of the prior is uniform: nothing is ever ruled out


def test_a_moved_pin_is_suspected_most() -> None:
    model, moved = prior_of(
        {"paths": ("src/models/moe.py",)}, {"paths": ("third_party",), "pins": {"core": "2"}}
    )
    assert moved > model


def test_paths_that_the_profile_calls_relevant_decide_what_is_code() -> None:
    docs, code = prior_of({"paths": ("docs/a.md",)}, {"paths": ("src/cli.py",)}, relevant=("docs/",))
    assert docs > code


def test_commits_of_unknown_paths_are_equally_likely() -> None:
    np.testing.assert_allclose(prior_of({}, {}, {}), 1 / 3)
