"""A host that decides and one that measures, over one database and a real repository, without a process.

What a trial comes to is read from the files that it would run, on the host that measures.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from bisection.adapters.catalogue import Catalogue
from bisection.adapters.queue import Queue, make_celery
from bisection.adapters.storage.bisections import BisectionRow, Bisections, Status
from bisection.adapters.storage.database import Database
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

    def __init__(self, folder: Path, **profile: Any) -> None:
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
                    **profile,
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


def history(scene: RepositoryScene, *after: dict[str, str]) -> list[str]:
    """Four good commits, the culprit (the fourth line of a.py), and commits after it."""
    base = {"src___a__py": model(), "src___b__py": model(), "docs__md": "0"}
    plans = [base, {"src___b__py": model(_1="x")}, {"src___b__py": model(_1="y")}]
    plans += [{"src___a__py": model(_11="more")}, {"src___a__py": model(_11="more", _3="BAD")}]
    return [scene.commit(f"Change {n}", **plan) for n, plan in enumerate([*plans, *after])]
