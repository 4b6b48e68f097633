"""A program that runs a trial's command on one node of a Slurm job, under the same supervisor as anywhere.

Started by ``srun`` through `slurm_job`. It holds the pipe by which the supervisor knows its owner, and
lets go of it when the lease in the shared folder was not renewed for a while: then the worker is gone,
and every process that the command started goes too. How the command ended is written to a file of this
node. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

#: Without a renewed lease for this long the worker is gone: the lease is renewed every second or so.
LEASE_SECONDS = 120.0
POLL_SECONDS = 0.5


class Lease:
    """Whether the worker still renews the file. By change alone: clocks of nodes and disks may differ."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self._file = folder / "slurm-lease"
        self._seconds = seconds
        self._seen = 0
        self._changed = time.monotonic()

    def is_over(self) -> bool:
        with suppress(OSError):  # the trial's folder may be swept, or the shared disk slow
            now = self._file.stat().st_mtime_ns
            if now != self._seen:
                self._seen, self._changed = now, time.monotonic()
        return time.monotonic() - self._changed > self._seconds


def place() -> dict[str, str]:
    """What the ranks of several nodes need to meet, besides the first's name. Nothing for one node."""
    nodes = int(os.environ.get("SLURM_NNODES", "1"))
    if nodes == 1:
        return {}
    return {
        "FIRSTBAD_NODES": str(nodes),
        "FIRSTBAD_NODE": os.environ["SLURM_NODEID"],
        # Jobs of one cluster that share a node differ in their ids.
        "FIRSTBAD_PORT": str(20_000 + int(os.environ["SLURM_JOB_ID"]) % 20_000),
    }


def look_at_gpus(when: str, file: Path) -> bool:
    program = Path(__file__).with_name("gpus.py")
    return subprocess.run([sys.executable, "-I", str(program), when, str(file)], check=False).returncode == 0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Run a command on this node of a Slurm job.")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--time-limit", required=True)
    parser.add_argument("--output-limit", required=True)
    parser.add_argument("--gpus", action="store_true", help="wait until nobody else holds this node's")
    parser.add_argument("command", nargs="+", metavar="COMMAND")
    options = parser.parse_args(arguments)
    node = os.environ.get("SLURM_NODEID", "0")
    gpus = options.folder / f"gpus-{node}.json"
    if options.gpus and not look_at_gpus("--before", gpus):
        told = (
            json.loads(gpus.read_text(encoding="utf-8"))["error"] if gpus.exists() else "no look at the GPUs"
        )
        (options.folder / f"node-{node}.json").write_text(json.dumps({"error": told}), encoding="utf-8")
        return 0
    supervisor = subprocess.Popen(
        [
            *(sys.executable, "-I", str(Path(__file__).with_name("supervisor.py"))),
            *("--time-limit", options.time_limit, "--output-limit", options.output_limit),
            *("--output", str(options.folder / f"node-{node}.txt")),
            *("--result", str(options.folder / f"node-{node}.json")),
            *("--", *options.command),
        ],
        env={**os.environ, **place()},
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    assert supervisor.stdin is not None
    lease = Lease(options.folder, LEASE_SECONDS)
    while supervisor.poll() is None:
        if lease.is_over():
            supervisor.stdin.close()
            return supervisor.wait()
        time.sleep(POLL_SECONDS)
    if options.gpus:
        look_at_gpus("--after", gpus)
    return supervisor.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
