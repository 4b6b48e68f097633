"""Bisections that begin with what another one measured, and those that wait for approval."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bisection.adapters.storage.bisections import Bisections, Status
from bisection.adapters.storage.decisions import Decisions
from bisection.adapters.storage.measurements import Measurements
from bisection.adapters.storage.trials import Trials
from bisection.criteria import Criterion, CriterionKind
from bisection.ledger import Purpose
from bisection.measurement import Measurement, Outcome, OutOfMemory, Peak
from bisection.replaying import replay
from bisection.report import CulpritReport
from memory_models.breakdown import Category, Component, MemoryBreakdown
from tests.integration.two_hosts import Hosts, history, model
from workers.advancing import advance


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    hosts = Hosts(tmp_path)
    yield hosts
    hosts.database.close()


def derive(hosts: Hosts, ancestor: str, derivation: str, **changes: Any) -> str:
    """As the service stores one: the request of the ancestor with some changes."""
    row = hosts.row(ancestor)
    request = {"confidence": 0.99, **row.request, **changes}
    request["ancestor"] = {"bisection": ancestor, "derivation": derivation}
    made, _ = Bisections(hosts.database).create(request=request, profile=row.profile, source="test")
    advance(hosts.control, made.id)
    return made.id


def own(report: CulpritReport) -> int:
    """Trials that were run for it."""
    return sum(not row.taken_from for row in report.trials)


# --- retry --------------------------------------------------------------------------------------------


def test_a_retry_measures_only_what_told_nothing(hosts: Hosts) -> None:
    hashes = history(hosts.scene, {"src___b__py": model(_1="z")})
    first = hosts.create(hashes[0], hashes[-1], budget={"trials": 4})
    claim = hosts.worker.claims.claim("local", "w")
    assert claim is not None
    broken = Measurement(outcome=Outcome.UNBUILDABLE, state=claim.trial.state, reason="the index is away")
    assert hosts.worker.claims.complete(claim, broken, {})
    hosts.finish(first)
    kept = [row for row in Trials(hosts.database).of(first) if row.trial != claim.trial]

    again = derive(hosts, first, "retry", budget={"trials": 60})
    report = hosts.finish(again)
    assert report.finding.commits == (hashes[4],)
    taken = [row for row in report.trials if row.taken_from]
    assert sorted(row.state.commit for row in taken) == sorted(row.trial.state.commit for row in kept)
    assert all(row.outcome is not Outcome.UNBUILDABLE for row in report.trials)
    assert any(
        note.startswith(f"This bisection asks again what bisection {first} asked") for note in report.notes
    )


def test_a_retry_of_a_retry_does_not_bring_back_what_was_left_behind(hosts: Hosts) -> None:
    hashes = history(hosts.scene)
    first = hosts.create(hashes[0], hashes[-1], budget={"trials": 2})
    for _ in range(2):
        claim = hosts.worker.claims.claim("local", "w")
        assert claim is not None
        late = Measurement(outcome=Outcome.TIMED_OUT, state=claim.trial.state, signature="timed_out")
        assert hosts.worker.claims.complete(claim, late.evolve(worker="w0"), {})
        advance(hosts.control, first)
    hosts.finish(first)
    criterion = {"kind": "crash", "signature": "ValueError in experts"}
    second = derive(hosts, first, "retry", budget={"trials": 60}, criterion=criterion)
    report = hosts.finish(derive(hosts, second, "retry") if hosts.finish(second) else "")
    assert report.finding.commits == (hashes[4],)
    assert all(row.outcome is not Outcome.TIMED_OUT for row in report.trials)


def test_a_retry_of_everything_takes_nothing_over(hosts: Hosts) -> None:
    hashes = history(hosts.scene)
    first = hosts.create(hashes[0], hashes[-1])
    hosts.finish(first)
    report = hosts.finish(derive(hosts, first, "anew", reuse=False))
    assert report.finding.commits == (hashes[4],)
    assert own(report) == len(report.trials) > 0


def test_what_was_retracted_is_not_inherited(hosts: Hosts) -> None:
    hashes = history(hosts.scene)
    first = hosts.create(hashes[0], hashes[-1])
    hosts.finish(first)
    for row in Trials(hosts.database).of(first):
        if row.reuse_key:
            Measurements(hosts.database).retract(key=row.reuse_key)
    report = hosts.finish(derive(hosts, first, "retry"))
    assert own(report) == len(report.trials) > 0


# --- extend -------------------------------------------------------------------------------------------


def test_an_extension_to_an_older_good_end_repeats_no_trial(hosts: Hosts) -> None:
    hashes = history(hosts.scene, *({"src___b__py": model(_1=letter)} for letter in "uvwz"))
    inside = hosts.create(hashes[5], hashes[-1])
    short = hosts.finish(inside)
    assert short.finding.problem == "good-end-is-bad"
    ran = len(hosts.ran)

    report = hosts.finish(derive(hosts, inside, "extension", good=hashes[0]))
    assert report.finding.commits == (hashes[4],)
    assert own(report) == len(hosts.ran) - ran
    measured = [(row.state.commit, row.attempt) for row in report.trials]
    assert len(set(measured)) == len(measured)
    assert len(report.trials) - own(report) == len(short.trials)


# --- replay -------------------------------------------------------------------------------------------

GIB = 2**30


def peaks(hosts: Hosts, bisection_id: str, gib: dict[str, int], enforced: int | None = None) -> CulpritReport:
    """To the end, each commit with its peak; above the enforced limit the allocator refuses."""
    for _ in range(60):
        advance(hosts.control, bisection_id)
        row = hosts.row(bisection_id)
        if row.status is Status.ENDED:
            assert row.report is not None
            return CulpritReport.from_json(row.report)
        claim = hosts.worker.claims.claim("local", "w")
        assert claim is not None
        hosts.ran.append(claim.trial)
        size = gib.get(claim.trial.state.commit, 10) * GIB
        breakdown = MemoryBreakdown(cells={(Component.EXPERTS, Category.ACTIVATIONS): size})
        peak = Peak(
            rank=0, step=1, phase="forward", instant="experts", allocated_bytes=size, reserved_bytes=size,
            breakdown=breakdown,
        )  # fmt: skip
        measured = Measurement(
            outcome=Outcome.COMPLETED,
            state=claim.trial.state,
            worker=f"w{len(hosts.ran)}",
            seconds=1.0,
            peak=peak,
        )
        if enforced is not None and claim.trial.enforce_capacity and size > enforced:
            refused = OutOfMemory(
                component="experts", phase="forward", requested_bytes=size - enforced + GIB // 2,
                allocated_bytes=enforced - GIB // 2, reserved_bytes=enforced,
            )  # fmt: skip
            measured = measured.evolve(
                outcome=Outcome.OUT_OF_MEMORY, peak=None, oom=refused, capacity_bytes=enforced
            )
        assert hosts.worker.claims.complete(claim, measured, {})
    raise AssertionError("the bisection does not come to an end")


def stairs(hosts: Hosts) -> tuple[list[str], dict[str, int]]:
    """Eight commits; two of them raise the peak: 10, then 20 from the fourth, 30 GiB from the seventh on."""
    files = ["src___a__py" if n == 6 else "src___b__py" for n in range(8)]
    hashes = [hosts.scene.commit(f"Change {n}", **{file: model(_1=str(n))}) for n, file in enumerate(files)]
    return hashes, {commit: 10 + 10 * (n > 2) + 10 * (n > 5) for n, commit in enumerate(hashes)}


def test_a_replay_answers_another_threshold_with_few_trials_or_none(hosts: Hosts) -> None:
    hashes, gib = stairs(hosts)
    peak_memory = {"kind": "peak_memory", "threshold": 25 * GIB}
    first = hosts.create(hashes[0], hashes[-1], criterion=peak_memory)
    assert peaks(hosts, first, gib).finding.commits == (hashes[6],)
    ran, row = len(hosts.ran), hosts.row(first)
    assert row.specification is not None
    ledger = Trials.ledger(Trials(hosts.database).of(first))

    same = replay(
        row.specification, ledger, Criterion(kind=CriterionKind.PEAK_MEMORY, threshold=26 * GIB), 0.99
    )
    assert same.finding is not None
    assert same.finding.commits == (hashes[6],)
    assert same.wanted == ()
    again = peaks(
        hosts, derive(hosts, first, "replay", criterion={"kind": "peak_memory", "threshold": 26 * GIB}), gib
    )
    assert again.finding.commits == (hashes[6],)
    assert len(hosts.ran) == ran  # the revert test was taken over, too
    assert again.finding.revert is not None
    assert any(row.purpose is Purpose.REVERT and row.taken_from for row in again.trials)

    lower = Criterion(kind=CriterionKind.PEAK_MEMORY, threshold=15 * GIB)
    other = replay(row.specification, ledger, lower, 0.99)
    changed = {
        one.entry.trial.state.commit for one in other.judged if one.before.verdict != one.after.verdict
    }
    assert changed <= set(hashes[3:6])
    report = peaks(hosts, derive(hosts, first, "replay", criterion=lower.to_json()), gib)
    assert report.finding.commits == (hashes[3],)
    assert own(report) == len(hosts.ran) - ran
    assert any(
        note.startswith(f"This bisection judges the measurements of bisection {first}")
        for note in report.notes
    )


def test_what_was_refused_below_a_higher_capacity_is_measured_anew(hosts: Hosts) -> None:
    hashes, gib = stairs(hosts)
    capacity = {"kind": "out_of_memory", "capacity_bytes": 25 * GIB}
    first = hosts.create(hashes[0], hashes[-1], criterion=capacity)
    assert peaks(hosts, first, gib, enforced=25 * GIB).finding.commits == (hashes[6],)
    row = hosts.row(first)
    assert row.specification is not None
    ledger = Trials.ledger(Trials(hosts.database).of(first))
    roomy = Criterion(kind=CriterionKind.OUT_OF_MEMORY, capacity_bytes=40 * GIB)
    told = replay(row.specification, ledger, roomy, 0.99)
    refused = [entry for entry in ledger if entry.measurement.outcome is Outcome.OUT_OF_MEMORY]
    assert refused
    assert list(told.left_behind) == refused
    tight = Criterion(kind=CriterionKind.OUT_OF_MEMORY, capacity_bytes=15 * GIB)
    assert replay(row.specification, ledger, tight, 0.99).left_behind == ()


# --- approval -----------------------------------------------------------------------------------------


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Hosts]:
    """A profile of eight GPUs, whose trials of a second take 0.0022 GPU hours; two are free."""
    hosts = Hosts(tmp_path, gpus=8, limits={"gpu_hours_without_approval": 0.004})
    yield hosts
    hosts.database.close()


def test_a_bisection_is_held_once_it_has_used_what_needs_no_approval(guarded: Hosts) -> None:
    hashes = history(guarded.scene)
    bisection_id = guarded.create(hashes[0], hashes[-1])
    while guarded.row(bisection_id).status is Status.RUNNING:
        assert guarded.measure(bisection_id)
        advance(guarded.control, bisection_id)
    assert guarded.row(bisection_id).status is Status.HELD
    assert len(guarded.ran) == 2
    assert not guarded.measure(bisection_id)
    (event,) = Bisections(guarded.database).events(bisection_id, kind="held")
    assert (
        event.payload["text"] == "It has used 0.00 GPU hours, and its profile allows 0.004 without approval."
    )
    decisions = Decisions(Bisections(guarded.database))
    assert decisions.approve(bisection_id, by="ada", reason="the release waits")
    assert not decisions.approve(bisection_id, by="bob", reason="")
    report = guarded.finish(bisection_id)
    assert report.finding.commits == (hashes[4],)
    assert any("Its GPU hours were approved by ada on" in note for note in report.notes)


def test_once_its_trials_are_timed_a_bisection_is_held_before_the_first(guarded: Hosts) -> None:
    hashes = history(guarded.scene)
    first = guarded.create(hashes[0], hashes[-1], budget={"trials": 2})
    guarded.finish(first)
    ran = len(guarded.ran)
    second = guarded.create(hashes[0], hashes[-1], reuse=False)
    assert guarded.row(second).status is Status.HELD
    frugal = guarded.create(hashes[0], hashes[-1], reuse=False, budget={"trials": 60, "gpu_hours": 0.003})
    assert guarded.row(frugal).status is Status.RUNNING
    assert Decisions(Bisections(guarded.database)).refuse(second, by="ada", reason="not this week")
    assert second in Bisections(guarded.database).unfinished()
    report = guarded.finish(second)
    assert len(guarded.ran) == ran
    assert report.finding.problem == "approval-refused"
    assert report.finding.why == "ada refused its GPU hours: not this week"
