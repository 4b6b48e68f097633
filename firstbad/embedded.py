"""`firstbad up`: everything on this machine, and nothing left behind.

One parent keeps the broker, the API, a control worker and the pool's workers
alive: a child that dies is started again. Each child follows its parent: should
the parent be killed, the API and the workers leave by themselves; the broker
stays, and the next `up` finds and uses it.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO

import httpx

from bisection.adapters.queue import CONTROL
from bisection.adapters.storage.roster import Roster
from firstbad import broker
from firstbad.bootstrap import open_catalogue, open_database, operator_token
from firstbad.settings import Settings, broker_socket

LOCAL_QUEUE = "local"
_STOP_SECONDS = 20.0
_LOOK_SECONDS = 0.3
_BACKLOG = 128
_LONGEST_BACKOFF_SECONDS = 10.0
#: A child that lived so long had started well: its death counts as the first.
_SOUND_SECONDS = 30.0
#: A child that dies so often while all are started cannot start; once is what a host does under stress.
_MOST_STARTS = 3
#: A child that dies is told at once; one that is slow has a busy machine.
_READY_SECONDS = 300.0
_LARGEST_LOG_BYTES = 10 * 2**20
_PR_SET_PDEATHSIG = 1

Say = Callable[[str], None]


class AlreadyRunning(RuntimeError):
    """Another `firstbad up` serves this home."""


class PortTaken(RuntimeError):
    """The port that FIRSTBAD_PORT names is in use; choose another or unset it."""


@dataclass(frozen=True, kw_only=True)
class Server:
    """How to reach a running `firstbad up`."""

    url: str
    pid: int
    token: str = field(repr=False)


def follow_parent(parent: int) -> None:
    """End this process when its parent ends, however that comes about (Linux)."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:  # it died before we asked
        os.kill(os.getpid(), signal.SIGTERM)


def find_running(settings: Settings) -> Server | None:
    """The `up` that serves this home, if one does and answers."""
    try:
        row = json.loads(settings.server_file.read_text())
        server = Server(url=row["url"], pid=int(row["pid"]), token=settings.token_file.read_text().strip())
        os.kill(server.pid, 0)  # else its port may be somebody else's by now
        answer = httpx.get(f"{server.url}/healthz", timeout=2)
    except (OSError, ValueError, OverflowError, KeyError, TypeError, httpx.HTTPError, httpx.InvalidURL):
        return None
    return server if answer.status_code == 200 else None


def listen(settings: Settings, host: str = "127.0.0.1") -> socket.socket:
    """A listener on the settings' port, or, where it is taken and nobody named it, on a free one.

    The parent keeps it for the API, so that no other program can take the port between two starts of
    the API, and a caller who comes just then waits instead of being refused. Raises PortTaken.
    """
    for port in (settings.port, 0):
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Inherited by every connection. asyncio sets it where a socket names its protocol, which one that is
        # handed over does not: without it the body of an answer waits up to 40 ms for the caller's delayed
        # acknowledgement of its headers.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            listener.bind((host, port))
        except OSError:
            listener.close()
            if settings.port_is_fixed:
                raise PortTaken(f"port {port} is in use; set FIRSTBAD_PORT to another") from None
            continue
        listener.listen(_BACKLOG)
        return listener
    raise PortTaken(f"no port of {host} is free")


@dataclass(kw_only=True)
class Child:
    """A process that is to live as long as its parent."""

    name: str
    start: Callable[[IO[bytes]], subprocess.Popen[bytes]]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    failures: int = 0  #: in a row: each before it had lived for a while
    started_at: float = 0.0
    start_again_at: float = 0.0

    def launch(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        if self.log.exists() and self.log.stat().st_size > _LARGEST_LOG_BYTES:
            self.log.replace(self.log.with_suffix(".old.log"))
        self.started_at = time.monotonic()
        with self.log.open("ab") as log:
            self.process = self.start(log)

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None


class Embedded:
    """The parent of everything; use as a context manager, then `watch`."""

    def __init__(self, settings: Settings, workers: int, say: Say) -> None:
        self._settings = settings
        self._workers = workers
        self._say = say
        self._signal: int | None = None
        self._lock: IO[str] | None = None
        self._socket = broker_socket(settings.home)
        self._listener: socket.socket | None = None
        self.broker = Child(name="broker", start=self._start_broker, log=self._log("broker"))
        self.children: list[Child] = []

    def __enter__(self) -> Embedded:
        settings = self._settings
        settings.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._take_lock()
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(signum, self._on_signal)
        try:
            database = open_database(settings)
            operator_token(settings, database)
            open_catalogue(settings)
            self._listener = listen(settings)
            if settings.bundles_broker:
                self._ensure_broker()
            self._leave_if_told()
            names = [f"{LOCAL_QUEUE}-{n + 1}" for n in range(self._workers)]
            self.children = [
                self._program("api", ["api", "--listener", str(self._listener.fileno())]),
                self._program("control", ["worker", "--queue", CONTROL, "--name", "control"]),
                *(self._program(name, ["worker", "--queue", LOCAL_QUEUE, "--name", name]) for name in names),
            ]
            roster = Roster(database)
            started = roster.now()
            for child in self.children:
                child.launch()
                self._leave_if_told()
            self._wait_until_ready(roster, len(names) + 1, started)
            database.close()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        row = {"url": self.url, "pid": os.getpid()}
        settings.server_file.write_text(json.dumps(row))
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        """Workers first, so that they hand their trials back while the rest still answers."""
        self._settings.server_file.unlink(missing_ok=True)
        _stop([child for child in self.children if child.name != "api"])
        _stop([child for child in self.children if child.name == "api"])
        if self._settings.bundles_broker:
            if self.broker.process is None:
                broker.shut_down(self._socket)
            else:
                _stop([self.broker])
        if self._listener:
            self._listener.close()
        if self._lock:
            self._lock.close()

    @property
    def url(self) -> str:
        assert self._listener is not None  # known from the start on
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def watch(self) -> None:
        """Keep every child alive until INT, TERM or HUP, whatever this machine lacks for a while."""
        while self._signal is None:
            try:
                if self._settings.bundles_broker:
                    self._ensure_broker()
                for child in self.children:
                    self._ensure(child)
            except (OSError, broker.BrokerFailed) as error:  # e.g. a full disk
                self._tell(f"{error}; trying again")
            time.sleep(_LOOK_SECONDS)

    def _tell(self, line: str) -> None:
        """What is said may go to a disk that is full: that is no reason to end."""
        with suppress(OSError):
            self._say(line)

    def _on_signal(self, signum: int, _frame: FrameType | None) -> None:
        # Only noted: raised here, it could hit between a child's start and our knowing of it.
        self._signal = signum

    def _leave_if_told(self) -> None:
        if self._signal is not None:
            raise SystemExit(128 + self._signal)

    def _take_lock(self) -> None:
        lock = (self._settings.home / "up.lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise AlreadyRunning(
                f"another `firstbad up` serves {self._settings.home}; stop it, or use it as it is"
            ) from None
        self._lock = lock

    def _log(self, name: str) -> Path:
        return self._settings.home / "logs" / f"{name}.log"

    def _start_broker(self, log: IO[bytes]) -> subprocess.Popen[bytes]:
        """What the broker held is worth nothing by design: damaged data is set aside, not mourned."""
        folder = self._settings.home / "valkey"
        try:
            return broker.start(folder, self._socket, log)
        except broker.BrokerFailed:
            if not (folder / "appendonlydir").exists():
                raise  # it was not its data
            aside = folder.with_name(f"valkey-damaged-{time.time_ns()}")
            folder.rename(aside)
            self._tell(f"the broker did not start; its data is set aside in {aside}")
            return broker.start(folder, self._socket, log)

    def _ensure_broker(self) -> None:
        """A server that answers is used whoever started it; otherwise start one."""
        if self.broker.alive or (self.broker.process is None and broker.answers(self._socket)):
            return
        if self.broker.process is None:
            self.broker.launch()
        else:
            self._ensure(self.broker)

    def _program(self, name: str, arguments: list[str]) -> Child:
        command = [sys.executable, "-m", "firstbad", *arguments, "--follow", str(os.getpid())]
        environment = {
            **os.environ,
            "FIRSTBAD_HOME": str(self._settings.home),
        }

        listener = self._listener

        def start(log: IO[bytes]) -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                command,
                pass_fds=[listener.fileno()] if name == "api" and listener else [],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Ctrl-C in the terminal is the parent's to handle, in its order.
                start_new_session=True,
            )

        return Child(name=name, start=start, log=self._log(name))

    def _ensure(self, child: Child) -> None:
        if child.alive:
            return
        now = time.monotonic()
        if child.start_again_at == 0.0:
            lived = now - child.started_at
            child.failures = 1 if lived > _SOUND_SECONDS else child.failures + 1
            wait = min(_LONGEST_BACKOFF_SECONDS, 0.2 * 2**child.failures) if child.failures > 1 else 0
            child.start_again_at = now + wait
            self._tell(f"{child.name} died and is started again; its log: {child.log}")
        if now >= child.start_again_at:
            child.start_again_at = 0.0
            child.launch()

    def _wait_until_ready(self, roster: Roster, workers: int, started: float) -> None:
        deadline = time.monotonic() + _READY_SECONDS
        while time.monotonic() < deadline:
            present = [row for row in roster.alive() if row.seen_at >= started]
            if len(present) >= workers and _healthy(self.url):
                return
            self._leave_if_told()
            for child in self.children:
                if not child.alive and child.failures >= _MOST_STARTS:
                    raise RuntimeError(f"{child.name} did not start; see {child.log}")
                self._ensure(child)
            time.sleep(0.1)
        raise RuntimeError(
            f"not ready after {_READY_SECONDS:.0f} s; see the logs in {self._log('api').parent}"
        )


def _healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/healthz", timeout=2).status_code == 200
    except httpx.HTTPError:
        return False


def _stop(children: list[Child]) -> None:
    """TERM to all, then KILL to whoever is still there."""
    living = [child.process for child in children if child.alive and child.process is not None]
    for process in living:
        process.terminate()
    deadline = time.monotonic() + _STOP_SECONDS
    for process in living:
        try:
            process.wait(timeout=max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
