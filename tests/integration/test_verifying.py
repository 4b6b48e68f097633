"""After a culprit is found: the revert test, and the check that the culprit changes anything at all.

Real git and a real database; what a trial comes to is read from the files that it would run, on another
host than the one that decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from bisection.adapters.catalogue import Catalogue
from bisection.adapters.queue import Queue, make_celery
from bisection.adapters.storage.bisections import BisectionRow, Bisections, Status
from bisection.adapters.storage.database import Database
from bisection.adapters.storage.schema import bisections
from bisection.ledger import Purpose, Trial
from bisection.measurement import Measurement, Outcome
from bisection.report import CulpritReport
from tests.repository_scene import RepositoryScene
from workers.advancing import advance
from workers.context import WorkerContext
from workers.verifying import write_revert
from workers.workspaces import mirror_of

LINES = [f"line {number}\n" for number in range(12)]


def model(**changed: str) -> str:
    """A file of twelve lines, some changed: ``_3="BAD"`` changes the fourth."""
    return "".join(changed.get(f"_{n}", line.strip()) + "\n" for n, line in enumerate(LINES))


class Hosts:
    """A repository, a database, a host that decides and one that measures; no process is started."""

    def __init__(self, folder: Path) -> None:
        self.scene = RepositoryScene(folder / "repository")
        catalogue = folder / "catalogue"
        for kind, row in (
            ("repositories", {"name": "training", "url": self.scene.url}),
            (
                "profiles",
                {
                    "name": "small",
                    "repository": "training",
                    "relevant_paths": ["src"],
                    "environment": {"kind": "interpreter", "python": "/usr/bin/python3"},
                    "launch": [{"command": ["{python}", "train.py"]}],
                    "criterion": {"kind": "crash"},
                },
            ),
        ):
            (catalogue / kind).mkdir(parents=True)
            (catalogue / kind / f"{row['name']}.yaml").write_text(yaml.safe_dump(row))
        self.database = Database(f"sqlite:///{folder}/firstbad.sqlite")
        self.database.migrate()
        self.control, self.worker = (
            WorkerContext(
                name=name,
                queue=name,
                database=self.database,
                hints=Queue(make_celery("redis+socket:///nonexistent/broker.sock")),
                catalogue=Catalogue(catalogue),
                root=folder / name,
            )
            for name in ("control", "worker")
        )
        self.ran: list[Trial] = []

    def create(self, good: str, bad: str, **more: Any) -> str:
        profile = self.control.catalogue.profile("small")
        request = {
            "profile": "small", "good": good, "bad": bad, "criterion": {"kind": "crash"},
            "budget": {"trials": 60}, **more,
        }  # fmt: skip
        row, _ = Bisections(self.database).create(
            request=request, profile=profile.model_dump(mode="json"), source="test"
        )
        advance(self.control, row.id)
        return row.id

    def row(self, bisection_id: str) -> BisectionRow:
        return Bisections(self.database).get(bisection_id)

    def measure(self, bisection_id: str, fails: Callable[[Trial], bool] | None = None) -> bool:
        """One trial, on the host that measures; False if none was wanted."""
        claim = self.worker.claims.claim(self.control.catalogue.profile("small").queue, "w")
        if claim is None:
            return False
        self.ran.append(claim.trial)
        if claim.trial.purpose is Purpose.REVERT:
            write_revert(self.worker, self.row(bisection_id), claim.trial)
        bad = (fails or self.holds_the_fault)(claim.trial)
        measured = Measurement(
            outcome=Outcome.CRASHED if bad else Outcome.COMPLETED,
            state=claim.trial.state,
            signature="ValueError in experts" if bad else "",
            worker=f"w{len(self.ran)}",
            seconds=1.0,
        )
        assert self.worker.claims.complete(claim, measured, {})
        return True

    def holds_the_fault(self, trial: Trial) -> bool:
        """Whether any of the files that the trial would run says so; read on the host that measures."""
        mirror = mirror_of(self.worker.root, self.worker.catalogue.repository("training"))
        mirror.require(trial.state.commit)
        return any(b"BAD" in mirror.read_file(trial.state.commit, f"src/{name}.py") for name in "ab")

    def finish(self, bisection_id: str, fails: Callable[[Trial], bool] | None = None) -> CulpritReport:
        for _ in range(100):
            advance(self.control, bisection_id)
            if self.row(bisection_id).status is Status.ENDED:
                report = self.row(bisection_id).report
                assert report is not None
                return CulpritReport.from_json(report)
            self.measure(bisection_id, fails)
        raise AssertionError("the bisection does not come to an end")


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    hosts = Hosts(tmp_path)
    yield hosts
    hosts.database.close()


def history(scene: RepositoryScene, *after: dict[str, str]) -> list[str]:
    """Four good commits, the culprit (the fourth line of a.py), and commits after it."""
    base = {"src___a__py": model(), "src___b__py": model(), "docs__md": "0"}
    plans = [base, {"src___b__py": model(_1="x")}, {"src___b__py": model(_1="y")}]
    plans += [{"src___a__py": model(_11="more")}, {"src___a__py": model(_11="more", _3="BAD")}]
    return [scene.commit(f"Change {n}", **plan) for n, plan in enumerate([*plans, *after])]


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
