"""What is told beside a culprit: further steps, found where that is worth it, falls, and other failures."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bisection.commits import State
from bisection.criteria import CriterionKind
from bisection.finding import Finding, FindingKind, OtherStep
from bisection.ledger import LedgerEntry, Purpose, Trial
from bisection.search import Search
from bisection.specification import Budget
from memory_models.breakdown import GIB
from tests.unit.search.drawn_lines import DrawnLine, drive, hash_of
from tests.unit.search.drawn_values import TOKENS, DrawnValues, climb, hashes, steps_at


def measured(line: DrawnLine, *positions: int) -> list[LedgerEntry]:
    """A ledger of one trial at each of these places, in this order."""
    ledger: list[LedgerEntry] = []
    for position in positions:
        state = State(commit=hash_of(position))
        attempt = 1 + sum(entry.trial.state == state for entry in ledger)
        trial = Trial(state=state, attempt=attempt, purpose=Purpose.SEARCH)
        ledger.append(LedgerEntry(sequence=len(ledger), trial=trial, measurement=line.run(trial)))
    return ledger


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("second", [30, 45, 60])
def test_a_large_second_step_is_found_and_confirmed(second: int, workers: int) -> None:
    line = DrawnValues(steps_at(61, (20, 6), (second, 6)), 65, noise=0.02)
    finding, ledger = drive(line, line.specification(parallel=workers, workers=workers))
    assert finding.commits == (hash_of(20),)
    (other,) = finding.others
    assert (other.commits, other.parent) == ((hash_of(second),), hash_of(second - 1))
    assert other.confirmed
    assert other.worse
    assert other.delta == pytest.approx(6 * GIB, rel=0.02)
    assert "confirmed as the culprit is" in finding.why
    for position in (second, second - 1):
        assert sum(entry.trial.state.commit == hash_of(position) for entry in ledger) >= 2


def test_a_step_before_the_culprit_is_found_too() -> None:
    line = DrawnValues(steps_at(61, (20, 6), (45, 6)), 69, noise=0.02)
    finding, _ = drive(line, line.specification(), ledger=measured(line, 60, 0))
    assert finding.commits == (hash_of(45),)
    assert [other.commits for other in finding.others if other.confirmed] == [(hash_of(20),)]


def test_of_a_throughput_the_change_is_told_in_its_unit() -> None:
    line = DrawnValues(
        steps_at(61, (20, -6), (45, -6), base=80), 77, kind=CriterionKind.THROUGHPUT, noise=0.02
    )
    finding, _ = drive(line, line.specification())
    assert finding.commits == (hash_of(20),)
    (other,) = finding.others
    assert other.commits == (hash_of(45),)
    assert other.delta is not None
    assert other.delta == pytest.approx(-6 * TOKENS, rel=0.02)
    assert f"The throughput also falls by {-other.delta:,.1f} useful tokens a second" in finding.why


def test_trials_for_a_further_step_say_so() -> None:
    line = DrawnValues(steps_at(61, (20, 6), (45, 6)), 65)
    _, ledger = drive(line, line.specification())
    assert any(
        entry.trial.why.startswith("Beside the culprit's step the peak gets worse by") for entry in ledger
    )


def test_a_small_further_step_is_told_and_not_looked_for() -> None:
    line = DrawnValues(steps_at(61, (20, 8), (45, 2)), 65, noise=0.02)
    alone = DrawnValues(steps_at(61, (20, 8)), 65, noise=0.02)
    finding, ledger = drive(line, line.specification())
    _, without = drive(alone, alone.specification())
    (other,) = finding.others
    assert not other.confirmed
    assert hash_of(45) in other.commits
    assert other.delta == pytest.approx(2 * GIB, rel=0.05)
    assert len(ledger) == len(without)


def test_without_the_trials_to_find_it_a_large_step_is_only_told() -> None:
    line = DrawnValues(steps_at(61, (20, 6), (45, 6)), 65)
    _, free = drive(line, line.specification())
    first = next(n for n, entry in enumerate(free) if entry.trial.why.startswith("Beside"))
    finding, ledger = drive(line, line.specification(budget=Budget(trials=first + 1)))
    assert finding.commits == (hash_of(20),)
    assert len(ledger) == first
    (other,) = finding.others
    assert (other.confirmed, hash_of(45) in other.commits) == (False, True)
    assert "was not looked into further" in finding.why


def test_an_answer_asked_for_in_the_middle_has_what_is_known_of_the_second_step() -> None:
    line = DrawnValues(steps_at(61, (20, 6), (45, 6)), 65)
    _, ledger = drive(line, line.specification())
    first = next(n for n, entry in enumerate(ledger) if entry.trial.why.startswith("Beside"))
    search = Search.replay(line.specification(), ledger[: first + 1])
    finding = search.answer_now("It was cancelled.", "cancelled")
    assert finding.kind is FindingKind.FOUND
    (other,) = finding.others
    assert (other.confirmed, hash_of(45) in other.commits) == (False, True)


def test_above_a_capacity_no_step_is_looked_for() -> None:
    line = DrawnValues(steps_at(41, (10, 10), (25, 10)), 65, kind=CriterionKind.OUT_OF_MEMORY)
    finding, ledger = drive(line, line.specification())
    assert finding.commits == (hash_of(10),)
    assert not any(entry.trial.why.startswith("Beside") for entry in ledger)


def test_below_a_capacity_a_step_is_found() -> None:
    line = DrawnValues(steps_at(41, (10, 4), (25, 4)), 65, kind=CriterionKind.OUT_OF_MEMORY, noise=0.01)
    finding, _ = drive(line, line.specification(), ledger=measured(line, 40, 0))
    assert finding.commits == (hash_of(25),)
    assert [other.commits for other in finding.others] == [(hash_of(10),)]


def test_one_step_has_no_others() -> None:
    for seed in range(8):
        line = DrawnValues(steps_at(61, (7 * seed + 1, 10)), 65, noise=1.5, seed=seed)
        finding, _ = drive(line, line.specification(parallel=2, workers=2))
        assert finding.others == ()


def test_values_that_fall_again_and_rise_again_are_told() -> None:
    values = steps_at(61, (18, 10), (35, -10), (50, 10))
    line = DrawnValues(values, 65, noise=0.02)
    # The search alone would hardly look there: it takes over what was measured at these places.
    ledger = measured(line, 60, 0, 17, 17, 18, 18, 30, 40, 40, 45, 55)
    finding, _ = drive(line, line.specification(), ledger=ledger)
    assert finding.kind is FindingKind.FOUND
    assert [other.worse for other in finding.others].count(False) == 1
    assert any(not other.worse and hash_of(35) in other.commits for other in finding.others)
    assert "also falls by 10" in finding.why
    assert "something in the range mends it in part" in finding.why


def test_another_failure_on_the_range_is_told_with_where_it_begins() -> None:
    line = DrawnLine(drawing=".......oooooo....X......")
    finding, ledger = drive(line, line.specification(), ledger=measured(line, 23, 0, 12, 5))
    assert finding.commits == (hash_of(17),)
    (other,) = finding.others
    assert other.signature == "KeyError in setup"
    assert other.delta is None
    tried = {int(entry.trial.state.commit, 16) for entry in ledger}
    first = min(tried & set(range(7, 13)))
    before = max(position for position in tried if position < 7)
    assert other.commits == hashes(range(before + 1, first + 1))
    assert "Another failure, KeyError in setup, was seen in" in finding.why
    assert "; it begins between" in finding.why


def test_a_climb_beside_a_step_accuses_nobody_more() -> None:
    values = [value + 5 * (position >= 12) for position, value in enumerate(climb(61, 5))]
    line = DrawnValues(values, 63, noise=0.01)
    finding, _ = drive(line, line.specification())
    assert finding.commits == (hash_of(12),)
    assert not any(other.confirmed for other in finding.others)


def test_a_finding_of_an_earlier_release_has_no_others() -> None:
    step = OtherStep(commits=(hash_of(3),), parent=hash_of(2), delta=1.5, worse=True, confirmed=True)
    finding = Finding(kind=FindingKind.FOUND, commits=(hash_of(1),), parent=hash_of(0), others=(step,))
    row = finding.to_json()
    assert Finding.from_json(row) == finding
    del row["others"]
    assert Finding.from_json(row).others == ()


@pytest.mark.parametrize(("commits", "confirmed"), [((), False), ((hash_of(1), hash_of(2)), True)])
def test_a_step_that_cannot_be_is_refused(commits: tuple[str, ...], confirmed: bool) -> None:
    with pytest.raises(ValueError, match="a confirmed one is one commit"):
        OtherStep(commits=commits, parent=hash_of(0), delta=1.0, worse=True, confirmed=confirmed)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    at=st.lists(st.integers(1, 40), min_size=2, max_size=2, unique=True),
    parallel=st.integers(1, 3),
    seed=st.integers(0, 50),
)
def test_both_of_two_equal_steps_are_found_in_any_order_of_arrival(
    at: list[int], parallel: int, seed: int
) -> None:
    first, second = sorted(at)
    line = DrawnValues(steps_at(41, (first, 6), (second, 6)), 65, noise=0.05, seed=seed)
    finding, ledger = drive(
        line,
        line.specification(parallel=parallel, workers=parallel),
        order=lambda running: line.random.randrange(len(running)),
    )
    assert finding.commits == (hash_of(first),)
    assert [other.commits for other in finding.others if other.confirmed] == [(hash_of(second),)]
    assert len({entry.trial.key for entry in ledger}) == len(ledger)
    assert Search.replay(line.specification(parallel=parallel, workers=parallel), ledger).next(1) == finding
