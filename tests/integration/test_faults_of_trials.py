"""The table of faults: every way for a trial to end that this machine can produce, produced for real.

Whatever happens, the outcome is the right one, no process lives on, and nothing half-written stays.
docs/reference/faults.md shows the table to people.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from bisection.commits import State
from bisection.measurement import Measurement, Outcome
from tests.integration.test_trial_run import Host, job
from workers import supervisor

#: Python 3.12 warns of a fork beside another test's threads; the child here takes none of their locks.
pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A training program that ends in some way, and what a trial of it must come to."""

    program: str
    outcome: Outcome
    signature: str = ""
    says: str = ""  #: in the reason
    note: str = ""  #: in one of the notes
    doubtful: bool = False
    capacity_bytes: int | None = None
    profile: dict[str, Any] = field(default_factory=dict)


DAEMONS = """
import os, signal, subprocess, sys, time
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
            time.sleep(600)
        os._exit(0)
subprocess.Popen(["sh", "-c", "sleep 600 & sleep 600"], start_new_session=True)
"""
#: Children make children for as long as they can: what was seen a moment ago is not all there is.
BREEDERS = """
import os, time
until = time.monotonic() + 1.0
while time.monotonic() < until:
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        time.sleep(0.2)
        if os.fork():
            time.sleep(600)
        time.sleep(600)
    time.sleep(0.05)
"""
NCCL = (
    "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, "
    "NumelIn=466119168, Timeout(ms)=600000) ran for 600060 milliseconds before timing out."
)
FAULTS = {
    "the device's allocator refuses": Fault(
        program=job(), capacity_bytes=999, outcome=Outcome.OUT_OF_MEMORY, signature="out_of_memory",
        says="the device's allocator refused on rank 0",
    ),
    "a library's call for device memory is refused": Fault(
        program="import os; os.write(2, b\"NCCL WARN Cuda failure 'out of memory'\\n\"); os.abort()",
        outcome=Outcome.OUT_OF_MEMORY, signature="out_of_memory", says="outside of torch's allocator",
    ),
    "the host refuses memory (RLIMIT_AS)": Fault(
        program="import resource; resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30)); bytearray(2**32)",
        outcome=Outcome.CRASHED, signature="host_out_of_memory", says="MemoryError",
    ),
    "somebody kills it": Fault(
        program="import os; os.kill(os.getpid(), 9)", outcome=Outcome.LOST,
        says="not by firstbad, and not by the kernel for memory",
    ),
    "the code raises": Fault(
        program="def f():\n  raise KeyError('experts')\nf()", outcome=Outcome.CRASHED,
        signature="KeyError: 'experts' @ train.py:f", says="KeyError",
    ),
    "the code exits": Fault(
        program="import os; os._exit(5)", outcome=Outcome.CRASHED, signature="exit code 5",
    ),
    "the code reads where nothing is": Fault(
        program="import ctypes; ctypes.string_at(0)", outcome=Outcome.CRASHED, signature="signal SIGSEGV",
        doubtful=True,
    ),
    "it hangs": Fault(
        program="import time; time.sleep(600)", outcome=Outcome.TIMED_OUT, signature="timed_out",
        profile={"limits": {"trial_seconds": 1}}, says="still running after 1 s",
    ),
    "it hangs and does not hear": Fault(
        program="import os, signal, time\nsignal.signal(15, signal.SIG_IGN)\nos.kill(os.getpid(), 19)",
        outcome=Outcome.TIMED_OUT, signature="timed_out", profile={"limits": {"trial_seconds": 1}},
    ),
    "a collective never ends": Fault(
        program=f"raise RuntimeError({NCCL!r})", outcome=Outcome.TIMED_OUT, signature="hang", doubtful=True,
        says="a collective never ended",
    ),
    "the network fails": Fault(
        program="raise OSError('Connection reset by peer')", outcome=Outcome.LOST, says="comes and goes",
    ),
    "one rank fails and the other waits for it": Fault(
        program="import os, time\nif os.environ['RANK'] == '1': os._exit(7)\ntime.sleep(600)",
        outcome=Outcome.CRASHED, signature="exit code 7",
        profile={"launch": [{"command": ["{python}", "train.py"], "processes": 2}]},
    ),
    "daemons stay behind": Fault(
        program=DAEMONS + job(), outcome=Outcome.COMPLETED,
        note="processes outlived the command and were killed",
    ),
    "children make children": Fault(
        program=BREEDERS + job(), outcome=Outcome.COMPLETED,
        note="processes outlived the command and were killed",
    ),
    "it floods its output": Fault(
        program="for n in range(10**5): print(f'line {n} of a flood of output')\n" + job(),
        outcome=Outcome.COMPLETED, profile={"privacy": {"samples": "leave"}},
    ),
    "it measures nothing": Fault(
        program="pass", outcome=Outcome.INVALID, says="rank 0 left no measurement",
    ),
    "it leaves half a measurement": Fault(
        program="open(__import__('os').environ['FIRSTBAD_PROBE_DIRECTORY'] + '/rank-0.json', 'w').write('{')",
        outcome=Outcome.INVALID, says="no measurement to trust",
    ),
    "the Python is not there": Fault(
        program="pass", outcome=Outcome.UNBUILDABLE, says="environment.python",
        profile={"environment": {"kind": "interpreter", "python": "/nowhere/python"}},
    ),
}  # fmt: skip


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path)
    made.profile_row["launch"] = [{"command": ["{python}", "train.py", "steps={steps}"]}]
    yield made
    assert_nothing_is_left(made)


def assert_nothing_is_left(host: Host) -> None:
    """No process of a trial, no file of one, and in what is kept nothing that is not whole."""
    deadline = time.monotonic() + 15  # the init process takes seconds to reap orphans
    while living(host) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not living(host)
    assert list((host.root / "trials").iterdir()) == []
    for kept in (host.root / "workspaces").glob("*"):
        assert (kept / "record.json").is_file(), f"{kept} has no record of what is in it"


def living(host: Host) -> list[int]:
    root = str(host.root).encode()
    return [
        pid
        for pid in supervisor._processes()
        if pid != os.getpid()
        and (supervisor._stat(pid) or ["Z"])[0] != "Z"
        and any(root in word for word in (*supervisor._environment(pid), _command(pid)))
    ]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def rows(names: Iterable[str], long: Container[str]) -> list[Any]:
    """The rows of a table, those that take long marked so."""
    return [pytest.param(name, marks=[pytest.mark.long] if name in long else []) for name in names]


@pytest.mark.parametrize("name", rows(FAULTS, long=("one rank fails and the other waits for it",)))
def test_every_fault_gives_its_outcome_and_leaves_nothing(host: Host, name: str) -> None:
    fault = FAULTS[name]
    state = State(commit=host.commit(train__py=fault.program))
    result = host.run(state, capacity_bytes=fault.capacity_bytes, **fault.profile)
    measured = result.measurement
    assert (measured.outcome, measured.signature) == (fault.outcome, fault.signature), measured.reason
    assert measured.doubtful == fault.doubtful
    assert fault.says in measured.reason
    assert any(fault.note in note for note in measured.notes) or not fault.note
    if name == "it floods its output":
        log = result.artifacts["log.txt"].decode()
        assert log.startswith("line 0 of")
        assert "bytes left out" in log
        assert log.endswith("trained in <workspace>\n")
        assert len(log) <= 2**20


# -- the host's memory, by the kernel's own hand -------------------------------------


class MemoryGroup:
    """A control group of this machine's, below that of this process, with little memory."""

    def __init__(self, limit_bytes: int) -> None:
        events = supervisor._own_memory_events()
        if not events.exists():
            pytest.skip("the control group of this process shows no memory controller")
        self.folder = events.parent / f"firstbad-{os.getpid()}-{time.monotonic_ns()}"
        name = "memory.limit_in_bytes" if events.name == "memory.oom_control" else "memory.max"
        try:
            self.folder.mkdir()
            (self.folder / name).write_text(str(limit_bytes))
        except OSError as error:
            if self.folder.exists():
                self.folder.rmdir()
            pytest.skip(f"this machine lets nobody limit memory: {error}")

    def enter(self) -> None:
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def remove(self) -> None:
        deadline = time.monotonic() + 15
        while True:
            try:
                self.folder.rmdir()
                return
            except OSError:
                assert time.monotonic() < deadline, "processes stay in the control group"
                time.sleep(0.1)


@pytest.fixture
def memory_group() -> Iterator[MemoryGroup]:
    made = MemoryGroup(400 * 2**20)
    yield made
    made.remove()


@pytest.mark.long  # the host's count of kills would rise beside other tests
def test_the_kernels_kill_for_memory_is_told_by_its_own_count(host: Host, memory_group: MemoryGroup) -> None:
    """Worker and trial are in one control group, as in a container of theirs: the trial is what goes."""
    state = State(commit=host.commit(train__py="x = b'1' * 2**30"))
    measured = in_a_worker(lambda: host.run(state).measurement, before=memory_group.enter)
    assert (measured.outcome, measured.signature) == (Outcome.CRASHED, "host_out_of_memory")
    assert "the kernel killed" in measured.reason
    assert not measured.doubtful


def in_a_worker(work: Callable[[], Measurement], before: Callable[[], None]) -> Measurement:
    """Runs it in a forked process, as Celery's pool does."""
    ours, theirs = multiprocessing.Pipe()

    def run() -> None:
        before()
        theirs.send(json.dumps(work().to_json()))

    worker = multiprocessing.get_context("fork").Process(target=run)
    worker.start()
    assert ours.poll(60), "the worker did not outlive its trial"
    measured = Measurement.from_json(json.loads(ours.recv()))
    worker.join()
    return measured


# -- a disk that is full -------------------------------------------------------------


@pytest.fixture
def small_disk(host: Host) -> Iterator[Path]:
    host.root.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", str(host.root)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        (host.root / "trials").mkdir()
        pytest.skip(f"this machine lets nobody mount: {done.stderr.strip()}")
    try:
        yield host.root
        assert_nothing_is_left(host)
    finally:
        subprocess.run(["umount", "--lazy", str(host.root)], check=True)
        (host.root / "trials").mkdir()


FILLED = "open(__import__('os').environ['TMPDIR'] + '/x', 'wb').write(bytes(40_000_000))"


@pytest.mark.parametrize(
    "when", rows(("training", "before the trial", "after the command"), long=("before the trial",))
)
def test_a_full_disk_is_this_hosts_fault_and_the_next_trial_has_room(
    host: Host, small_disk: Path, when: str
) -> None:
    filler = small_disk / "filler"
    filling = f"open({str(filler)!r}, 'wb', buffering=0).write(bytes(40_000_000))\n"
    program = {
        "training": FILLED,
        "before the trial": "pass",
        # The rank's file is there; the supervisor's own result finds no room.
        "after the command": job().replace("sys.exit(", f"sys.stdout.flush(); {filling}sys.exit("),
    }[when]
    if when == "before the trial":
        host.run(State(commit=host.commit(train__py=job())))
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(100_000))
    measured = host.run(
        State(commit=host.commit(train__py=program, big=os.urandom(50_000).hex()))
    ).measurement
    assert measured.outcome is Outcome.LOST, measured.reason
    assert_nothing_is_left(host)
    filler.unlink(missing_ok=True)
    again = host.run(State(commit=host.commit(train__py=job()))).measurement
    assert again.outcome is Outcome.COMPLETED, again.reason


# -- a worker that is killed ----------------------------------------------------------

#: Phase of a trial to the function at whose beginning the worker gets its SIGKILL.
PHASES = {
    "workspace": "WorkingCopy.bring_to",
    "environment": "make_overlay",
    "launch": "run_supervised",
    "running": "last_line",
    "gathering": "gather",
    "writing": "trial_evidence",
    "giving back": "Workspaces.give_back",
    "cleaning up": "rmtree",
}


def kill_at(name: str) -> None:
    """SIGKILL to this process once it enters the function of that name; nothing of the code is replaced."""

    def watch(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_qualname == name:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(watch)


@pytest.mark.parametrize("phase", rows(PHASES, long=set(PHASES) - {"workspace", "running", "writing"}))
def test_a_worker_killed_in_any_phase_leaves_what_the_next_trial_sweeps(host: Host, phase: str) -> None:
    state = State(commit=host.commit(train__py=DAEMONS + job()))

    def run() -> None:
        kill_at(PHASES[phase])
        host.run(state)

    worker = multiprocessing.get_context("fork").Process(target=run)
    worker.start()
    worker.join(60)
    assert worker.exitcode == -signal.SIGKILL, "the phase was never reached"
    deadline = time.monotonic() + 30
    while living(host):
        assert time.monotonic() < deadline, "a process of the trial outlived its worker"
        time.sleep(0.05)
    measured = host.run(state).measurement
    assert measured.outcome is Outcome.COMPLETED, measured.reason


def test_a_supervisor_that_is_killed_alone_loses_the_trial(host: Host) -> None:
    killer = (
        "import os, signal, time\n"
        "up = os.getppid()\n"  # the starter of the ranks, and above it the supervisor
        "with open(f'/proc/{up}/stat') as file: above = int(file.read().rpartition(')')[2].split()[1])\n"
        "os.kill(above, signal.SIGKILL)\n"
        "time.sleep(600)\n"
    )
    measured = host.run(State(commit=host.commit(train__py=DAEMONS + killer))).measurement
    assert measured.outcome is Outcome.LOST
    assert "the supervisor ended with -9" in measured.reason


def test_a_lock_whose_worker_was_killed_before_it_had_a_folder_is_swept(host: Host) -> None:
    trials = host.root / "trials"
    trials.mkdir(parents=True)
    for name, age in (("old", 3600), ("new", 0)):
        (trials / f"{name}.lock").touch()
        os.utime(trials / f"{name}.lock", (time.time() - age,) * 2)
    assert host.run(State(commit=host.commit(train__py=job()))).measurement.outcome is Outcome.COMPLETED
    assert [left.name for left in trials.iterdir()] == ["new.lock"], "a worker may just be making its folder"
    (trials / "new.lock").unlink()
