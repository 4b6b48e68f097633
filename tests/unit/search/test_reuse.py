"""Which measurements of other bisections count, and which never do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bisection.commits import Commit, CommitRange, State
from bisection.criteria import Criterion, CriterionKind
from bisection.ledger import LedgerEntry, Purpose, Trial
from bisection.measurement import Control, Measurement, Outcome, Work
from bisection.reuse import ContentKeys, Job, counts_here, is_own
from bisection.search import Search
from bisection.specification import BisectionSpec, Budget
from tests.unit.search.drawn_lines import DrawnLine, hash_of

JOB = Job(repository="r", profile_digest="p", relevant_paths=("src",), overrides={"a.b": 1})
OOM = Criterion(kind=CriterionKind.OUT_OF_MEMORY, capacity_bytes=1000)


def spec_of(*commits: Commit) -> BisectionSpec:
    return BisectionSpec(range=CommitRange(commits=commits), criterion=OOM)


def commit(number: int, tree: str, lock: str = "lock") -> Commit:
    return Commit(hash=hash_of(number), tree_key=tree, environment_key=lock)


def test_equal_files_have_equal_keys_whatever_their_commits_are_called() -> None:
    here = ContentKeys(spec_of(commit(1, "x"), commit(2, "y")), JOB)
    there = ContentKeys(spec_of(commit(8, "w"), commit(9, "x")), JOB)
    assert here.key(State(commit=hash_of(1))) == there.key(State(commit=hash_of(9)))
    assert here.key(State(commit=hash_of(2))) != there.key(State(commit=hash_of(9)))


@pytest.mark.parametrize(
    "job",
    [
        replace(JOB, repository="other"),
        replace(JOB, profile_digest="other"),
        replace(JOB, relevant_paths=("src", "scripts")),
        replace(JOB, overrides={"a.b": 2}),
        replace(JOB, overrides={"a.b": True}),
        replace(JOB, overrides={}),
    ],
)
def test_another_job_is_another_measurement(job: Job) -> None:
    spec, state = spec_of(commit(1, "x"), commit(2, "y")), State(commit=hash_of(1))
    assert ContentKeys(spec, job).key(state) != ContentKeys(spec, JOB).key(state)


def test_pins_packages_and_locks_are_in_the_key() -> None:
    keys = ContentKeys(spec_of(commit(1, "x"), commit(2, "x", "other lock")), JOB)
    plain = State(commit=hash_of(1))
    others = [
        State(commit=hash_of(2)),
        replace(plain, pins=(("core", "a" * 40),)),
        replace(plain, packages=(("torch", "2.13"),)),
    ]
    assert len({keys.key(state) for state in (plain, *others)}) == 4


def test_a_commit_of_which_nothing_is_known_is_only_itself() -> None:
    keys = ContentKeys(spec_of(Commit(hash=hash_of(1)), Commit(hash=hash_of(2))), JOB)
    assert keys.key(State(commit=hash_of(1))) != keys.key(State(commit=hash_of(2)))


def measured(number: int = 1, **fields: Any) -> Measurement:
    known = {"device": "cuda", "hardware": "NVIDIA H200", "environment_key": "env", "worker": "w"}
    return Measurement(
        state=State(commit=hash_of(number)), **{"outcome": Outcome.COMPLETED, **known, **fields}
    )


@pytest.mark.parametrize(
    ("candidate", "counts"),
    [
        (measured(), True),
        (measured(outcome=Outcome.CRASHED), True),
        (measured(outcome=Outcome.OUT_OF_MEMORY, capacity_bytes=1000), True),
        (measured(outcome=Outcome.OUT_OF_MEMORY, capacity_bytes=900), False),
        (measured(outcome=Outcome.OUT_OF_MEMORY), False),  # at whatever the device had
        (measured(capacity_bytes=900), True),  # it completed: its peak is known
        (measured(outcome=Outcome.LOST), False),
        (measured(outcome=Outcome.UNBUILDABLE), False),
        (measured(outcome=Outcome.INVALID), False),
        (measured(hardware="NVIDIA H100"), False),
        (measured(device="cpu", hardware="cpu"), False),
        (measured(environment_key="rebuilt"), False),
    ],
)
def test_only_what_agrees_with_what_was_measured_here_counts(candidate: Measurement, counts: bool) -> None:
    keys = ContentKeys(spec_of(commit(1, "x"), commit(2, "y")), JOB)
    own = [measured(2)]
    assert counts_here(OOM, candidate, State(commit=hash_of(1)), own, keys) is counts
    assert not counts_here(OOM, candidate, State(commit=hash_of(1)), [], keys)


def controlled(number: int, control: int | None, **fields: Any) -> Measurement:
    """Measured beside a control at this commit."""
    state = None if control is None else State(commit=hash_of(control))
    beside = state and Control(state=state, outcome=Outcome.COMPLETED, work=Work(steps=()))
    return measured(number, control=beside, **fields)


@pytest.mark.parametrize(
    ("candidate", "own", "counts"),
    [
        (controlled(1, 2), controlled(2, 2), True),
        (controlled(1, 3), controlled(2, 2), False),  # how fast that one is, nobody knows here
        (controlled(1, None), controlled(2, 2), False),
        (controlled(1, 2), controlled(2, None), False),
        (controlled(1, None), controlled(2, None), True),
        (controlled(1, None, outcome=Outcome.CRASHED), controlled(2, 2), True),  # it needed none
    ],
)
def test_a_speed_counts_only_beside_the_same_control(
    candidate: Measurement, own: Measurement, counts: bool
) -> None:
    keys = ContentKeys(spec_of(commit(1, "x"), commit(2, "y")), JOB)
    speed = Criterion(kind=CriterionKind.THROUGHPUT, threshold=1.0)
    assert counts_here(speed, candidate, State(commit=hash_of(1)), [own], keys) is counts
    assert counts_here(OOM, candidate, State(commit=hash_of(1)), [own], keys)


def test_another_lock_may_have_another_environment() -> None:
    keys = ContentKeys(spec_of(commit(1, "x", "old lock"), commit(2, "y")), JOB)
    assert counts_here(OOM, measured(environment_key="old"), State(commit=hash_of(1)), [measured(2)], keys)


def test_what_says_nothing_of_the_machine_opens_no_door() -> None:
    assert not is_own(measured(outcome=Outcome.UNBUILDABLE))
    assert is_own(measured(outcome=Outcome.CRASHED))


def test_what_was_taken_over_costs_no_budget_but_counts_as_evidence() -> None:
    line = DrawnLine(drawing="....X...")
    spec = replace(line.specification(), budget=Budget(trials=2))
    search = Search(spec)
    for number, position in enumerate((7, 3, 4, 3, 4)):
        trial = Trial(
            state=search.line.state(position),
            attempt=1 + (number > 2),
            purpose=Purpose.SEARCH,
            taken_from="" if number == 0 else f"before/{number}",
        )
        entry = LedgerEntry(sequence=number, trial=trial, measurement=line.run(trial, f"w{number}"))
        search.record(LedgerEntry.from_json(entry.to_json()))
    assert search.standing.evidence.of(4).failures == 2
    decision = search.next(1)
    assert not isinstance(decision, tuple) or len(decision) == 1  # one of the two is left to spend
    assert getattr(decision, "problem", "") != "budget-spent"
