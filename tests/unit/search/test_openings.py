"""What is opened below a culprit, and the lines of mixed states that tell its parts apart."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest

from bisection.commits import Commit, CommitRange, State
from bisection.descent import whole_answer
from bisection.finding import Finding, FindingKind
from bisection.levels import Level, LevelKind, canonical
from bisection.openings import (
    Change,
    Factor,
    FactorKind,
    Opening,
    OpeningKind,
    PackageMove,
    factor_level,
    is_joint,
    opening,
    package_level,
    version_level,
    wants_reversal,
)
from bisection.specification import BisectionSpec
from tests.unit.search.drawn_lines import DrawnLine, hash_of

A, B = hash_of(1), hash_of(2)
X, Y = "1" * 40, "2" * 40
PIN, LOCK = "3rdparty/lm", "uv.lock"
MOVES = (
    PackageMove(name="apex", before="1", after="2"),
    PackageMove(name="numpy", before="", after="3"),
    PackageMove(name="torch", before="2.6", after="2.7"),
)
PIN_MOVES = Factor(kind=FactorKind.PIN, path=PIN, before=X, after=Y)
LOCK_MOVES = Factor(kind=FactorKind.LOCK, path=LOCK, before=A, after=B, packages=MOVES)
SOURCE_MOVES = Factor(kind=FactorKind.SOURCE, path="", before=A, after=B)
FOUND = Finding(kind=FindingKind.FOUND, commits=(B,), parent=A, confidence=0.995, why="it failed")


def tidy(state: State) -> State:
    """As git and the locks say: A pins X and locks the old packages, B the new ones."""
    old = state.commit == A
    return canonical(
        state,
        {PIN: X if old else Y},
        {move.name: move.before if old else move.after for move in MOVES},
    )


def change_of(*factors: Factor, **more: object) -> Change:
    before, after = Commit(hash=A), Commit(hash=B, parents=(A,))
    base = Change(
        good=State(commit=A), bad=State(commit=B), path="", before=before, after=after, factors=factors
    )
    return replace(base, **more)  # type: ignore[arg-type]


def moved(state: State) -> tuple[bool, bool, bool]:
    """Whether lock, pin and source of a state are the new ones."""
    new = state.commit == B
    pins, packages = dict(state.pins), dict(state.packages)
    assert len({*packages} & {move.name for move in MOVES}) in (0, len(MOVES)), "the lock is moved in part"
    return (not new if packages else new, not new if pins else new, new)


@pytest.mark.parametrize("factors", list(permutations([PIN_MOVES, SOURCE_MOVES, LOCK_MOVES])))
def test_factors_are_switched_one_by_one_from_the_good_corner_to_the_bad_one(
    factors: tuple[Factor, ...],
) -> None:
    level = factor_level(change_of(*factors), FOUND, tidy)
    assert level.states[0] == State(commit=A)
    assert level.states[-1] == State(commit=B)
    assert [moved(state) for state in level.states] == [
        (False, False, False), (True, False, False), (True, True, False), (True, True, True),
    ]  # fmt: skip
    back = factor_level(change_of(*factors), FOUND, tidy, source_first=True)
    assert [moved(state) for state in back.states] == [
        (False, False, False), (False, False, True), (False, True, True), (True, True, True),
    ]  # fmt: skip
    assert level.title == "what 0000000000 moves (uv.lock, 3rdparty/lm, the source)"


def test_packages_are_switched_cumulatively_and_end_at_the_measured_states() -> None:
    level = package_level(change_of(LOCK_MOVES), LOCK_MOVES, FOUND, tidy)
    assert [dict(state.packages) for state in level.states] == [
        {},
        {"numpy": "", "torch": "2.6"},
        {"torch": "2.6"},
        {},
    ]
    assert [state.commit for state in level.states] == [A, B, B, B]
    assert [step.subject for step in level.range.commits[1:]] == [
        "apex 1 -> 2", "numpy not there -> 3", "torch 2.6 -> 2.7",
    ]  # fmt: skip


def test_versions_between_are_steps_of_their_own() -> None:
    torch = replace(LOCK_MOVES, packages=MOVES[2:])
    level = version_level(change_of(torch, versions=("2.6.1", "2.6.2")), torch, FOUND, tidy)
    assert [dict(state.packages).get("torch") for state in level.states] == [None, "2.6.1", "2.6.2", None]
    assert [step.subject for step in level.range.commits] == [
        "torch 2.6", "torch 2.6 -> 2.6.1", "torch 2.6.1 -> 2.6.2", "torch 2.6.2 -> 2.7",
    ]  # fmt: skip


def plain_level() -> Level:
    return Level.plain(CommitRange(commits=(Commit(hash=A), Commit(hash=B, parents=(A,)))))


@pytest.mark.parametrize(
    ("factors", "more", "expected"),
    [
        ((PIN_MOVES, SOURCE_MOVES), {}, Opening(kind=OpeningKind.FACTORS)),
        ((PIN_MOVES,), {}, Opening(kind=OpeningKind.PIN, factor=PIN_MOVES)),
        ((LOCK_MOVES,), {}, Opening(kind=OpeningKind.PACKAGES, factor=LOCK_MOVES)),
        ((SOURCE_MOVES,), {}, None),
        ((), {}, None),
        ((replace(LOCK_MOVES, packages=MOVES[2:]),), {}, None),
        (
            (replace(LOCK_MOVES, packages=MOVES[2:]),),
            {"versions": ("2.6.1",)},
            Opening(kind=OpeningKind.VERSIONS, factor=replace(LOCK_MOVES, packages=MOVES[2:])),
        ),
        (
            (PIN_MOVES, SOURCE_MOVES),
            {"after": Commit(hash=B, parents=(A, hash_of(9)))},
            Opening(kind=OpeningKind.MERGE),
        ),
    ],
)
def test_what_a_commit_moves_decides_what_is_opened(
    factors: tuple[Factor, ...], more: dict[str, object], expected: Opening | None
) -> None:
    assert opening([plain_level()], FOUND, change_of(*factors, **more)) == expected


def test_a_merge_both_of_whose_parents_pass_is_not_opened_again() -> None:
    merge = Commit(hash=B, parents=(A, hash_of(9)))
    line = CommitRange(commits=(Commit(hash=A), Commit(hash=hash_of(9)), merge))
    level = replace(Level.plain(line), kind=LevelKind.MERGE, opened_by=FOUND)
    assert opening([plain_level(), level], FOUND, change_of(SOURCE_MOVES, after=merge)) is None
    answer = whole_answer(spec_with(level), FOUND)
    assert "Both parents of the merge pass" in answer.descent[0].why


def spec_with(*opened: Level) -> BisectionSpec:
    return replace(DrawnLine(drawing="..X").specification(), opened=opened)


def untestable(*commits: str) -> Finding:
    return Finding(
        kind=FindingKind.SET, commits=commits, confidence=0.99, why="", problem="untestable-stretch"
    )


def test_mixed_states_that_cannot_be_tested_are_tried_in_the_other_order_once() -> None:
    level = factor_level(change_of(PIN_MOVES, SOURCE_MOVES), FOUND, tidy)
    steps = tuple(commit.hash for commit in level.range.suspects)
    levels = [plain_level(), level]
    assert wants_reversal(levels, untestable(*steps))
    assert not wants_reversal(levels, untestable(steps[0]))
    assert not wants_reversal(levels, replace(untestable(*steps), problem="budget-spent"))
    back = factor_level(change_of(PIN_MOVES, SOURCE_MOVES), untestable(*steps), tidy, source_first=True)
    assert not wants_reversal([*levels, back], untestable(*steps))
    assert is_joint([*levels, back], untestable(*steps))
    last = untestable(*(commit.hash for commit in back.range.suspects))
    answer = whole_answer(spec_with(level, back), last)
    assert (answer.kind, answer.commits) == (FindingKind.FOUND, FOUND.commits)
    assert [(below.kind, below.joint, below.problem) for below in answer.descent] == [
        (FindingKind.SET, False, "untestable-stretch"), (FindingKind.SET, True, "joint-change"),
    ]  # fmt: skip


def test_a_culprit_stands_when_the_level_below_ends_without_a_name() -> None:
    level = package_level(change_of(LOCK_MOVES), LOCK_MOVES, FOUND, tidy)
    spent = Finding(
        kind=FindingKind.SET,
        commits=tuple(commit.hash for commit in level.range.suspects),
        confidence=0.9,
        why="The budget of 7 trials is spent.",
        problem="budget-spent",
    )
    answer = whole_answer(spec_with(level), spent)
    assert (answer.kind, answer.commits, answer.problem) == (FindingKind.FOUND, (B,), "")
    assert answer.descent[0].why.startswith("The descent came no further than this.")
    assert answer.descent[0].names == ("apex 1 -> 2", "numpy not there -> 3", "torch 2.6 -> 2.7")
    assert Finding.from_json(answer.to_json()) == answer


def test_a_guilty_factor_tells_what_was_switched_before_it() -> None:
    level = factor_level(change_of(LOCK_MOVES, PIN_MOVES, SOURCE_MOVES), FOUND, tidy)
    lock, pin, _ = level.range.suspects
    guilty = replace(FOUND, commits=(pin.hash,), parent=lock.hash)
    below = whole_answer(spec_with(replace(level, opened_by=FOUND)), guilty).descent[0]
    assert below.names == (f"3rdparty/lm moved to {Y[:10]}",)
    assert below.why.endswith("Switched before it, without harm so far: uv.lock as at 0000000000.")
    first = replace(FOUND, commits=(lock.hash,), parent=level.range.good.hash)
    assert "Switched before" not in whole_answer(spec_with(level), first).descent[0].why


def test_of_a_lost_fix_the_fix_is_named() -> None:
    #  x1 (the fix) -> base -> y1
    line = CommitRange(commits=tuple(Commit(hash=hash_of(n), subject=f"s{n}") for n in (5, 4, 6)))
    level = replace(Level.plain(line), kind=LevelKind.PIN, path=PIN, turn=1, opened_by=FOUND)
    lost = Finding(kind=FindingKind.FOUND, commits=(hash_of(4),), parent=hash_of(5), confidence=0.99)
    below = whole_answer(spec_with(level), lost).descent[0]
    assert (below.lost, below.commits) == (True, (hash_of(5),))
    assert below.names == (f"{hash_of(5)[:10]} s5",)
    assert below.why.startswith("A fix was lost")
