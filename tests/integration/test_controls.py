"""Bisections of speed on a machine that slows down: with controls beside the trials, and without.

Real git, real processes; the job stands for a training script and writes what the probe would. How fast the
machine is stands in a file outside of the tree, and every run makes it slower, as heat does.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bisection.adapters.storage.bisections import Status
from bisection.criteria import Verdict
from bisection.finding import FindingKind
from bisection.ledger import Purpose
from bisection.measurement import Measurement, Outcome
from bisection.rendering.terminal import render_text
from bisection.report import CulpritReport
from bisection.search import Search
from tests.integration.two_hosts import Hosts
from workers.advancing import advance
from workers.control_run import CONTROL_LOG
from workers.pool import work

JOB = """
import json, os, pathlib, sys
steps, pace_file = int(sys.argv[1]), pathlib.Path(sys.argv[2])
pace = float(pace_file.read_text())
pace_file.write_text(str(max(0.75, pace - 0.02)))
speed, samples = (float(word) for word in pathlib.Path("src/speed.txt").read_text().split())
assert speed, "this commit does not run"
peak = {"rank": 0, "step": 1, "phase": "forward", "instant": "job", "allocated_bytes": 8, "reserved_bytes": 8,
        "breakdown": [{"component": "vision", "category": "parameters", "bytes": 8}]}
row = {
    "version": 1, "rank": 0, "world_size": 1, "status": "completed", "error": None, "invalid": [],
    "device": "cpu", "hardware": "cpu", "torch": "", "peak": peak,
    "steps": [{"step": n, "peak_bytes": 8, "retained_bytes": 1, "seconds": 500 * samples / speed / pace,
               "loss_tokens": int(100 * samples), "image_tokens": int(400 * samples), "padding_tokens": 0,
               "patches": int(1600 * samples)} for n in range(steps)],
    "time": [], "data": {"real": True, "images": 3}, "trainable": {"vision": 5}, "patches": {}, "notes": [],
    "oom": None, "imports": {}, "instants": [],
}
folder = pathlib.Path(os.environ["FIRSTBAD_PROBE_DIRECTORY"])
folder.joinpath("rank-0.json").write_text(json.dumps(row))
"""

Begin = Callable[..., "Machine"]


class Machine(Hosts):
    """One worker, which really runs what it claims."""

    def __init__(self, folder: Path, **profile: Any) -> None:
        self.pace = folder / "pace"
        self.pace.write_text("1.0")
        super().__init__(
            folder,
            environment={"kind": "interpreter", "python": sys.executable},
            launch=[{"command": ["{python}", "train.py", "{steps}", "{pace}"]}],
            places={"pace": str(self.pace)},
            queue="worker",
            relevant_paths=["src", "train.py"],
            limits={"trial_seconds": 60},
            **profile,
        )

    def history(self, *speeds: tuple[float, float]) -> list[str]:
        """Commits of this speed (useful tokens a second at full pace), and share of the samples in a step."""
        return [
            self.scene.commit(
                f"Change {n}", train__py=JOB, src___speed__txt=f"{speed} {samples}\n# {n}".split("#")[0]
            )
            for n, (speed, samples) in enumerate(speeds)
        ]

    def bisect(self, good: str, bad: str, threshold: float) -> CulpritReport:
        self.id = self.create(good, bad, criterion={"kind": "throughput", "threshold": threshold}, parallel=1)
        for _ in range(60):
            advance(self.control, self.id)
            row = self.row(self.id)
            if row.status is Status.ENDED:
                assert row.report is not None
                return CulpritReport.from_json(row.report)
            assert work(self.worker, threading.Event())
        raise AssertionError("the bisection does not come to an end")

    @property
    def measured(self) -> list[Measurement]:
        return [row.measurement for row in self.worker.trials.of(self.id) if row.measurement]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    machines: list[Machine] = []

    def begin(**profile: Any) -> Machine:
        machines.append(Machine(tmp_path, **profile))
        return machines[-1]

    yield begin
    for machine in machines:
        machine.database.close()


#: Each commit is another state; the fourth makes a step 15 % slower.
SPEEDS = [(1000 + n / 10, 1.0) for n in range(3)] + [(850 + n / 10, 1.0) for n in range(3)]


def test_controls_tell_the_commit_from_the_machine(begin: Begin) -> None:
    machine = begin(control="good_end")
    hashes = machine.history(*SPEEDS)
    report = machine.bisect(hashes[0], hashes[-1], threshold=920.0)
    assert report.finding.commits == (hashes[3],), report.finding.why
    for measured in machine.measured:
        assert measured.control is not None
        assert measured.control.state.commit == hashes[0]
        assert measured.control.outcome is Outcome.COMPLETED
        assert measured.seconds > measured.control.seconds > 0
    # Only facts are kept: how fast the code would be on a cool machine is derived.
    passed = [trial.useful_tokens_per_second or 0 for trial in report.trials if trial.verdict is Verdict.GOOD]
    assert min(passed) < 920
    row = machine.row(machine.id)
    assert row.specification is not None
    ledger = machine.worker.trials.ledger(machine.worker.trials.of(machine.id))
    search = Search.replay(row.specification, [entry for entry in ledger if entry.trial.is_evidence])
    assert search.next(1) == Search.replay(row.specification, search.ledger).next(1)
    controls = [trial.control_tokens_per_second for trial in report.trials]
    assert all(controls)
    assert f"control {controls[0]:,.1f} tokens/s" in render_text(report)
    assert "at the usual pace" in render_text(report)


@pytest.mark.long
def test_without_controls_the_same_machine_is_taken_for_the_code(begin: Begin) -> None:
    machine = begin()
    hashes = machine.history(*SPEEDS)
    report = machine.bisect(hashes[0], hashes[-1], threshold=920.0)
    assert report.finding.commits != (hashes[3],)
    assert all(measured.control is None for measured in machine.measured)


def test_a_commit_that_does_not_run_costs_no_control(begin: Begin) -> None:
    machine = begin(control="good_end")
    hashes = machine.history((1000, 1.0), (0, 1.0), (850, 1.0))
    machine.bisect(hashes[0], hashes[-1], threshold=920.0)
    controls = {measured.outcome: measured.control is not None for measured in machine.measured}
    assert controls == {Outcome.COMPLETED: True, Outcome.CRASHED: False}


def test_a_control_that_fails_says_nothing_of_the_commit_and_leaves_its_log(begin: Begin) -> None:
    machine = begin(control="good_end")
    hashes = machine.history((0, 1.0), (850, 1.0))
    report = machine.bisect(hashes[0], hashes[-1], threshold=920.0)
    assert report.finding.kind is not FindingKind.FOUND
    tried = [row for row in report.trials if row.state.commit == hashes[1]]
    assert {row.verdict for row in tried} == {Verdict.RETRY}
    assert all("this commit does not run" in row.reason for row in tried)
    assert CONTROL_LOG in tried[0].artifacts


def test_a_commit_that_halves_the_work_is_told_as_that(begin: Begin) -> None:
    machine = begin(control="good_end")
    hashes = machine.history(*[(1000 + n / 10, 1.0) for n in range(3)], (1000, 0.5), (1000.1, 0.5))
    report = machine.bisect(hashes[0], hashes[-1], threshold=920.0)
    assert (report.finding.kind, report.finding.problem) == (FindingKind.NONE, "other-work")
    assert "a step holds 800 image patches, one of the good end 1,600" in report.finding.why
    assert not [row for row in report.trials if row.purpose is Purpose.REVERT]
    assert report.finding.others[0].commits == (hashes[3],)
    assert report.compared == (hashes[2], hashes[3])
    assert report.summary.startswith("The work changed, not its speed: ")
    assert report.regression is None
