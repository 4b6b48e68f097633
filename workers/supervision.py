"""Starts a command under the supervisor and waits for it: the owner's side of the pipe.

Both trials and builds go through here, so that neither leaves a process behind
however the worker ends. The environment of the command is the caller's, whole:
nothing of the worker's own is passed on.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from workers import supervisor
from workers.supervisor import MARK, Result

#: How often cancelling is looked at and the last line of output is shown.
_POLL_SECONDS = 0.2
_SAY_SECONDS = 1.0
#: A supervisor that was told to stop needs its TERM and KILL seconds, and some more on a busy host.
_STOP_SECONDS = supervisor.TERM_SECONDS + supervisor.KILL_SECONDS + 10.0


class Cancelled(Exception):
    """Whoever asked for it does not want it any more. Nothing of it runs."""


class SupervisorLost(Exception):
    """The supervisor itself was killed (by the kernel, for memory?). Its processes were found and killed."""


def run_supervised(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    folder: Path,
    output: Path,
    output_limit_bytes: int,
    time_limit_seconds: float,
    cancelled: Callable[[], bool] = lambda: False,
    say: Callable[[str], None] = lambda _: None,
    held: Sequence[int] = (),
    mark: str = "",
) -> Result:
    """Runs the command in ``folder`` to its end.

    ``say`` gets its last line of output now and then. ``held`` are descriptors (of
    locks) that stay open until the last process is gone, even if this one is killed.
    ``mark`` is put on every process, for `supervisor.kill_marked`; empty: one is made up.
    Raises Cancelled or SupervisorLost, either after everything ended.
    """
    mark = mark or uuid.uuid4().hex
    output = output.absolute()  # the supervisor runs in another folder
    result_file = output.with_name(f"{output.name}.result.json")
    result_file.unlink(missing_ok=True)
    process = subprocess.Popen(
        [
            *(sys.executable, "-I", supervisor.__file__),
            *("--time-limit", f"{time_limit_seconds:g}"),
            *("--output", str(output), "--output-limit", str(output_limit_bytes)),
            *("--result", str(result_file)),
            *("--", *command),
        ],
        cwd=folder,
        env={**environment, MARK: mark},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        pass_fds=tuple(held),
    )
    assert process.stdin is not None
    stopped = False
    spoken = 0.0
    try:
        while process.poll() is None:
            if cancelled():
                stopped = True
                break
            if time.monotonic() - spoken > _SAY_SECONDS:
                spoken = time.monotonic()
                line = last_line(output)
                if line:
                    say(line)
            time.sleep(_POLL_SECONDS)
    finally:
        process.stdin.close()  # the supervisor takes this for our death, and ends everything
        try:
            process.wait(timeout=_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.returncode != 0 or not result_file.exists():
            supervisor.kill_marked(mark)
    if stopped:
        raise Cancelled("cancelled while it ran")
    try:
        return Result(**json.loads(result_file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise SupervisorLost(f"the supervisor ended with {process.returncode} and left no result") from error


def last_line(path: Path) -> str:
    """The last line with something in it, at most 200 characters; "" where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(os.fstat(file.fileno()).st_size - 2000, 0))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return ""
    return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "")


def read_bounded(path: Path, limit_bytes: int) -> str:
    """The text of a file, the last ``limit_bytes`` of it; "" where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(os.fstat(file.fileno()).st_size - limit_bytes, 0))
            return file.read(limit_bytes).decode(errors="replace")
    except OSError:
        return ""
