"""What the probe costs: step time without it, in its cheap and in its full mode, side by side in one run.

usage: probe_overhead.py --python PYTHON [--rounds N] [--scale N] [--json]

PYTHON is an interpreter with torch, as `scripts/with_megatron.sh` makes one. Where it sees a GPU, the GPU
is measured too. On a CPU both modes follow every operation; "hooks" is what a GPU's cheap mode takes of
the host.
It ends with 1 if the cheap mode costs more than 2 % of a step or 1 MiB on a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
JOB = Path(__file__).parent / "probe_recipes" / "overhead_job.py"
MOST_SHARE = 0.02
MOST_BYTES = 2**20
_SEES_A_GPU = "import torch; print(int(torch.cuda.is_available()))"


def run(python: Path, device: str, rounds: int, scale: int) -> dict[str, Any]:
    done = subprocess.run(
        [python, JOB, device, str(rounds), str(scale)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "workers" / "probe"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured


def sees_a_gpu(python: Path) -> bool:
    asked = subprocess.run([python, "-c", _SEES_A_GPU], capture_output=True, text=True, check=True)
    return asked.stdout.strip() == "1"


def within(measured: dict[str, Any]) -> bool:
    cheap = measured["modes"]["cheap"]
    return bool(cheap["ratio"] <= 1 + MOST_SHARE and cheap["device_bytes"] <= MOST_BYTES)


def table(measured: dict[str, Any]) -> str:
    lines = [f"{measured['device']}, torch {measured['torch']}, {measured['rounds']} rounds"]
    for mode, row in measured["modes"].items():
        held = "" if row["device_bytes"] is None else f"  {row['device_bytes'] / 2**20:+.2f} MiB"
        lines.append(f"  {mode:6} {row['seconds'] * 1e3:9.1f} ms  x {row['ratio']:.3f}{held}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--scale", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    cpu = run(options.python, "cpu", options.rounds, options.scale)
    gpu = None
    if sees_a_gpu(options.python):
        gpu = run(options.python, "cuda", options.rounds, 4 * options.scale)
    if options.json:
        print(json.dumps({"cpu": cpu, "gpu": gpu}))
    else:
        print(table(cpu))
        print(table(gpu) if gpu else "no GPU: the cheap mode's 2 % were not measured")
    return 0 if gpu is None or within(gpu) else 1


if __name__ == "__main__":
    sys.exit(main())
