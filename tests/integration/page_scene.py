"""A service with something on every page, served by uvicorn on loopback: for tests in a browser."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from bisection.adapters.storage.claims import Claims
from bisection.adapters.storage.roster import Roster
from bisection.ledger import Purpose, Trial
from bisection.progress import ANSWER_SO_FAR, progress
from bisection.report import CulpritReport, build_report
from tests.unit.report import samples
from tests.unit.service.scene import CAPACITY, PROFILE, ServiceScene, profile_file

LOG = (
    b"step 1\nloading the photographs\n<script>document.title = 'owned'</script>\n"
    + b"a line\n" * 500
    + b"last\n"
)
PLAN = {"commits": 25, "states": 26, "trials": 11.0, "seconds": 900.0, "gpu_hours": 0.0}


class PageScene:
    """Bisections in every state: planned, held, running, ended."""

    def __init__(self, folder: Path) -> None:
        self.scene = ServiceScene(folder)
        self.sample = samples.experts(
            subject="Keep the experts' activations <script>document.title='owned'</script>"
        )
        Roster(self.scene.database).seen("worker-1", "pool")
        self.planned = self._resolved(preview=True)
        limits = {"trial_seconds": 600, "gpu_hours_without_approval": 1}
        self.scene.write(
            "profiles",
            profile_file(
                PROFILE,
                criterion={"kind": "out_of_memory"},
                capacity_bytes=CAPACITY,
                queue="pool",
                limits=limits,
            ),
        )
        self.held = self._resolved(hold=True)
        self.ended = self._resolved()
        self.measure(self.ended, len(self.sample.ledger))
        self.finish(self.ended)
        self.running = self._resolved()
        self.measure(self.running, 9)
        self.start(self.running)

    def report(self) -> CulpritReport:
        sample = self.sample
        return build_report(sample.spec, sample.ledger, sample.finding, sample.evidence)

    def followed(self) -> str:
        """One whose first trial is still to come."""
        return self._resolved()

    def planned_and_held(self) -> tuple[str, str]:
        return self._resolved(preview=True), self._resolved(hold=True)

    def _resolved(self, *, preview: bool = False, hold: bool = False) -> str:
        bisection_id = self.scene.create()
        assert self.scene.bisections.resolve(bisection_id, self.sample.spec, PLAN, preview=preview, hold=hold)
        return bisection_id

    def measure(self, bisection_id: str, until: int) -> None:
        """As workers do: the sample's next trials, up to so many in all, and the answer so far."""
        scene = self.scene
        done = scene.trials.ledger(scene.trials.of(bisection_id))
        for entry in self.sample.ledger[len(done) : until]:
            # A queue of its own: a lease that ran out on a slow machine must not be claimed here.
            self._claimed(bisection_id, entry.trial, bisection_id)
            measured = entry.measurement.evolve(worker="worker-1")
            assert Claims(scene.database).complete(
                self._claim, measured, {"stdout.log": LOG, "run.json": b"{}"}
            )
        row = scene.bisections.get(bisection_id)
        assert row.specification is not None
        ledger = scene.trials.ledger(scene.trials.of(bisection_id))
        scene.bisections.note(bisection_id, ANSWER_SO_FAR, progress(row.specification, ledger, ()).to_json())

    def finish(self, bisection_id: str) -> None:
        """With the sample's finding and its report, whatever was measured."""
        assert self.scene.bisections.conclude(bisection_id, self.sample.finding)
        assert self.scene.bisections.finish(bisection_id, self.report().to_json())

    def start(self, bisection_id: str) -> None:
        """One more trial runs, and stays running."""
        state = self.sample.spec.range.commits[16]
        self._claimed(bisection_id, Trial(state=self.sample.spec.levels[0].state_of(state.hash), attempt=9,
                                          purpose=Purpose.SEARCH, why="halves 4 suspects"))  # fmt: skip

    def _claimed(self, bisection_id: str, trial: Trial, queue: str = "pool") -> None:
        scene = self.scene
        version = scene.bisections.get(bisection_id).version
        assert scene.trials.apply(bisection_id, version, queue=queue, add=[trial])
        claim = Claims(scene.database).claim(queue, "worker-1")
        assert claim is not None
        self._claim = claim

    @property
    def paths(self) -> dict[str, str]:
        """Every page by name."""
        trial = self.scene.trials.of(self.ended)[3]
        return {
            "list": "/",
            "new": "/new",
            "compare": "/compare",
            "workers": "/workers",
            "planned": f"/bisections/{self.planned}",
            "held": f"/bisections/{self.held}",
            "running": f"/bisections/{self.running}",
            "ended": f"/bisections/{self.ended}",
            "report": f"/reports/{self.ended}",
            "trial": f"/bisections/{self.ended}/trials/{trial.id}",
            "problem": "/nowhere",
            "explanation": "/errors/out-of-memory",
            "explanations": "/errors",
        }

    @contextmanager
    def served(self) -> Iterator[str]:
        """The URL of the service."""
        listener = socket.create_server(("127.0.0.1", 0))
        settings = uvicorn.Config(self.scene.app, log_level="error", timeout_graceful_shutdown=1)
        server = uvicorn.Server(settings)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
            listener.close()
            self.scene.database.close()
