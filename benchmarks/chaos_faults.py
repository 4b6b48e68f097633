"""The faults: each hits a part of a running installation, and is relieved after a while.

Which one comes next, whom it hits and how long it lasts is drawn from the seed. What the moment of a fault
meets is the machine's: so a seed repeats the plan, and not each interleaving.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from random import Random

from benchmarks import chaos_machine
from benchmarks.chaos_scene import Scene
from bisection.adapters.queue import CONTROL, Queue, make_celery
from bisection.adapters.storage.claims import LEASE_SECONDS
from firstbad.embedded import LOCAL_QUEUE

OPERATIONS = ("claim", "beat", "write", "hand_back", "decide", "publish", "mark", "create", "move")
_MOMENTS = (".enter", ".commit", ".return")
#: Publishing commits nothing.
AIMS = tuple(f"{operation}{moment}" for operation in OPERATIONS for moment in _MOMENTS)
AIMS = tuple(aim for aim in AIMS if aim != "publish.commit")
#: How often each fault comes among the others; the aimed ones are a third of all.
WEIGHTS = {
    "kill api": 4, "kill control": 5, "kill worker": 8, "kill broker": 4, "kill training": 6,
    "kill supervisor": 4, "kill worker and supervisor": 4, "kill everything": 1, "kill up": 2,
    "freeze worker": 5, "freeze worker past its lease": 2, "freeze control": 3, "freeze api": 2,
    "freeze broker": 2, "freeze training": 2, "flush broker": 5, "hints of any kind": 5,
    "end worker": 4, "deploy": 2, "database away": 4, "database restart": 3, "disk full": 3,
    "network cut": 4, "aimed kill": 30, "aimed freeze": 10,
}  # fmt: skip
#: Some points are passed seldom: an aim waits there, while others are made.
_MOST_AIMS = 8


class Faults:
    """Makes one fault after another; `relieve` ends those whose time has come."""

    def __init__(self, scene: Scene, random: Random, *, network: bool) -> None:
        self._scene = scene
        self._random = random
        self._reliefs: list[tuple[float, Callable[[], None]]] = []
        self._frozen: set[int] = set()
        self._left_out = set() if network else {"network cut"}
        if not scene.small_disk:
            self._left_out.add("disk full")
        if scene.postgresql is None:
            self._left_out.add("database restart")
        self._plan: list[str] = []
        self._aims: list[str] = []
        self._cut: threading.Timer | None = None
        self.made: Counter[str] = Counter()
        self.reached: Counter[str] = Counter()  #: where the aimed ones hit

    @property
    def count(self) -> int:
        return self.made.total()

    def make_one(self) -> None:
        """The next fault of the plan that finds something to hit."""
        while True:
            if not self._plan:
                self._plan = [name for name, times in WEIGHTS.items() for _ in range(times)]
                self._random.shuffle(self._plan)
            name = self._plan.pop()
            if name not in self._left_out and self._make(name):
                if not name.startswith("aimed"):  # those count when they hit
                    self.made[name] += 1
                return

    def relieve(self, *, all_of_them: bool = False) -> None:
        self._count_hits()
        if all_of_them:
            for aim in self._scene.aims.iterdir():
                aim.unlink(missing_ok=True)
            if self._cut is not None:
                self._cut.join()
        for due in [one for one in self._reliefs if all_of_them or one[0] <= time.monotonic()]:
            self._reliefs.remove(due)
            due[1]()

    def _make(self, name: str) -> bool:
        random = self._random
        match name.split():
            case ["kill", "everything"]:
                return self._kill_everything()
            case ["kill", "up"]:
                return self._signal_up(signal.SIGKILL)
            case ["deploy"]:
                return self._signal_up(signal.SIGTERM)
            case ["kill", "broker"] if self._scene.broker is not None:
                self._scene.broker.kill(to_start_again=True)
                self._later(random.uniform(0, 4), self._scene.broker.start_again)
                return True
            case ["kill", part, *others]:
                return self._signal(part, signal.SIGKILL) and all(
                    self._signal(other, signal.SIGKILL) for other in others if other != "and"
                )
            case ["end", part]:
                return self._signal(part, signal.SIGTERM)
            case ["freeze", part, *long]:
                seconds = LEASE_SECONDS + random.uniform(2, 8) if long else random.uniform(0.5, 5)
                return self._freeze(part, seconds)
            case ["aimed", kind]:
                return self._aim(kind)
            case ["flush", "broker"]:
                return self._flush()
            case ["hints", *_]:
                return self._hint()
            case ["database", "away"]:
                return self._database_away()
            case ["database", "restart"] if self._scene.postgresql is not None:
                if self._cut is not None and self._cut.is_alive():
                    return False  # it could not listen
                self._scene.postgresql.kill_and_start_again()
                return True
            case ["disk", "full"]:
                return self._fill_disk()
            case ["network", "cut"]:
                return self._cut_network(random.uniform(0.5, 8))
        raise AssertionError(name)

    def _later(self, seconds: float, relief: Callable[[], None]) -> None:
        self._reliefs.append((time.monotonic() + seconds, relief))

    def _signal(self, part: str, signum: signal.Signals) -> bool:
        there = [pid for pid in self._scene.processes(part) if pid not in self._frozen]
        if not there:
            return False
        with suppress(ProcessLookupError):
            os.kill(self._random.choice(there), signum)
        return True

    def _freeze(self, part: str, seconds: float) -> bool:
        broker = self._scene.broker
        there = [broker.process.pid] if part == "broker" and broker else self._scene.processes(part)
        there = [pid for pid in there if pid not in self._frozen]
        if not there or (seconds > LEASE_SECONDS and len(self._frozen) > 1):
            return False
        self._hold(self._random.choice(there), seconds, freeze=True)
        return True

    def _hold(self, pid: int, seconds: float, *, freeze: bool) -> None:
        def thaw() -> None:
            self._frozen.discard(pid)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

        self._frozen.add(pid)
        if freeze:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        self._later(seconds, thaw)

    def _aim(self, kind: str) -> bool:
        """Aim at the next point. It is a fault once somebody comes by there."""
        if sum(file.suffix in _MOMENTS for file in self._scene.aims.iterdir()) >= _MOST_AIMS:
            return False
        if not self._aims:
            self._aims = list(AIMS)
            self._random.shuffle(self._aims)
        point = self._aims.pop()
        signum = signal.SIGKILL if kind == "kill" else signal.SIGSTOP
        written = self._scene.aims / "new"
        written.write_text(str(int(signum)))
        written.rename(self._scene.aims / point)
        return True

    def _count_hits(self) -> None:
        for taken in self._scene.aims.glob("taken-*"):
            _, point, pid = taken.name.split("-")
            freezes = taken.read_text() == str(int(signal.SIGSTOP))
            taken.unlink()
            self.made["aimed freeze" if freezes else "aimed kill"] += 1
            self.reached[point] += 1
            if freezes:
                self._hold(int(pid), self._random.uniform(1, 6), freeze=False)

    def _kill_everything(self) -> bool:
        """Power is lost: nothing is left to clean up after anything."""
        for pid in self._scene.installation.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return True

    def _signal_up(self, signum: signal.Signals) -> bool:
        process = self._scene.installation.process
        if process is None or process.poll() is not None:
            return False
        process.send_signal(signum)
        return True

    def _cut_network(self, seconds: float) -> bool:
        if self._cut is not None and self._cut.is_alive():
            return False
        chaos_machine.set_loopback(up=False)
        # A thread of its own heals it: what we ask ourselves meanwhile may wait for that.
        self._cut = threading.Timer(seconds, chaos_machine.set_loopback, kwargs={"up": True})
        self._cut.start()
        return True

    def _flush(self) -> bool:
        client = self._scene.redis()
        try:
            client.flushall()
        except Exception:  # it is away just now: nothing to flush
            return False
        finally:
            client.close()
        return True

    def _hint(self) -> bool:
        """Messages that come twice, late, in any order, and of what does not exist."""
        queue = Queue(make_celery(self._scene.broker_url.replace("unix://", "redis+socket://")))
        try:
            known = [row.id for row in self._scene.rows("SELECT id FROM bisections")]
        except Exception:  # the database is away just now
            return False
        hints: list[Callable[[], bool]] = []
        for _ in range(10):
            bisection = self._random.choice([*known, "0" * 16])
            hints.append(lambda bisection=bisection: queue.advance(bisection))  # type: ignore[misc]
            hints.append(lambda: queue.work(LOCAL_QUEUE))
        hints.append(lambda: queue.settle("of nobody"))
        hints.append(lambda: queue.work(CONTROL))
        self._random.shuffle(hints)
        sent = [hint() for hint in hints]
        return all(sent)

    def _database_away(self) -> bool:
        postgresql = self._scene.postgresql
        if postgresql is not None:
            try:
                self._scene.rows(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
            except Exception:  # it is away already
                return False
            return True
        path = self._scene.installation.settings.database_url.database
        assert path is not None
        connection = sqlite3.connect(path, timeout=5, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            connection.close()
            return False

        self._later(self._random.uniform(1, 8), connection.close)
        return True

    def _fill_disk(self) -> bool:
        file = self._scene.installation.home / "filler"
        if file.exists():
            return False
        chaos_machine.fill(file)
        self._later(self._random.uniform(0.5, 3), lambda: file.unlink(missing_ok=True))
        return True
