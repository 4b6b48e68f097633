"""Who holds the memory of this host's GPUs: looked at before a trial and after it, through ``nvidia-smi``.

Memory that others hold is not a trial's, but it is missing there. A library for the worker, and a program
for the nodes of a cluster (``python gpus.py --before FILE`` / ``--after FILE``), so standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

MIB = 2**20
#: An older driver's own reserve, or another's bare context, takes about half of it: recorded, not waited for.
EMPTY_BYTES = 2**30
#: Memory of processes that were killed comes back within seconds; another user's job, in its own time.
WAIT_SECONDS = 120.0
SETTLE_SECONDS = 15.0
POLL_SECONDS = 1.0
#: Drivers round; less than this above what was held before is nobody's.
_SLACK_BYTES = 64 * MIB


class NotEmpty(Exception):
    """Others hold a GPU that the trial was to have; says which, how much and who."""


@dataclass(frozen=True, kw_only=True)
class Holder:
    """A process with memory on a GPU. In a container the driver shows none, though memory is held."""

    pid: int
    name: str
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU at an instant."""

    index: int
    uuid: str
    used_bytes: int
    total_bytes: int
    holders: tuple[Holder, ...] = field(default=())

    def told(self) -> str:
        who = ", ".join(f"pid {h.pid} ({h.name}) with {_shown(h.bytes)}" for h in self.holders[:8])
        held = f"{_shown(self.used_bytes)} of {_shown(self.total_bytes)} of GPU {self.index}"
        return f"{held} held by {who or 'processes that the driver does not show here'}"


def look(visible: str | None) -> list[Gpu]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves, all for None. OSError where nvidia-smi does not answer."""
    held: dict[str, list[Holder]] = {}
    for uuid, pid, name, used in _rows("compute-apps", "gpu_uuid,pid,process_name,used_gpu_memory"):
        held.setdefault(uuid, []).append(Holder(pid=int(pid), name=Path(name).name, bytes=_mebibytes(used)))
    gpus = [
        Gpu(
            index=int(index),
            uuid=uuid,
            used_bytes=_mebibytes(used),
            total_bytes=_mebibytes(total),
            holders=tuple(held.get(uuid, ())),
        )
        for index, uuid, used, total in _rows("gpu", "index,uuid,memory.used,memory.total")
    ]
    chosen = [word.strip() for word in (visible or "").split(",") if word.strip()]
    # A part of a MIG-divided GPU is not told from its GPU here: then all are looked at.
    if not chosen or any(word.startswith("MIG") for word in chosen):
        return gpus
    return [g for g in gpus if any(word == str(g.index) or g.uuid.startswith(word) for word in chosen)]


def wait_until_empty(
    visible: str | None, *, seconds: float, cancelled: Callable[[], bool], say: Callable[[str], None]
) -> list[Gpu]:
    """The GPUs once nobody holds more than `EMPTY_BYTES` of one, or at cancelling.

    Raises NotEmpty after ``seconds``, OSError as `look` does.
    """
    deadline = time.monotonic() + seconds
    while True:
        gpus = look(visible)
        full = [gpu for gpu in gpus if gpu.used_bytes > EMPTY_BYTES]
        if not full or cancelled():
            return gpus
        told = "; ".join(gpu.told() for gpu in full)
        if time.monotonic() >= deadline:
            raise NotEmpty(f"after {seconds:g} s of waiting there were still {told}")
        say(f"waiting for GPUs: {told}")
        time.sleep(POLL_SECONDS)


def left_behind(before: list[Gpu], visible: str | None, *, seconds: float) -> list[str]:
    """What is still held after a trial, a sentence a GPU; the driver gets ``seconds`` to take it back."""
    was = {gpu.uuid: gpu.used_bytes for gpu in before}
    deadline = time.monotonic() + seconds
    while True:
        kept = [gpu for gpu in look(visible) if gpu.used_bytes > was.get(gpu.uuid, 0) + _SLACK_BYTES]
        if not kept or time.monotonic() >= deadline:
            return [
                f"{_shown(gpu.used_bytes - was.get(gpu.uuid, 0))} more than before the trial were still held "
                f"{seconds:g} s after its end: {gpu.told()}"
                for gpu in kept
            ]
        time.sleep(POLL_SECONDS)


def before_a_trial(
    visible: str | None, *, cancelled: Callable[[], bool], say: Callable[[str], None]
) -> tuple[list[Gpu], int | None, list[str]]:
    """The GPUs, the most bytes that others hold of one (None: unknown), and a sentence for each that tells.

    Raises NotEmpty. A driver that cannot be asked is noted: whether it can run there, a trial sees itself.
    """
    try:
        gpus = wait_until_empty(visible, seconds=WAIT_SECONDS, cancelled=cancelled, say=say)
    except OSError as error:
        return [], None, [f"who holds the GPUs is not known: {error}"]
    telling = [gpu for gpu in gpus if gpu.holders or gpu.used_bytes > _SLACK_BYTES]
    most = max((gpu.used_bytes for gpu in gpus), default=None)
    return gpus, most, [f"before the trial: {gpu.told()}" for gpu in telling]


def after(before: list[Gpu], visible: str | None) -> list[str]:
    """Sentences about memory that a trial left; none where it could not be seen before it."""
    try:
        return left_behind(before, visible, seconds=SETTLE_SECONDS) if before else []
    except OSError as error:
        return [f"what the trial left on the GPUs is not known: {error}"]


def _rows(query: str, fields: str) -> list[list[str]]:
    try:
        done = subprocess.run(
            ["nvidia-smi", f"--query-{query}={fields}", "--format=csv,noheader,nounits"],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise OSError("nvidia-smi did not answer within 60 s: the driver hangs") from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().partition("\n")[0]
        raise OSError(f"nvidia-smi ended with {done.returncode}: {said}")
    wanted = fields.count(",") + 1
    rows = [line.strip().split(", ") for line in done.stdout.splitlines() if line.strip()]
    # A process may have a comma in its name: what is too much belongs to it.
    return [row if len(row) == wanted else [*row[:2], ", ".join(row[2:-1]), row[-1]] for row in rows]


def _mebibytes(word: str) -> int:
    """Bytes; 0 for what the driver does not tell (``[N/A]``)."""
    return int(word) * MIB if word.isdigit() else 0


def _shown(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / MIB:.0f} MiB"


def main(arguments: list[str]) -> int:
    """Exit status 75 where others hold a GPU; the file then has the sentence."""
    parser = argparse.ArgumentParser(description="Look who holds the GPUs of this node.")
    parser.add_argument(
        "--before", type=Path, metavar="FILE", help="wait until they are empty; write who held"
    )
    parser.add_argument("--after", type=Path, metavar="FILE", help="add to that file what is still held")
    options = parser.parse_args(arguments)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    row: dict[str, Any]
    if options.after:
        row = json.loads(options.after.read_text(encoding="utf-8"))
        before = [Gpu(**{**gpu, "holders": ()}) for gpu in row["gpus"]]
        row["notes"] += after(before, visible)
    else:
        try:
            gpus, most, notes = before_a_trial(visible, cancelled=lambda: False, say=lambda _: None)
            row = {"gpus": [asdict(gpu) for gpu in gpus], "others_bytes": most, "notes": notes}
        except NotEmpty as error:
            row = {"error": str(error)}
    (options.before or options.after).write_text(json.dumps(row), encoding="utf-8")
    return os.EX_TEMPFAIL if "error" in row else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
