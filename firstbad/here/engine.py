"""Workers as threads of this process: one that advances the search, and as many that run trials as asked for.

They are the workers of every installation; only their hints go through memory instead of a broker. As there,
a hint may be lost: each thread looks again after a second.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from bisection.adapters.queue import CONTROL
from bisection.adapters.storage.bisections import Status
from firstbad.here.question import session_file
from workers.advancing import advance
from workers.context import WorkerContext
from workers.outcomes import ABORT_SIGNATURE
from workers.pool import work
from workers.pulse import Pulse

_LOOK_SECONDS = 1.0
_PRESENCE_SECONDS = 10.0


class StoppedByCommand(RuntimeError):
    """The command ended in a way that stops the search."""


class LocalHints:
    """Hints between the threads of one process."""

    def __init__(self) -> None:
        self.advances = threading.Event()
        self.works = threading.Condition()

    def advance(self, bisection_id: str) -> bool:  # noqa: ARG002  # there is only one
        self.advances.set()
        return True

    def work(self, queue: str) -> bool:  # noqa: ARG002  # there is only one
        with self.works:
            self.works.notify()
        return True

    def settle(self, repository: str) -> bool:  # noqa: ARG002  # no CI reports here
        return True

    def announce(self, announcement_id: str) -> bool:  # noqa: ARG002  # nothing is told elsewhere
        return True

    def is_reachable(self) -> bool:
        return True


class Engine:
    """Moves one bisection on until it has ended. Used as a context manager; leaving it hands trials back."""

    def __init__(self, context: WorkerContext, hints: LocalHints, bisection_id: str, workers: int) -> None:
        self._id = bisection_id
        self._hints = hints
        self._leaving = threading.Event()
        self._context = replace(context, name=f"control@{socket.gethostname()}", queue=CONTROL)
        queue = str(context.bisections.get(bisection_id).profile["queue"])
        self._workers = [
            replace(context, name=f"run-{number + 1}@{socket.gethostname()}", queue=queue)
            for number in range(workers)
        ]
        self._done_before = {trial.id for trial in context.trials.of(bisection_id) if trial.measurement}
        self._presence = Pulse("presence", _PRESENCE_SECONDS, self._sign_in)
        self._threads = [
            threading.Thread(target=self._advance, name="control", daemon=True),
            *(
                threading.Thread(target=self._work, args=(one,), name=one.name, daemon=True)
                for one in self._workers
            ),
        ]

    def __enter__(self) -> Engine:
        self._sign_in()  # before the plan is made: it counts the workers
        self._presence.start()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._leaving.set()
        self._hints.advances.set()
        with self._hints.works:
            self._hints.works.notify_all()
        for thread in self._threads:
            thread.join()
        self._presence.stop()
        for one in self._workers:
            one.roster.left(one.name)

    def check(self) -> None:
        """Raises StoppedByCommand."""
        for trial in self._context.trials.of(self._id):
            measured = trial.measurement
            if measured and measured.signature == ABORT_SIGNATURE and trial.id not in self._done_before:
                raise StoppedByCommand(f"at {trial.trial.state.commit[:10]} {measured.reason}")

    def _sign_in(self) -> None:
        for one in self._workers:
            one.roster.seen(one.name, one.queue)

    def _advance(self) -> None:
        while not self._leaving.is_set():
            self._hints.advances.clear()
            try:
                self.check()
            except StoppedByCommand:
                return
            advance(self._context, self._id)
            if self._context.bisections.get(self._id).status is Status.ENDED:
                return
            self._hints.advances.wait(_LOOK_SECONDS)

    def _work(self, context: WorkerContext) -> None:
        while not self._leaving.is_set():
            if not work(context, self._leaving):
                with self._hints.works:
                    self._hints.works.wait(_LOOK_SECONDS)


@contextmanager
def session(home: Path) -> Iterator[None]:
    """This process's environment for the commands of its trials, in a file that only its owner reads."""
    file = session_file(home)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
        json.dump(dict(os.environ), opened)
    try:
        yield
    finally:
        file.unlink(missing_ok=True)
