"""Builds folders once a host: under a lock, by whichever worker comes first, failures remembered.

What is built (an environment, an overlay) is the caller's matter; here live the
lock, the marker that tells a whole folder from a half-made one, the supervised steps,
the memory of failures, and what goes when the disk's budget is spent. A builder that is killed
frees the lock only when its last process is gone, so no second builder meets the first one's
leftovers at work. Whoever uses a folder shares its lock meanwhile: what is in use is never removed.

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
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from workers.disk_budget import Kept, beyond
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
    r"|XDG_(CONFIG|CACHE)_HOME|XDG_CONFIG_DIRS|https?_proxy|all_proxy|no_proxy"
    # Where Docker and Podman listen, keep images and are logged in.
    r"|XDG_RUNTIME_DIR|DOCKER_(HOST|CONTEXT|CONFIG)|CONTAINER_HOST|CONTAINERS_[A-Z_]+|REGISTRY_AUTH_FILE",
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


class Claim:
    """A lock shared by all that use a folder. It is given up with the last reference to it.

    Handed to a supervisor (``held``), it lasts as long as the last process of what runs there.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._given_up = False

    def give_up(self) -> None:
        if not self._given_up:
            self._given_up = True
            os.close(self.descriptor)

    def __del__(self) -> None:
        self.give_up()


@dataclass(frozen=True, kw_only=True)
class Built:
    """A folder that is whole, and the claim on it."""

    folder: Path
    made_now: bool
    claim: Claim


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
    build: Callable[[Path, BuildSteps], int | None],
    *,
    progress: Callable[[str], None],
    cancelled: Callable[[], bool],
    still_whole: Callable[[Path], bool] = lambda _: True,
) -> Built:
    """The folder ``kept / key``, built there if it is not whole yet.

    It is built in place, since programs in an environment name the folder they are in;
    a marker written last makes it whole. ``build`` may answer the bytes of what it keeps elsewhere,
    and ``still_whole`` says of a whole folder whether that is still there.
    Raises what ``build`` raises, and a remembered Unbuildable without building.
    """
    folder = kept / key
    locks = kept / ".locks"
    locks.mkdir(parents=True, exist_ok=True)

    def whole(folder: Path) -> bool:
        return _is_whole(folder) and still_whole(folder)

    while True:
        claim = Claim(os.open(locks / key, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        lock, made_now = claim.descriptor, False
        try:
            if not whole(folder):
                _wait_for(lock, fcntl.LOCK_EX, progress, cancelled)
                if not whole(folder):
                    _build(kept, key, build, BuildSteps(folder, lock, progress, cancelled))
                    made_now = True
            # Between the two locks somebody may throw it out: then it is built again.
            _wait_for(lock, fcntl.LOCK_SH, progress, cancelled)
            if whole(folder):
                os.utime(folder / _MARKER)
                return Built(folder=folder, made_now=made_now, claim=claim)
        except BaseException:
            claim.give_up()  # an error that somebody keeps would keep it, too
            raise


def _build(kept: Path, key: str, build: Callable[[Path, BuildSteps], int | None], steps: BuildSteps) -> None:
    folder = kept / key
    failure = kept / ".failures" / f"{key}.json"
    _raise_remembered(failure)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        elsewhere = build(folder, steps) or 0
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, Unbuildable):
            _remember(failure, error)
        raise
    size = elsewhere + sum(_sizes(folder))
    write_atomically(folder / _MARKER, json.dumps({"version": 1, "key": key, "bytes": size}))


def throw_out_unused(
    places: Sequence[Path], budget_bytes: int, before: Callable[[Path], None] = lambda _: None
) -> list[str]:
    """Removes what was longest not used, until the rest of all the places fits; the names of what went.

    ``before`` is called with a folder that goes, to remove what belongs to it elsewhere. What somebody
    uses or builds stays, whatever the budget says.
    """
    gone = []
    for thing in beyond(budget_bytes, (thing for kept in places for thing in _kept_in(kept))):
        lock = os.open(
            thing.folder.parent / ".locks" / thing.name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            before(thing.folder)
            (thing.folder / _MARKER).unlink(missing_ok=True)  # first: what is half gone is not whole
            shutil.rmtree(thing.folder, ignore_errors=True)
            gone.append(thing.name)
        except BlockingIOError:
            continue
        finally:
            os.close(lock)
    return gone


def _kept_in(kept: Path) -> Iterator[Kept]:
    for marker in kept.glob(f"*/{_MARKER}"):
        with suppress(OSError, ValueError, KeyError, TypeError):
            row = json.loads(marker.read_text(encoding="utf-8"))
            size = int(row["bytes"]) if "bytes" in row else sum(_sizes(marker.parent))
            yield Kept(
                used_ns=marker.stat().st_mtime_ns, name=marker.parent.name, bytes=size, folder=marker.parent
            )


def _sizes(folder: Path) -> Iterator[int]:
    """Bytes on the disk, file by file. What is linked to from elsewhere (uv's cache) counts in full."""
    for above, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                yield os.lstat(os.path.join(above, name)).st_blocks * 512


def build_environment() -> dict[str, str]:
    """What build commands see: nothing of the service's."""
    kept = {name: value for name, value in os.environ.items() if _INHERITED.fullmatch(name)}
    return {
        **kept,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INPUT": "1",
        "PYTHONNOUSERSITE": "1",
        "BUILDKIT_PROGRESS": "plain",  # its bars would hide which instruction of a Dockerfile failed
    }


def uv_program() -> str | None:
    """uv beside this Python (the `worker` extra brings it) or on the PATH; None: pip must do, slower."""
    beside = Path(sys.executable).with_name("uv")
    return str(beside) if beside.is_file() else shutil.which("uv")


def _is_whole(folder: Path) -> bool:
    return (folder / _MARKER).is_file()


def _wait_for(lock: int, how: int, progress: Callable[[str], None], cancelled: Callable[[], bool]) -> None:
    told = False
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(lock, how | fcntl.LOCK_NB)
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
