"""Builds folders once a host: under a lock, by whichever worker comes first, failures remembered.

What is built (an environment, an overlay) is the caller's matter; here live the
lock, the marker that tells a whole folder from a half-made one, the supervised steps
and the memory of failures. A builder that is killed frees the lock only when its last
process is gone, so no second builder meets the first one's leftovers at work.

Errors::

    Unbuildable       the state's fault: a step failed; remembered for a while, with its log
    BuildHostError    the host's or the network's fault: says nothing about the state
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from workers.requirement_lock import Unbuildable
from workers.supervision import Cancelled, SupervisorLost, read_bounded, run_supervised
from workers.supervisor import write_atomically

#: A failure is believed for ten minutes: a bisection meets the same lock again and again.
FAILURE_SECONDS = 600.0
#: torch, megatron-core and 118 more took 188 s on an ordinary line; CUDA wheels have ten times the bytes.
STEP_SECONDS = 3600.0
_LOG_BYTES = 2**20
_MARKER = "complete.json"
#: What a builder may inherit: programs, and the way to the network and the indexes. No service secret.
_INHERITED = re.compile(
    r"PATH|HOME|TMPDIR|LANG|(PIP|UV)_.*|SSL_CERT_(FILE|DIR)|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE"
    r"|XDG_(CONFIG|CACHE)_HOME|XDG_CONFIG_DIRS|https?_proxy|all_proxy|no_proxy",
    re.IGNORECASE,
)
#: How pip, uv and the operating system say that the fault is not the package's.
_HOST_FAULT = re.compile(
    r"No space left on device|Disk quota exceeded|Read-only file system|Cannot allocate memory"
    r"|Temporary failure in name resolution|Name or service not known|dns error|Network is unreachable"
    r"|Connection refused|Connection reset|Connection timed out|Read timed out|NewConnectionError"
    r"|error sending request|tcp connect error|Max retries exceeded"
    r"|HTTP status server error|50[0-9] (?:Server Error|Service Unavailable|Bad Gateway)",
    re.IGNORECASE,
)


class BuildHostError(RuntimeError):
    """This host could not build: disk, network or index. The state may be fine."""


@dataclass(frozen=True, kw_only=True)
class Built:
    """A folder that is whole, and what its builder noted."""

    folder: Path
    made_now: bool


class BuildSteps:
    """The commands of one build, each under the supervisor, all in one log."""

    def __init__(
        self,
        folder: Path,
        lock: int,
        progress: Callable[[str], None],
        cancelled: Callable[[], bool],
    ) -> None:
        self._folder = folder
        self._lock = lock
        self._progress = progress
        self._cancelled = cancelled

    def run(self, step: str, command: Sequence[str]) -> str:
        """Runs one command; its output. Raises Unbuildable, BuildHostError or Cancelled."""
        self._progress(step)
        log = self._folder / "build.log"
        try:
            result = run_supervised(
                command,
                environment=build_environment(),
                folder=self._folder,
                output=log,
                output_limit_bytes=_LOG_BYTES,
                time_limit_seconds=STEP_SECONDS,
                cancelled=self._cancelled,
                say=lambda line: self._progress(f"{step}: {line}"),
                held=(self._lock,),
            )
        except SupervisorLost as error:
            raise BuildHostError(f"{step}: {error}") from error
        text = read_bounded(log, _LOG_BYTES)
        if result.error or result.timed_out or result.signal is not None:
            why = result.error or ("it took too long" if result.timed_out else f"signal {result.signal}")
            raise BuildHostError(f"{step}: {why}. {text[-1000:]}")
        if result.exit_code != 0:
            if _HOST_FAULT.search(text):
                raise BuildHostError(f"{step}: {text[-1500:].strip()}")
            raise Unbuildable(step, text)
        return text


def build_once(
    kept: Path,
    key: str,
    build: Callable[[Path, BuildSteps], None],
    *,
    progress: Callable[[str], None],
    cancelled: Callable[[], bool],
) -> Built:
    """The folder ``kept / key``, built there if it is not whole yet.

    It is built in place, since programs in an environment name the folder they are in;
    a marker written last makes it whole. Raises what ``build`` raises, and a remembered
    Unbuildable without building.
    """
    folder = kept / key
    if _is_whole(folder):
        return Built(folder=folder, made_now=False)
    locks = kept / ".locks"
    locks.mkdir(parents=True, exist_ok=True)
    lock = os.open(locks / key, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _wait_for(lock, progress, cancelled)
        if _is_whole(folder):
            return Built(folder=folder, made_now=False)
        failure = kept / ".failures" / f"{key}.json"
        _raise_remembered(failure)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            build(folder, BuildSteps(folder, lock, progress, cancelled))
        except BaseException as error:
            shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, Unbuildable):
                _remember(failure, error)
            raise
        write_atomically(folder / _MARKER, json.dumps({"version": 1, "key": key}))
        return Built(folder=folder, made_now=True)
    finally:
        os.close(lock)


def build_environment() -> dict[str, str]:
    """What build commands see: nothing of the service's."""
    kept = {name: value for name, value in os.environ.items() if _INHERITED.fullmatch(name)}
    return {**kept, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "PYTHONNOUSERSITE": "1"}


def uv_program() -> str | None:
    """uv beside this Python (the `worker` extra brings it) or on the PATH; None: pip must do, slower."""
    beside = Path(sys.executable).with_name("uv")
    return str(beside) if beside.is_file() else shutil.which("uv")


def _is_whole(folder: Path) -> bool:
    return (folder / _MARKER).is_file()


def _wait_for(lock: int, progress: Callable[[str], None], cancelled: Callable[[], bool]) -> None:
    told = False
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        if not told:
            progress("waiting for another worker that builds the same environment")
            told = True
        if cancelled():
            raise Cancelled("cancelled while another worker was building")
        time.sleep(0.2)


def _remember(path: Path, error: Unbuildable) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    row = {"step": error.step, "log": error.log[-_LOG_BYTES:], "at": time.time()}
    write_atomically(path, json.dumps(row))


def _raise_remembered(path: Path) -> None:
    try:
        row = json.loads(path.read_text(encoding="utf-8"))
        age = time.time() - float(row["at"])
        step, log = str(row["step"]), str(row["log"])
    except (OSError, ValueError, KeyError, TypeError):
        return
    if 0 <= age < FAILURE_SECONDS:
        memory = f"(remembered from {age:.0f} s ago; tried again after {FAILURE_SECONDS:g} s)"
        raise Unbuildable(step, f"{log}\n{memory}")
    path.unlink(missing_ok=True)
