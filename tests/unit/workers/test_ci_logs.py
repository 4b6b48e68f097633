"""Which failure a CI job's log tells of, whatever stands around it."""

from __future__ import annotations

import io
import zipfile

import pytest

from workers.ci_logs import read_log, text_of
from workers.signatures import FailureKind

CRASH = (
    'Traceback (most recent call last):\n  File "/w/a.py", line 3, in build\n    go()\nImportError: no x\n'
)
OOM = CRASH.replace("ImportError: no x", "torch.OutOfMemoryError: CUDA out of memory.")
NCCL = CRASH.replace("ImportError: no x", "torch.distributed.DistBackendError: NCCL operation aborted")
WRAPPER = (
    'Traceback (most recent call last):\n  File "/usr/bin/torchrun", line 8, in <module>\n'
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n==========\nRoot Cause\n"
)


@pytest.mark.parametrize(
    ("log", "kind", "signature"),
    [
        ("", None, ""),
        ("exit code 1\n", None, ""),
        (CRASH, FailureKind.CODE, "ImportError: no x @ a.py:build"),
        (CRASH + WRAPPER, FailureKind.CODE, "ImportError: no x @ a.py:build"),
        (WRAPPER, None, ""),
        ("CUDA out of memory. Tried to allocate 2 GiB\n", FailureKind.DEVICE_MEMORY, "out_of_memory"),
        # The other ranks only notice that one is gone.
        (OOM + NCCL, FailureKind.DEVICE_MEMORY, "out_of_memory"),
        # A warning on the way is not what it ended with.
        ("Connection reset by peer, once more\n" + CRASH, FailureKind.CODE, "ImportError: no x @ a.py:build"),
        ("Connection reset by peer\n", FailureKind.FLAKY, "flaky"),
        ("[rank3]: ".join(["", *CRASH.splitlines(keepends=True)]), FailureKind.CODE,
         "ImportError: no x @ a.py:build"),
        ("[default7]:".join(["", *CRASH.splitlines(keepends=True)]).replace("\n", "\r\n"), FailureKind.CODE,
         "ImportError: no x @ a.py:build"),
    ],
)  # fmt: skip
def test_the_failure_that_a_log_ends_with(log: str, kind: FailureKind | None, signature: str) -> None:
    reading = read_log(log)
    assert (reading.kind, reading.signature) == (kind, signature)


def test_a_signature_holds_no_credential() -> None:
    log = CRASH.replace("no x", "401 for https://ada:hunter2hunter2@host/x")
    assert "hunter2" not in read_log(log).signature


def test_only_the_end_of_a_long_log_is_read() -> None:
    assert read_log(text_of(b"a line of the log\n" * 150_000 + CRASH.encode())).kind is FailureKind.CODE


def test_an_archive_that_unpacks_to_more_than_it_weighs_is_read_up_to_a_limit() -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(3):
            archive.writestr(f"{number}.txt", b"\0" * 20_000_000)
    assert len(packed.getvalue()) < 100_000
    assert len(text_of(packed.getvalue())) <= 2 * 2**20


def test_a_broken_archive_is_an_empty_log() -> None:
    assert text_of(b"PK\x03\x04 and nothing more") == ""
