"""The search as its users meet it: drawn lines in, findings out."""

from __future__ import annotations

import pytest

from bisection.commits import State
from bisection.criteria import Criterion, CriterionKind
from bisection.finding import Finding, FindingKind
from bisection.ledger import LedgerEntry, Purpose, Trial
from bisection.measurement import Measurement, Outcome
from bisection.search import GOOD_END_IS_BAD, NO_CULPRIT, IllegalEntry, Search
from bisection.specification import Budget
from memory_models.breakdown import GIB
from tests.unit.search.drawn_lines import DrawnLine, drive, hash_of


@pytest.mark.parametrize(
    "drawing",
    [
        ".X",
        ".....X....",
        ".X.........",
        "..........X",
        "." * 40 + "X" + "." * 19,
        "..s..s.X..s.ss..",
        "...ooo.X...ooo..",
        "..=..==.X==..=.",
    ],
)
@pytest.mark.parametrize("parallel", [1, 4])
def test_the_planted_culprit_is_named_with_its_parent(drawing: str, parallel: int) -> None:
    line = DrawnLine(drawing=drawing)
    finding, _ = drive(line, line.specification(parallel=parallel, workers=parallel))
    assert line.culprit is not None
    assert finding.kind is FindingKind.FOUND
    assert finding.commits == (hash_of(line.culprit),)
    assert finding.parent == hash_of(line.culprit - 1)
    assert finding.confidence >= 0.99


@pytest.mark.parametrize("seed", range(5))
def test_flakes_do_not_fool_it(seed: int) -> None:
    line = DrawnLine(drawing="." * 25 + "X" + "." * 10, false_negative=0.15, false_positive=0.05, seed=seed)
    finding, _ = drive(line, line.specification(parallel=2, workers=2))
    assert finding.commits == (hash_of(25),)


def test_no_culprit_is_named_before_it_failed_and_its_parent_passed_twice_on_two_workers() -> None:
    line = DrawnLine(drawing="........X....")
    finding, ledger = drive(line, line.specification(parallel=3, workers=3))
    for position, outcome in ((8, Outcome.CRASHED), (7, Outcome.COMPLETED)):
        workers = {
            entry.measurement.worker
            for entry in ledger
            if entry.trial.state.commit == hash_of(position) and entry.measurement.outcome is outcome
        }
        assert len(workers) >= 2
    assert "on 2 workers" in finding.why


def test_with_one_worker_the_finding_says_so() -> None:
    line = DrawnLine(drawing="....X...")
    finding, _ = drive(line, line.specification())
    assert "One worker ran all trials, each in a fresh process and workspace" in finding.why


@pytest.mark.parametrize(("suspects", "workers", "most"), [(60, 1, 10), (24, 2, 13)])
def test_a_metric_with_hardly_any_spread_earns_confidence_fast(
    suspects: int, workers: int, most: int
) -> None:
    for culprit in range(1, suspects + 1, 7):
        drawing = "." * culprit + "X" + "." * (suspects - culprit)
        line = DrawnLine(
            drawing=drawing, kind=CriterionKind.OUT_OF_MEMORY, noise_bytes=GIB // 5, seed=culprit
        )
        finding, ledger = drive(line, line.specification(parallel=workers, workers=workers))
        assert finding.commits == (hash_of(culprit),)
        assert len(ledger) <= most


def test_the_second_failing_trial_of_a_state_measures_its_whole_peak() -> None:
    line = DrawnLine(drawing=".....X....", kind=CriterionKind.OUT_OF_MEMORY)
    finding, ledger = drive(line, line.specification())
    at_culprit = [entry for entry in ledger if entry.trial.state.commit == finding.commits[0]]
    assert [entry.trial.enforce_capacity for entry in at_culprit] == [True, False]
    assert at_culprit[1].measurement.peak is not None
    assert all(entry.trial.enforce_capacity for entry in ledger if entry.trial.state.commit == finding.parent)


def test_no_state_is_tried_under_two_names() -> None:
    line = DrawnLine(drawing=".====.==X====.==")
    finding, ledger = drive(line, line.specification())
    assert finding.commits == (hash_of(8),)
    assert {int(entry.trial.state.commit, 16) for entry in ledger} <= {0, 5, 8, 13}


def test_a_change_that_was_undone_is_never_suspected() -> None:
    line = DrawnLine(drawing="..oooa..X..")
    finding, ledger = drive(line, line.specification())
    assert finding.commits == (hash_of(8),)
    assert not {int(entry.trial.state.commit, 16) for entry in ledger} & {1, 2, 3, 4, 5}


# The answers that name no commit.


def test_a_bad_end_that_passes_is_none_with_its_evidence() -> None:
    line = DrawnLine(drawing="............")
    finding, _ = drive(line, line.specification(parallel=2, workers=2))
    assert finding.kind is FindingKind.NONE
    assert finding.problem == "bad-end-passes"
    assert "passed in" in finding.why


def test_a_good_end_that_fails_is_none_and_says_that_both_ends_fail() -> None:
    line = DrawnLine(drawing="X" + "." * 12, kind=CriterionKind.OUT_OF_MEMORY)
    finding, _ = drive(line, line.specification(parallel=2, workers=2))
    assert (finding.kind, finding.problem) == (FindingKind.NONE, "good-end-is-bad")
    assert "The good end is already bad" in finding.why
    assert "both ends fail" in finding.why


def test_a_bad_end_that_cannot_be_judged_accuses_nobody_though_the_good_end_is_untried() -> None:
    line = DrawnLine(drawing="...ooo")
    spec = line.specification(
        criterion=Criterion(kind=CriterionKind.CRASH, signature="ValueError in experts")
    )
    measured = [(2, 1), (2, 2), (2, 3), (2, 4), (3, 1), (4, 1)]  # by another bisection
    ledger: list[LedgerEntry] = []
    for place, attempt in measured:
        state = State(commit=hash_of(place))
        trial = Trial(state=state, attempt=attempt, purpose=Purpose.SEARCH, taken_from=f"b/{place}{attempt}")
        ledger.append(LedgerEntry(sequence=len(ledger), trial=trial, measurement=line.run(trial)))
    finding, _ = drive(line, spec, ledger=ledger)
    assert (finding.kind, finding.problem) == (FindingKind.NONE, "bad-end-untestable")


def test_a_bad_end_that_only_fails_in_another_way_is_untestable_with_its_reason() -> None:
    line = DrawnLine(drawing="...X...o", kind=CriterionKind.OUT_OF_MEMORY)
    finding, ledger = drive(line, line.specification())
    assert (finding.kind, finding.problem) == (FindingKind.NONE, "bad-end-untestable")
    assert "KeyError: 'lr'" in finding.why
    assert len(ledger) <= 4


def test_where_nothing_can_be_tested_all_suspects_remain() -> None:
    line = DrawnLine(drawing="ssssssss")
    finding, ledger = drive(line, line.specification())
    assert (finding.kind, finding.problem) == (FindingKind.SET, "all-untestable")
    assert finding.commits == tuple(hash_of(position) for position in range(1, 8))
    assert "an import failed" in finding.why
    assert len(ledger) <= 4


def test_a_good_end_that_cannot_be_judged_leaves_what_comes_before_the_first_failure() -> None:
    line = DrawnLine(drawing="ssX......")
    finding, _ = drive(line, line.specification())
    assert (finding.kind, finding.problem) == (FindingKind.SET, "good-end-untestable")
    assert finding.commits == (hash_of(1), hash_of(2))
    assert "an import failed" in finding.why


def test_a_culprit_beside_an_untestable_block_is_answered_with_the_block() -> None:
    line = DrawnLine(drawing="......." + "s" * 12 + "X" + "......")
    finding, _ = drive(line, line.specification())
    assert (finding.kind, finding.problem) == (FindingKind.SET, "untestable-stretch")
    assert finding.commits == tuple(hash_of(position) for position in range(7, 20))
    assert "none could be judged" in finding.why


def test_ends_of_one_state_cannot_differ() -> None:
    line = DrawnLine(drawing=".===")
    finding, ledger = drive(line, line.specification())
    assert (finding.kind, finding.problem, ledger) == (FindingKind.NONE, "same-state", [])


def test_a_spent_budget_ends_in_the_best_answer_so_far() -> None:
    line = DrawnLine(drawing="." * 20 + "X" + "." * 20)
    finding, ledger = drive(line, line.specification(budget=Budget(trials=5)))
    assert len(ledger) == 5
    assert (finding.kind, finding.problem) == (FindingKind.SET, "budget-spent")
    assert hash_of(20) in finding.commits
    assert "The budget of 5 trials is spent" in finding.why
    assert "not confirmed" in finding.why


def test_gpu_hours_and_seconds_are_budgets_too() -> None:
    line = DrawnLine(drawing="." * 20 + "X" + "." * 20)
    hours = line.specification(budget=Budget(trials=60, gpu_hours=0.2), gpus_per_trial=8)
    finding, ledger = drive(line, hours)
    assert (finding.problem, len(ledger)) == ("budget-spent", 3)  # 30 s on 8 GPUs each
    seconds = line.specification(budget=Budget(trials=60, seconds=100))
    finding, ledger = drive(line, seconds)
    assert (finding.problem, len(ledger)) == ("budget-spent", 4)


def test_an_answer_can_be_asked_for_at_any_time() -> None:
    line = DrawnLine(drawing="." * 20 + "X" + "." * 20)
    search = Search.replay(line.specification(), ())
    finding = search.answer_now("It was cancelled.", "cancelled")
    assert (finding.kind, finding.problem) == (FindingKind.SET, "cancelled")
    assert finding.why.startswith("It was cancelled.")


# Lost trials, signatures, workers.


def lost(entry: LedgerEntry) -> LedgerEntry:
    measurement = entry.measurement.evolve(outcome=Outcome.LOST, reason="the worker went away", peak=None)
    return LedgerEntry(sequence=entry.sequence, trial=entry.trial, measurement=measurement)


def test_a_lost_trial_is_run_again() -> None:
    line = DrawnLine(drawing="...X..")
    search = Search.replay(line.specification(), ())
    first = search.next(1, ())
    assert isinstance(first, tuple)
    entry = LedgerEntry(sequence=0, trial=first[0], measurement=line.run(first[0]))
    search.record(lost(entry))
    again = search.next(1, ())
    assert isinstance(again, tuple)
    assert again[0].state == first[0].state
    assert again[0].attempt == 2


def test_a_state_that_is_lost_three_times_in_a_row_counts_as_untestable() -> None:
    class Fatal(DrawnLine):
        def run(self, trial: Trial, worker: str = "worker-0") -> Measurement:
            measurement = super().run(trial, worker)
            if trial.state.commit == hash_of(6):
                return measurement.evolve(outcome=Outcome.LOST, signature="", reason="killed")
            return measurement

    line = Fatal(drawing="......X......")
    finding, ledger = drive(line, line.specification())
    assert finding.kind is FindingKind.SET
    assert finding.commits == (hash_of(6), hash_of(7))
    assert sum(entry.trial.state.commit == hash_of(6) for entry in ledger) == 3


def test_trials_avoid_the_workers_that_measured_their_state() -> None:
    line = DrawnLine(drawing="....X....")
    _, ledger = drive(line, line.specification(parallel=2, workers=2))
    for entry in ledger:
        earlier = {
            other.measurement.worker
            for other in ledger[: entry.sequence]
            if other.trial.state == entry.trial.state
        }
        assert set(entry.trial.avoid_workers) <= earlier
        if entry.trial.purpose is Purpose.CONFIRM:
            assert entry.trial.avoid_workers


def test_one_worker_of_several_that_answers_alone_is_accepted_in_the_end() -> None:
    class OneWorker(DrawnLine):
        def run(self, trial: Trial, worker: str = "worker-0") -> Measurement:
            return super().run(trial, "worker-0")

    line = OneWorker(drawing="....X....")
    finding, _ = drive(line, line.specification(parallel=2, workers=2))
    assert finding.kind is FindingKind.FOUND
    assert "No second worker took part" in finding.why


@pytest.mark.parametrize("flakes", [1, 2])
def test_another_bug_is_not_taken_for_the_culprit_because_the_bad_end_passed_first(flakes: int) -> None:
    class FlakyEnd(DrawnLine):
        def run(self, trial: Trial, worker: str = "worker-0") -> Measurement:
            if trial.state.commit == hash_of(19) and trial.attempt <= flakes:
                return Measurement(outcome=Outcome.COMPLETED, state=trial.state, worker=worker)
            return super().run(trial, worker)

    line = FlakyEnd(drawing="..oooooooo....X.....")
    finding, _ = drive(line, line.specification(parallel=2, workers=2))
    assert finding.commits == (hash_of(14),)


# The ledger.


def first_entry(line: DrawnLine, search: Search) -> LedgerEntry:
    decision = search.next(1, ())
    assert isinstance(decision, tuple)
    return LedgerEntry(sequence=len(search.ledger), trial=decision[0], measurement=line.run(decision[0]))


@pytest.mark.parametrize("fault", ["unknown state", "gap", "twice", "another state measured"])
def test_an_illegal_entry_raises_and_changes_nothing(fault: str) -> None:
    line = DrawnLine(drawing="......X....")
    search = Search.replay(line.specification(), ())
    entry = first_entry(line, search)
    search.record(entry)
    before = (search.ledger, search.probabilities(), search.next(2, ()))
    stranger = Trial(state=State(commit="f" * 40), attempt=1, purpose=Purpose.SEARCH)
    next_entry = first_entry(line, search)
    illegal = {
        "unknown state": LedgerEntry(
            sequence=1, trial=stranger, measurement=entry.measurement.evolve(state=stranger.state)
        ),
        "gap": LedgerEntry(sequence=2, trial=next_entry.trial, measurement=next_entry.measurement),
        "twice": LedgerEntry(sequence=1, trial=entry.trial, measurement=entry.measurement),
        "another state measured": LedgerEntry(
            sequence=1, trial=next_entry.trial, measurement=entry.measurement
        ),
    }[fault]
    with pytest.raises(IllegalEntry):
        search.record(illegal)
    assert (search.ledger, search.probabilities(), search.next(2, ())) == before


def test_probabilities_cover_all_hypotheses_and_sum_to_one() -> None:
    line = DrawnLine(drawing="...=..X..")
    search = Search.replay(line.specification(), ())
    chances = search.probabilities()
    assert set(chances) == {*(hash_of(position) for position in range(1, 9)), NO_CULPRIT, GOOD_END_IS_BAD}
    assert sum(chances.values()) == pytest.approx(1)
    assert chances[hash_of(3)] == 0.0


def test_trials_that_can_no_longer_matter_may_be_cancelled() -> None:
    line = DrawnLine(
        drawing="." * 20 + "X" + "." * 20, kind=CriterionKind.OUT_OF_MEMORY, noise_bytes=GIB // 8
    )
    _, ledger = drive(line, line.specification())
    search = Search.replay(line.specification(), ledger[:-1])
    decision = search.next(1, ())
    assert isinstance(decision, tuple)
    far = Trial(state=State(commit=hash_of(39)), attempt=1, purpose=Purpose.SEARCH)
    assert search.cancellable([far, *decision]) == (far,)
    over = Search.replay(line.specification(), ledger)
    assert isinstance(over.next(1, ()), Finding)
    assert over.cancellable([far]) == (far,)


def test_every_trial_says_in_words_why_it_was_chosen() -> None:
    line = DrawnLine(drawing="......X....")
    _, ledger = drive(line, line.specification())
    reasons = [entry.trial.why for entry in ledger]
    assert reasons[0].startswith("The bad end")
    assert any("divides the" in reason for reason in reasons)
    assert any("must fail again" in reason for reason in reasons)
