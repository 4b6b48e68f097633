"""What the log of a CI job tells: which failure it was, and what is to be looked for.

A CI's log is a whole job's: set-up, warnings, the failure, and the wrappers' own complaints after it. Each
line may carry the runner's time, a rank's name and colours. Nothing here does I/O.
"""

from __future__ import annotations

import io
import re
import zipfile
from dataclasses import dataclass, replace

from bisection.adapters.run_reports import storable
from bisection.criteria import OUT_OF_MEMORY_SIGNATURE
from workers.credentials import without_credentials
from workers.signatures import Failure, FailureKind, failure_in_log, failure_kind, failure_signature

_LARGEST_TEXT_BYTES = 2 * 2**20
_MOST_FILES = 50
LONGEST_SIGNATURE = 300

#: What stands before a line's own text: the runner's time, and the rank that torchrun names.
_STAMP = re.compile(r"^\ufeff?\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z ", re.MULTILINE)
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_RANK = re.compile(r"^(?:##\[\w+\])?(?:\[(?:default\d*|rank\d+|\d+)\]:?\s?)+", re.MULTILINE)
#: Failures of whoever started the job: they say that it failed, not how.
_WRAPPERS = re.compile(
    r"^(?:[A-Za-z_][\w.]*\.)?(?:ChildFailedError|CalledProcessError|SignalException|SystemExit)\b",
    re.MULTILINE,
)
_TRACEBACK = "Traceback (most recent call last):"
_MOST_TRACEBACKS = 40
_LONGEST_TRACEBACK = 20_000


@dataclass(frozen=True, kw_only=True)
class LogReading:
    """Which failure a log tells of. ``kind`` is None where it tells none."""

    kind: FailureKind | None
    signature: str = ""


def text_of(content: bytes) -> str:
    """A job's log: text, or an archive of texts, of which the last bytes count."""
    if content.startswith(b"PK\x03\x04"):
        content = _unpacked(content)
    return content[-_LARGEST_TEXT_BYTES:].decode("utf-8", errors="replace")


def read_log(text: str) -> LogReading:
    """The failure that the log ends with."""
    plain = _RANK.sub("", _STAMP.sub("", _COLOUR.sub("", text.replace("\r\n", "\n"))))
    failure = _last_own_failure(plain)
    whole = failure_kind(Failure(type="", message="", text=plain)) if plain.strip() else FailureKind.CODE
    if failure is None:
        # Without a traceback the words have to do; code that failed silently tells nothing.
        if whole is FailureKind.CODE:
            return LogReading(kind=None)
        return LogReading(kind=whole, signature=_signature(whole, None))
    # Its own words first. A device's memory that ends is told wherever it stands: what follows is its wreck.
    own = failure_kind(failure)
    kind = FailureKind.DEVICE_MEMORY if whole is FailureKind.DEVICE_MEMORY else own
    return LogReading(kind=kind, signature=_signature(kind, failure))


def _signature(kind: FailureKind, failure: Failure | None) -> str:
    if kind is FailureKind.DEVICE_MEMORY:
        return OUT_OF_MEMORY_SIGNATURE
    if failure is None:
        return kind.value
    # Before numbers and paths are taken out: after that a credential has no shape any more.
    harmless = replace(failure, message=without_credentials(failure.message))
    return storable(failure_signature(harmless, ()), LONGEST_SIGNATURE)


def _last_own_failure(text: str) -> Failure | None:
    """The last traceback that is not a wrapper's."""
    end = len(text)
    for _ in range(_MOST_TRACEBACKS):
        failure = failure_in_log(text[:end])
        if failure is None:
            return None
        start = text.rfind(_TRACEBACK, 0, end)
        if not _WRAPPERS.search(text[start : min(end, start + _LONGEST_TRACEBACK)]):
            return failure
        end = start
    return None


def _unpacked(archive: bytes) -> bytes:
    """The archive's files one after another, each up to a limit: what it claims to hold is not believed."""
    parts: list[bytes] = []
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as opened:
            for name in sorted(opened.namelist())[:_MOST_FILES]:
                with opened.open(name) as file:
                    parts.append(file.read(_LARGEST_TEXT_BYTES))
    except (zipfile.BadZipFile, OSError, ValueError, RuntimeError, NotImplementedError):
        return b"\n".join(parts)
    return b"\n".join(parts)
