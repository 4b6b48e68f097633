"""After a culprit is found: the revert test, and the check that the culprit changes anything at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bisection.adapters.storage.bisections import Bisections, Status
from bisection.adapters.storage.schema import bisections
from bisection.ledger import Purpose
from tests.integration.two_hosts import Hosts, history, model
from workers.advancing import advance
from workers.workspaces import mirror_of


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    hosts = Hosts(tmp_path)
    yield hosts
    hosts.database.close()


def test_reverting_the_culprit_on_the_bad_end_is_measured_and_mends_it(hosts: Hosts) -> None:
    hashes = history(hosts.scene, {"src___b__py": model(_1="z")}, {"src___b__py": model(_1="w")})
    report = hosts.finish(hosts.create(hashes[0], hashes[-1]))
    assert report.finding.commits == (hashes[4],)
    test = report.finding.revert
    assert test is not None
    assert (test.result, test.trials) == ("mends", 1)
    assert test.why == "Reverting it on the bad end mends it (measured: all steps were taken)."
    (trial,) = (row for row in report.trials if row.purpose is Purpose.REVERT)
    assert trial.state.commit == test.commit
    mirror = mirror_of(hosts.worker.root, hosts.worker.catalogue.repository("training"))
    assert mirror.read_file(test.commit, "src/a.py") == model(_11="more").encode()
    assert mirror.read_file(test.commit, "src/b.py") == model(_1="w").encode()


def test_a_second_cause_is_told_and_takes_nothing_from_the_answer(hosts: Hosts) -> None:
    hashes = history(hosts.scene, {"src___b__py": model(_5="BAD")}, {"src___b__py": model(_5="BAD", _1="w")})
    report = hosts.finish(hosts.create(hashes[0], hashes[-1]))
    assert report.finding.commits == (hashes[4],)
    assert report.finding.confidence >= 0.99
    assert report.finding.revert is not None
    assert report.finding.revert.result == "does_not_mend"
    assert "Reverting it alone does not mend the bad end" in report.finding.revert.why


def test_a_revert_that_conflicts_runs_nothing_and_says_where(hosts: Hosts) -> None:
    hashes = history(hosts.scene, {"src___a__py": model(_11="more", _3="BAD, in other words")})
    report = hosts.finish(hosts.create(hashes[0], hashes[-1]))
    assert report.finding.revert is not None
    assert report.finding.revert.result == "conflicts"
    assert "without conflicts, in src/a.py." in report.finding.revert.why
    assert not [trial for trial in hosts.ran if trial.purpose is Purpose.REVERT]


def test_a_culprit_that_is_the_bad_end_leads_back_to_its_parent_without_a_run(hosts: Hosts) -> None:
    hashes = history(hosts.scene)
    report = hosts.finish(hosts.create(hashes[0], hashes[-1]))
    assert report.finding.revert is not None
    assert report.finding.revert.result == "mends"
    assert f"its parent {hashes[3][:10]}, which passed" in report.finding.revert.why
    assert not [trial for trial in hosts.ran if trial.purpose is Purpose.REVERT]


def test_a_spent_budget_leaves_the_revert_untried_and_says_so(hosts: Hosts) -> None:
    hashes = history(hosts.scene, {"src___b__py": model(_1="z")}, {"src___b__py": model(_1="w")})
    whole = hosts.finish(hosts.create(hashes[0], hashes[-1], reuse=False))
    searched = len(whole.trials) - 1
    short = hosts.finish(hosts.create(hashes[0], hashes[-1], reuse=False, budget={"trials": searched}))
    assert short.finding.commits == (hashes[4],)
    assert short.finding.revert is not None
    assert short.finding.revert.result == "not_run"
    assert f"the budget of {searched} trials is spent" in short.finding.revert.why


def test_whoever_repeats_a_step_asks_for_one_revert_only(hosts: Hosts) -> None:
    hashes = history(hosts.scene, {"src___b__py": model(_1="z")})
    bisection_id = hosts.create(hashes[0], hashes[-1])
    while hosts.row(bisection_id).status is Status.RUNNING:
        hosts.measure(bisection_id)
        advance(hosts.control, bisection_id)
    for _ in range(3):  # as the reconciler does, on two hosts
        advance(hosts.control, bisection_id)
        advance(hosts.worker, bisection_id)
    assert hosts.row(bisection_id).status is Status.VERIFYING
    assert hosts.row(bisection_id).finding is not None  # known to whoever asks, before the test has ended
    report = hosts.finish(bisection_id)
    assert sum(trial.purpose is Purpose.REVERT for trial in hosts.ran) == 1
    assert report.finding.revert is not None
    assert report.finding.revert.result == "mends"


def test_a_cancelled_revert_keeps_the_answer(hosts: Hosts) -> None:
    hashes = history(hosts.scene, {"src___b__py": model(_1="z")})
    bisection_id = hosts.create(hashes[0], hashes[-1])
    while hosts.row(bisection_id).status is Status.RUNNING:
        hosts.measure(bisection_id)
        advance(hosts.control, bisection_id)
    assert Bisections(hosts.database).request_cancel(bisection_id)
    report = hosts.finish(bisection_id)
    assert report.finding.commits == (hashes[4],)
    assert report.finding.revert is not None
    assert report.finding.revert.why.endswith("was not measured: it was cancelled.")


def test_a_commit_that_changes_nothing_is_never_named(hosts: Hosts) -> None:
    """The stored keys tell an empty commit from its parent, as a faulty release's might; git does not."""
    changes = [{"src___b__py": model(_1=letter)} for letter in "uvwx"]
    hashes = [hosts.scene.commit(f"Change {n}", **change) for n, change in enumerate(changes)]
    empty = hosts.scene.commit("An empty commit")
    hashes += [empty, hosts.scene.commit("A last one", src___b__py=model(_1="y"))]
    bisection_id = hosts.create(hashes[0], hashes[-1], budget={"trials": 24})
    spec = hosts.row(bisection_id).specification
    assert spec is not None
    commits = tuple(
        replace(commit, tree_key="another") if commit.hash == empty else commit
        for commit in spec.range.commits
    )
    forged = replace(spec, range=replace(spec.range, commits=commits))
    with hosts.database.write() as connection:
        connection.execute(
            bisections.update().where(bisections.c.id == bisection_id).values(spec=forged.to_json())
        )
    report = hosts.finish(bisection_id, fails=lambda trial: trial.state.commit in hashes[4:])
    assert empty not in report.finding.commits
    assert report.finding.kind != "found"
    assert any(note.startswith(f"{empty[:10]} was found first") for note in report.notes)
    (event,) = Bisections(hosts.database).events(bisection_id, kind="reopened")
    assert "it is left out of the search" in event.payload["text"]
