"""The supervisor with real processes: whatever a trial starts, and however it ends, nothing lives on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from workers import ranks, supervisor
from workers.supervisor import MARK, BoundedOutput, kill_marked

#: A trial that starts children, a daemon in its own session, and some that ignore TERM; says when they run.
FAMILY = """
import os, signal, subprocess, sys, time
def daemon():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            time.sleep(600)
        os._exit(0)
daemon()
deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", deaf])
subprocess.Popen(["sh", "-c", "sleep 600 & sleep 600"], start_new_session=True)
open(sys.argv[1], "w").write("up")
time.sleep(float(sys.argv[2]))
"""


@pytest.fixture
def mark() -> Iterator[str]:
    value = uuid.uuid4().hex
    yield value
    kill_marked(value)


def marked(mark: str) -> set[int]:
    wanted = f"{MARK}={mark}".encode()
    return {
        pid
        for pid in supervisor._processes()
        if wanted in supervisor._environment(pid) and (supervisor._stat(pid) or ["Z"])[0] != "Z"
    }


def start_arguments(
    folder: Path, *command: str, time_limit: float = 60, output_limit: int = 1000
) -> list[str]:
    limits = ["--time-limit", str(time_limit), "--output-limit", str(output_limit)]
    files = ["--output", str(folder / "log"), "--result", str(folder / "result.json")]
    return [sys.executable, supervisor.__file__, *limits, *files, "--", *command]


def start(
    folder: Path, mark: str, *command: str, time_limit: float = 60, output_limit: int = 10_000
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        start_arguments(folder, *command, time_limit=time_limit, output_limit=output_limit),
        stdin=subprocess.PIPE,
        env={**os.environ, MARK: mark},
    )


def finish(process: subprocess.Popen[bytes], folder: Path) -> dict[str, Any]:
    process.wait(timeout=60)
    if process.stdin:
        process.stdin.close()
    result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return result


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.02)


def test_a_command_that_ends_tells_its_exit_code_and_output(tmp_path: Path, mark: str) -> None:
    code = "import sys; print('hello'); print('there', file=sys.stderr); sys.exit(3)"
    result = finish(start(tmp_path, mark, sys.executable, "-c", code), tmp_path)
    assert (result["exit_code"], result["signal"], result["timed_out"]) == (3, None, False)
    assert result["left_behind_killed"] == 0
    assert sorted((tmp_path / "log").read_text().split()) == ["hello", "there"]


def test_a_command_that_a_signal_ended_tells_which(tmp_path: Path, mark: str) -> None:
    result = finish(start(tmp_path, mark, "sh", "-c", "kill -SEGV $$"), tmp_path)
    assert (result["exit_code"], result["signal"]) == (None, signal.SIGSEGV)


def test_a_command_that_does_not_exist_is_told_as_that(tmp_path: Path, mark: str) -> None:
    result = finish(start(tmp_path, mark, "/nowhere/python"), tmp_path)
    assert "/nowhere/python could not be started" in result["error"]
    assert result["exit_code"] is None


def test_processes_that_outlive_the_command_are_killed_and_counted(tmp_path: Path, mark: str) -> None:
    result = finish(start(tmp_path, mark, sys.executable, "-c", FAMILY, str(tmp_path / "up"), "0"), tmp_path)
    assert result["exit_code"] == 0
    assert result["left_behind_killed"] >= 3
    assert result["survivors"] == 0
    assert not marked(mark)


def test_the_time_limit_ends_everything(tmp_path: Path, mark: str) -> None:
    command = (sys.executable, "-c", FAMILY, str(tmp_path / "up"), "600")
    result = finish(start(tmp_path, mark, *command, time_limit=2), tmp_path)
    assert result["timed_out"]
    assert result["signal"] == signal.SIGTERM
    assert not marked(mark)


@pytest.mark.parametrize("way", ["kill -9", "close"])
def test_when_the_owner_dies_nothing_of_the_trial_lives_on(tmp_path: Path, mark: str, way: str) -> None:
    #  owner (killed) -> supervisor -> family: the owner is a process of its own, as a worker is.
    owner_code = (
        "import subprocess, sys, time\n"
        "p = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE)\n"
        "sys.stdin.read()\n"
        "p.stdin.close(); p.wait()\n"
    )
    arguments = start_arguments(tmp_path, sys.executable, "-c", FAMILY, str(tmp_path / "up"), "600")
    owner = subprocess.Popen(
        [sys.executable, "-c", owner_code, *arguments], stdin=subprocess.PIPE, env={**os.environ, MARK: mark}
    )
    wait_for(tmp_path / "up")
    assert len(marked(mark)) >= 6
    if way == "kill -9":
        owner.kill()
    assert owner.stdin is not None
    owner.stdin.close()
    owner.wait(timeout=30)
    wait_for(tmp_path / "result.json")
    assert json.loads((tmp_path / "result.json").read_text())["owner_died"]
    deadline = time.monotonic() + 10
    while marked(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not marked(mark)


def test_an_owners_death_is_seen_though_a_fork_of_it_holds_the_pipe(tmp_path: Path, mark: str) -> None:
    owner_code = (
        "import os, subprocess, sys, time\n"
        "p = subprocess.Popen(sys.argv[2:], stdin=subprocess.PIPE)\n"
        "child = os.fork()\n"
        "if child: open(sys.argv[1], 'w').write(str(child))\n"
        "time.sleep(600)\n"
    )
    arguments = start_arguments(tmp_path, sys.executable, "-c", FAMILY, str(tmp_path / "up"), "600")
    owner = subprocess.Popen(
        [sys.executable, "-c", owner_code, str(tmp_path / "fork"), *arguments], env={**os.environ, MARK: mark}
    )
    wait_for(tmp_path / "up")
    wait_for(tmp_path / "fork")
    owner.kill()
    owner.wait()
    wait_for(tmp_path / "result.json")
    deadline = time.monotonic() + 10
    fork = int((tmp_path / "fork").read_text())
    while marked(mark) != {fork} and time.monotonic() < deadline:
        time.sleep(0.05)
    assert marked(mark) == {fork}


def test_a_signal_stops_the_trial(tmp_path: Path, mark: str) -> None:
    process = start(tmp_path, mark, sys.executable, "-c", FAMILY, str(tmp_path / "up"), "600")
    wait_for(tmp_path / "up")
    process.terminate()
    result = finish(process, tmp_path)
    assert result["stopped"]
    assert not marked(mark)


def test_a_killed_supervisor_leaves_what_the_mark_finds(tmp_path: Path, mark: str) -> None:
    process = start(tmp_path, mark, sys.executable, "-c", FAMILY, str(tmp_path / "up"), "600")
    wait_for(tmp_path / "up")
    process.kill()
    process.wait()
    assert process.stdin is not None
    process.stdin.close()
    assert kill_marked(mark) >= 3
    assert not marked(mark)


def test_a_flood_of_output_keeps_its_head_and_its_tail(tmp_path: Path, mark: str) -> None:
    code = "import sys\nfor n in range(200000): sys.stdout.write(f'line {n}\\n')"
    result = finish(start(tmp_path, mark, sys.executable, "-c", code, output_limit=2000), tmp_path)
    text = (tmp_path / "log").read_text()
    assert result["exit_code"] == 0
    assert text.startswith("line 0\nline 1\n")
    assert text.endswith("line 199999\n")
    assert "bytes left out" in text
    assert len(text) < 2100
    assert result["output_bytes"] == sum(len(f"line {n}\n") for n in range(200000))


@pytest.mark.parametrize("size", [0, 1, 9, 10, 11, 50])
def test_bounded_output_loses_nothing_below_its_limit(tmp_path: Path, size: int) -> None:
    content = bytes(range(48, 48 + size))
    output = BoundedOutput(tmp_path / "log", 10)
    for position in range(size):
        output.write(content[position : position + 1])
    output.close()
    kept = (tmp_path / "log").read_bytes()
    if size <= 10:
        assert kept == content
    else:
        assert kept.startswith(content[:5])
        assert kept.endswith(content[-5:])
        assert b"[... %d bytes left out ...]" % (size - 10) in kept


# -- ranks ------------------------------------------------------------------------


def test_every_rank_sees_its_place_and_one_rendezvous(tmp_path: Path, mark: str) -> None:
    code = (
        "import os; names = ('RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'MASTER_ADDR', 'MASTER_PORT'); "
        "os.write(1, (' '.join(os.environ[name] for name in names) + chr(10)).encode())"
    )
    command = (sys.executable, ranks.__file__, "--processes", "3", "--", sys.executable, "-c", code)
    assert finish(start(tmp_path, mark, *command), tmp_path)["exit_code"] == 0
    lines = sorted((tmp_path / "log").read_text().splitlines())
    port = lines[0].split()[-1]
    assert lines == [f"{rank} {rank} 3 127.0.0.1 {port}" for rank in range(3)]


@pytest.mark.parametrize(("ending", "code"), [("sys.exit(7)", 7), ("os.kill(os.getpid(), 9)", 137)])
def test_when_one_rank_fails_the_others_go_and_its_code_is_told(
    tmp_path: Path, mark: str, monkeypatch: pytest.MonkeyPatch, ending: str, code: int
) -> None:
    monkeypatch.setattr(ranks, "GRACE_SECONDS", 0.2)
    body = f"import os, sys, time\nif os.environ['RANK'] == '1': {ending}\ntime.sleep(600)"
    assert ranks.run([sys.executable, "-c", body], 3) == code
