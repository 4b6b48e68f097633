"""Failure signatures: which failure it was, equal for equal faults on any host, day and rank.

And what kind of failure a text tells of: the device's memory, the host's, a part of
the machinery that comes and goes, or the code. What a kind means for a trial is
`gathering`'s matter; what it means for a commit, `criteria`'s.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

_LONGEST_MESSAGE = 160


class FailureKind(StrEnum):
    """What a failure's text tells of."""

    DEVICE_MEMORY = "device_memory"  #: an allocator of the device refused, torch's or another
    HOST_MEMORY = "host_memory"  #: the host's memory ended: malloc refused, or the kernel killed
    HANG = "hang"  #: a collective whose other ranks never came
    FLAKY = "flaky"  #: network, rendezvous or hardware: says nothing about the state
    DOUBTFUL = "doubtful"  #: chance causes it as well as code: believed once it came again alike
    CODE = "code"  #: everything else


@dataclass(frozen=True, kw_only=True)
class Failure:
    """One failure as its rank or its log tells it."""

    type: str
    message: str
    frames: Sequence[str] = ()  #: "file:function", innermost last
    text: str = ""


#: As torch, Triton, vLLM's allocator, cuBLAS and NCCL say that the device is full.
_DEVICE_MEMORY = re.compile(
    r"torch\.(?:cuda\.)?OutOfMemoryError|^OutOfMemoryError\b|CUDA out of memory"
    r"|Triton Error \[CUDA\]: out of memory|CUDA Error: out of memory|CUDA error: out of memory"
    r"|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED|Cuda failure (?:2 )?'out of memory'"
    r"|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY|CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    re.MULTILINE,
)
_HOST_MEMORY = re.compile(
    r"DefaultCPUAllocator: (?:can't allocate|not enough) memory|^MemoryError\b|Cannot allocate memory"
    r"|std::bad_alloc",
    re.MULTILINE,
)
#: Of upstream's list of failures that a retry mends, those that can be the regression itself.
_DOUBTFUL = re.compile(
    r"illegal (?:memory access|instruction)|Call to CUDA function failed|double free|corrupted size vs"
    r"|munmap_chunk\(\): invalid|Segmentation fault|found NaN in",
    re.IGNORECASE,
)
#: NCCL's and Gloo's watchdogs: ranks that do not agree, or a rank that is stuck; seldom the network.
_HANG = re.compile(
    r"Watchdog caught collective operation timeout|watchdog got stuck for \d+ seconds"
    r"|Timed out waiting \d+ms for (?:recv|send) operation",
    re.IGNORECASE,
)
#: torch adds this to every error of CUDA: it says nothing where another pattern says what it was.
_ANY_CUDA_ERROR = re.compile(r"CUDA_LAUNCH_BLOCKING")
#: The rest of upstream's list.
_FLAKY = re.compile(
    r"Address already in use|EADDRINUSE|DistNetworkError|DistStoreError|DistBackendError"
    r"|ncclRemoteError|ncclSystemError|NCCL (?:WARN )?[^\n]{0,40}failed"
    r"|couldn't connect to 'https://huggingface\.co'|HTTPS?ConnectionPool\(host='[\w.-]*huggingface\.co'"
    r"|HfHubHTTPError|OfflineModeIsEnabled|offline mode is enabled"
    r"|NCCL (?:operation|communicator)[^\n]{0,80}(?:timed out|abort)"
    r"|uncorrectable ECC error|ECC error|Connection (?:reset|closed) by (?:peer|remote)|Connection refused"
    r"|Socket Timeout|Temporary failure in name resolution|No space left on device"
    r"|CUDA-capable device\(s\) is/are busy|GPU has fallen off the bus|Xid \(PCI",
    re.IGNORECASE,
)
#: Applied in this order: what a longer pattern took, a shorter one no longer sees.
_NORMALISATIONS = (
    # A path that `redacted_paths` told: which one it was does not tell failures apart.
    (re.compile(r"(?:(?:\{\w+\}|\$\w+)/)?\bfile-[a-z]{12}(?:\.\w{1,8})?\b"), "<path>"),
    (re.compile(r"0x[0-9a-fA-F]+"), "<address>"),
    # With a letter and a digit: else it is a number or a word.
    (re.compile(r"\b(?=[0-9a-f]*[a-f])(?=[0-9a-f]*[0-9])[0-9a-f]{7,64}\b"), "<hash>"),
    (re.compile(r"(?<![\w.>])(?:/[\w.@+~-]+)+/?"), "<path>"),
    (re.compile(r"(?<![A-Za-z_\d])\d+(?:x\d+)+"), "<n>"),
    (re.compile(r"(?<![A-Za-z_\d])\d+(?:\.\d+)?(?:e[+-]?\d+)?"), "<n>"),
    (re.compile(r"\s+"), " "),
)
_TRACEBACK = "Traceback (most recent call last):"
_FRAME = re.compile(r'^\s*File "([^"]+)", line \d+, in (.+)$', re.MULTILINE)
_LAST_LINE = re.compile(
    r"^([A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Warning|Failure|Invalid\w*))(?:: (.*))?$"
)


def failure_kind(failure: Failure) -> FailureKind:
    """What the failure's own type and message, then its text, tell of."""
    for text in (f"{failure.type}: {failure.message}", failure.text):
        for pattern, kind in (
            (_DEVICE_MEMORY, FailureKind.DEVICE_MEMORY),
            (_HOST_MEMORY, FailureKind.HOST_MEMORY),
            (_DOUBTFUL, FailureKind.DOUBTFUL),
            (_HANG, FailureKind.HANG),
            (_FLAKY, FailureKind.FLAKY),
            (_ANY_CUDA_ERROR, FailureKind.DOUBTFUL),
        ):
            if pattern.search(text):
                return kind
    return FailureKind.CODE


def failure_signature(failure: Failure, own_folders: Sequence[Path]) -> str:
    """Type, message without its numbers, addresses, hashes and paths, and the innermost own frame.

    Own are the frames of files below ``own_folders``, the state's. For example
    ``ImportError: cannot import name 'x' from 'y' (<path>) @ recipes/a.py:build``.
    """
    name = failure.type.rpartition(".")[2] or "failure"
    message = normalise(failure.message)
    place = _own_frame(failure.frames, own_folders)
    return f"{name}{': ' + message if message else ''}{' @ ' + place if place else ''}"


def normalise(message: str) -> str:
    """The message's first line without what differs from run to run."""
    text = message.strip().split("\n", 1)[0]
    for pattern, word in _NORMALISATIONS:
        text = pattern.sub(word, text)
    return text.strip()[:_LONGEST_MESSAGE]


def failure_in_log(log: str) -> Failure | None:
    """The last Python traceback in a log, for a rank that could not write its own; None if there is none."""
    start = log.rfind(_TRACEBACK)
    if start < 0:
        return None
    block = log[start:]
    frames = [f"{file}:{function}" for file, function in _FRAME.findall(block)]
    for line in block.split("\n")[1:]:
        match = _LAST_LINE.match(line.strip()) if not line.startswith("  ") else None
        if match:
            return Failure(type=match[1], message=match[2] or "", frames=frames, text=block[-4000:])
    return Failure(type="failure", message="a traceback without an end", frames=frames, text=block[-4000:])


def _own_frame(frames: Sequence[str], own_folders: Sequence[Path]) -> str:
    """The innermost frame of the state's own files; without one, the innermost file's name.

    The probe names files as an import would, a log by their whole path.
    """
    for frame in reversed(frames):
        file, _, function = frame.rpartition(":")
        for folder in own_folders:
            if file.startswith(f"{folder}/"):
                return f"{file.removeprefix(f'{folder}/')}:{function}"
            if file and not file.startswith("/") and (folder / file).is_file():
                return f"{file}:{function}"
    if not frames:
        return ""
    file, _, function = frames[-1].rpartition(":")
    return f"{Path(file).name}:{function}"
