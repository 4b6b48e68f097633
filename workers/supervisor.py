"""A program that owns the processes of one trial, and outlives none of them.

Started by path (``python supervisor.py ... -- COMMAND``) with a pipe as standard
input: when that pipe ends, the owner is gone, however it went. Every descendant,
daemons in a session of their own included, becomes our child when its parent dies
(PR_SET_CHILD_SUBREAPER), so a walk through /proc finds all of them: TERM, one
second, KILL. Standard library only, nothing of firstbad's: it must start anywhere.

Not covered: a SIGKILL of this very process. The owner then calls `kill_marked`.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

#: Set in the trial's environment, so that its processes can be told from all others.
MARK = "FIRSTBAD_TRIAL_MARK"
TERM_SECONDS = 1.0
#: A process in the kernel cannot be killed; after this long it is reported, not waited for.
KILL_SECONDS = 10.0
#: How often the parent is looked at too: a process that the owner forked could hold its end of the pipe.
OWNER_SECONDS = 2.0
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(kw_only=True)
class Result:
    """How the trial's command ended. Exactly one of exit_code and signal is set if it was started."""

    exit_code: int | None = None
    signal: int | None = None
    timed_out: bool = False
    owner_died: bool = False
    stopped: bool = False  #: we were told to stop by a signal
    seconds: float = 0.0
    left_behind_killed: int = 0  #: processes still alive when the command itself had ended
    survivors: int = 0  #: processes that even KILL did not end
    output_bytes: int = 0  #: written by the command; what is above the limit was left out
    error: str = ""  #: why the command could not be started
    #: processes of this control group, and of this host, that the kernel killed for memory meanwhile
    memory_kills: int = 0
    memory_kills_on_host: int | None = None  #: None where the kernel does not tell
    kernel: list[str] = field(default_factory=list)  #: what its log says of that, and of GPUs (Xid)
    gpu_bytes_of_others: int | None = None  #: before the command, on the fullest of its GPUs
    notes: list[str] = field(default_factory=list)


class KernelWitness:
    """What the kernel did while the command ran: kills for memory, and errors of a GPU.

    Each source may be closed to us; then it says nothing. The host's counter knows every kill, of others too;
    that of our own control group only ours, but not where a container has another one.
    """

    _SAID = re.compile(r"out of memory: Killed process \d+|NVRM: .*(Xid|fallen off the bus)", re.IGNORECASE)
    _MOST_LINES = 20

    def __init__(self) -> None:
        self._own, self._host = _counted(_own_memory_events()) or 0, _counted(Path("/proc/vmstat"))
        self._log = -1
        with suppress(OSError):
            self._log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._log, 0, os.SEEK_END)

    def tell(self, result: Result) -> None:
        result.memory_kills = max((_counted(_own_memory_events()) or 0) - self._own, 0)
        host = _counted(Path("/proc/vmstat"))
        if host is not None and self._host is not None:
            result.memory_kills_on_host = host - self._host
        while self._log >= 0 and len(result.kernel) < self._MOST_LINES:
            try:
                record = os.read(self._log, 8192).decode(errors="replace")
            except BrokenPipeError:  # records were overwritten before we read them; the next are there
                continue
            except OSError:
                break
            message = record.partition(";")[2].partition("\n")[0]
            if self._SAID.search(message):
                result.kernel.append(message[:300])


def _own_memory_events() -> Path:
    """The file of our control group with a line ``oom_kill N``; of version 2, or 1."""
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, group = line.split(":", 2)
            top = Path("/sys/fs/cgroup")
            if "memory" in controllers.split(","):
                return top / "memory" / group.lstrip("/") / "memory.oom_control"
            events = top / group.lstrip("/") / "memory.events"
            if not controllers and events.exists():
                return events
    return Path("/nonexistent")


def _counted(file: Path) -> int | None:
    with suppress(OSError, ValueError):
        for line in file.read_text(encoding="utf-8").splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return None


class BoundedOutput:
    """The first and the last half of what is written, on disk; the middle of a flood is left out."""

    def __init__(self, path: Path, limit_bytes: int) -> None:
        self._file = path.open("wb", buffering=0)
        self._half = max(limit_bytes // 2, 1)
        self._tail = bytearray()
        self.total_bytes = 0

    def write(self, data: bytes) -> None:
        room = max(self._half - self.total_bytes, 0)
        self.total_bytes += len(data)
        self._file.write(data[:room])
        self._tail += data[room:]
        if len(self._tail) > 2 * self._half:
            del self._tail[: -self._half]

    def close(self) -> None:
        tail = bytes(self._tail[-self._half :])
        left_out = self.total_bytes - min(self.total_bytes, self._half) - len(tail)
        if left_out:
            self._file.write(b"\n[... %d bytes left out ...]\n" % left_out)
        self._file.write(tail)
        self._file.close()


def supervise(command: list[str], time_limit: float, output: BoundedOutput) -> Result:
    """Runs the command to its end, the time limit, or the end of the owner. Leaves no process."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER was refused")
    result = Result()
    wake, wakened = os.pipe()
    os.set_blocking(wakened, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wakened)
    asked_to_stop: list[int] = []
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for stop in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(stop, lambda number, _: asked_to_stop.append(number))
    witness = KernelWitness()
    started = time.monotonic()
    owner = os.getppid()
    try:
        main = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: _of_the_trial(libc),
        )
    except OSError as error:
        result.error = f"{command[0]} could not be started: {error}"
        return result
    assert main.stdout is not None
    pipe = main.stdout.fileno()
    os.set_blocking(pipe, False)
    watched = {0, pipe, wake}
    status: int | None = None
    while status is None:
        left = started + time_limit - time.monotonic()
        if left <= 0:
            result.timed_out = True
            break
        ready, _, _ = select.select(list(watched), [], [], min(left, OWNER_SECONDS))
        if wake in ready:
            _read(wake)
        if pipe in ready and not _copy(pipe, output):
            watched.discard(pipe)
        if (0 in ready and not _read(0)) or os.getppid() != owner:
            result.owner_died = True
            break
        if asked_to_stop:
            result.stopped = True
            break
        status = _reap().get(main.pid)
    result.seconds = time.monotonic() - started
    others = {pid for pid in descendants(os.getpid()) if pid != main.pid}
    if status is not None:
        result.left_behind_killed = len(others)
    ended, result.survivors = _end_all(pipe, output)
    status = ended.get(main.pid, status)
    while _copy(pipe, output, at_most=1 << 20):
        if not select.select([pipe], [], [], 0)[0]:
            break
    main.stdout.close()
    main.returncode = 0  # reaped above: keeps Popen's own finalizer from asking for it again
    if status is not None:
        if os.WIFSIGNALED(status):
            result.signal = os.WTERMSIG(status)
        else:
            result.exit_code = os.WEXITSTATUS(status)
    result.output_bytes = output.total_bytes
    witness.tell(result)
    return result


def _of_the_trial(libc: ctypes.CDLL) -> None:
    # If we are killed, at least the first process goes with us.
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    with suppress(OSError):  # where memory ends, the kernel shall take the trial, not its worker
        Path("/proc/self/oom_score_adj").write_text("500", encoding="ascii")


def descendants(ancestor: int) -> set[int]:
    """Every living process below ``ancestor``; zombies are not alive."""
    children: dict[int, list[int]] = {}
    alive = set()
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            fields = _stat(int(entry))
            if fields:
                children.setdefault(int(fields[1]), []).append(int(entry))
                if fields[0] not in ("Z", "X"):
                    alive.add(int(entry))
    found: set[int] = set()
    waiting = [ancestor]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child not in found:
                found.add(child)
                waiting.append(child)
    return found & alive


def kill_marked(mark: str) -> int:
    """Kills every process that carries the mark in its environment; how many that were.

    For the owner, when the supervisor itself was killed. A process of another user's
    cannot be read and is not found.
    """
    wanted = f"{MARK}={mark}".encode()
    killed: set[int] = set()
    deadline = time.monotonic() + KILL_SECONDS
    while time.monotonic() < deadline:
        marked = {pid for pid in _processes() if wanted in _environment(pid) and pid != os.getpid()}
        if not marked:
            break
        killed |= marked
        for pid in marked:
            _send(pid, signal.SIGKILL)
        time.sleep(0.02)
    return len(killed)


def _end_all(pipe: int, output: BoundedOutput) -> tuple[dict[int, int], int]:
    """TERM, a second, KILL; until no descendant is left. Keeps reading, or a full pipe would hold them."""
    statuses: dict[int, int] = {}
    began = time.monotonic()
    told: set[int] = set()
    while True:
        living = descendants(os.getpid())
        statuses |= _reap()
        since = time.monotonic() - began
        if not living or since > TERM_SECONDS + KILL_SECONDS:
            return statuses, len(living)
        for pid in living:
            if since >= TERM_SECONDS:
                _send(pid, signal.SIGKILL)
            elif pid not in told:
                _send(pid, signal.SIGTERM)
                _send(pid, signal.SIGCONT)
                told.add(pid)
        _copy(pipe, output)
        time.sleep(0.02)


def _send(pid: int, number: signal.Signals) -> None:
    """Signals the process that has the pid now, never a later one of the same number."""
    before = _stat(pid)
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except OSError:  # a kernel without pidfds
        with suppress(OSError):
            os.kill(pid, number)
        return
    try:
        if before and _stat(pid)[19:20] == before[19:20]:  # field 22: when it started
            signal.pidfd_send_signal(handle, number)
    except OSError:
        pass
    finally:
        os.close(handle)


def _reap() -> dict[int, int]:
    """Wait statuses of the children that ended."""
    statuses: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return statuses
        if pid == 0:
            return statuses
        statuses[pid] = status


def _stat(pid: int) -> list[str]:
    """/proc/PID/stat from the third field (the state) on; empty if the process is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def _processes() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 4096)
    except BlockingIOError:
        return b"\0"
    except OSError:
        return b""


def _copy(pipe: int, output: BoundedOutput, at_most: int = 65536) -> bool:
    """Moves what is in the pipe to the output; False at its end."""
    try:
        data = os.read(pipe, at_most)
    except BlockingIOError:
        return True
    except OSError:
        return False
    output.write(data)
    return bool(data)


def write_atomically(path: Path, text: str) -> None:
    """The file appears whole or not at all."""
    descriptor, scratch = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(scratch, path)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Run a command and leave no process of it behind.")
    parser.add_argument("--time-limit", type=float, required=True, metavar="SECONDS")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE")
    parser.add_argument("--output-limit", type=int, required=True, metavar="BYTES")
    parser.add_argument("--result", type=Path, required=True, metavar="FILE")
    parser.add_argument("command", nargs="+", metavar="COMMAND")
    options = parser.parse_args(arguments)
    output = BoundedOutput(options.output, options.output_limit)
    try:
        result = supervise(options.command, options.time_limit, output)
    finally:
        output.close()
    write_atomically(options.result, json.dumps(asdict(result)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
