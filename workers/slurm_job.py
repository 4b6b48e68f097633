"""A program that takes a command to a Slurm cluster, waits for it, and takes it back when it is told to stop.

Started by path under the trial's supervisor (``python slurm_job.py ... -- COMMAND``), in the folder where the
command is to run, which the nodes must share. The worker's death reaches the job twice: this program is ended
by its supervisor and cancels the job, and on every node `slurm_task` ends what it started once
the lease in the trial's folder is no longer renewed. Standard library only, nothing of firstbad's.

What the command came to is in the files of `slurm_task`, one a node; this program's own exit
status is 0 if the job ended by itself, 75 if the cluster lost it and 78 if it refused it.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

LOST, REFUSED = os.EX_TEMPFAIL, os.EX_CONFIG
POLL_SECONDS = 1.0
#: The lease is renewed at every look at the job; nodes give up after `slurm_task.LEASE_SECONDS`.
LEASE, BATCH, ENDED = "slurm-lease", "slurm.sh", "slurm-ended.txt"
#: The controller may be restarted or busy: so long without an answer is no news of the job.
SILENCE_SECONDS = 300.0
_ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "DEADLINE"}
_WAITING = {"PENDING", "CONFIGURING"}
_CLUSTERS_FAULT = {"NODE_FAIL", "BOOT_FAIL", "PREEMPTED", "REVOKED", "REQUEUED", "SPECIAL_EXIT"}


def job_name(folder: Path) -> str:
    """By which the trial's job is known to the cluster before its id is known here."""
    return f"firstbad-{folder.name}"


def cancel(folder: Path) -> None:
    """Takes the job of the trial in this folder back, whether it waits or runs; one that ended stays so."""
    if (folder / BATCH).exists():
        subprocess.run(["scancel", f"--name={job_name(folder)}"], capture_output=True, check=False)


def script(options: argparse.Namespace) -> str:
    """The batch script: the command once a node, under `slurm_task`."""
    words = [
        "srun", f"--nodes={options.nodes}", f"--ntasks={options.nodes}", "--ntasks-per-node=1",
        *options.srun, options.python, "-I", str(Path(__file__).with_name("slurm_task.py")),
        "--folder", str(options.folder), "--time-limit", options.time_limit,
        "--output-limit", options.output_limit, *(["--gpus"] if options.gpus else []), "--", *options.command,
    ]  # fmt: skip
    # An image in which srun starts the command has no Slurm to ask.
    first = 'FIRSTBAD_FIRST_NODE=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)\n'
    first += "export FIRSTBAD_FIRST_NODE\n"
    return f"#!/bin/sh\n{first if options.nodes > 1 else ''}exec {shlex.join(words)}\n"


def submit(options: argparse.Namespace) -> str:
    """The job's id. Raises SystemExit with Slurm's words if it is refused."""
    folder: Path = options.folder
    batch = folder / BATCH
    batch.write_text(script(options), encoding="utf-8")
    asked = subprocess.run(
        [
            "sbatch", "--parsable", "--no-requeue", "--export=ALL", f"--job-name={job_name(folder)}",
            f"--nodes={options.nodes}", "--ntasks-per-node=1", f"--output={folder / 'slurm.txt'}",
            f"--error={folder / 'slurm.txt'}", "--open-mode=append", *options.option, str(batch),
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if asked.returncode != 0:
        sys.stderr.write(f"sbatch refused the job: {asked.stderr.strip()}\n")
        sys.exit(REFUSED)
    return asked.stdout.strip().partition(";")[0]


def state(job: str) -> tuple[str, str]:
    """Slurm's words for where the job stands, and why; "" while the controller does not answer."""
    asked = subprocess.run(
        ["scontrol", "show", "job", "--oneliner", job], capture_output=True, text=True, check=False
    )
    told = dict(word.partition("=")[::2] for word in asked.stdout.split())
    forgotten = "FORGOTTEN" if "Invalid job id" in asked.stderr else ""
    return told.get("JobState", forgotten), told.get("Reason", "")


def wait(job: str, folder: Path, queue_seconds: float) -> int:
    """0 once the job ended by itself; `LOST` where the cluster lost it, or let it wait for too long."""
    submitted = heard = time.monotonic()
    spoken = ""
    while True:
        (folder / LEASE).touch()
        standing, why = state(job)
        if standing:
            heard = time.monotonic()
        if standing in _ENDED or standing == "FORGOTTEN":
            (folder / ENDED).write_text(f"{standing} {why}", encoding="utf-8")
            return 0
        if standing in _CLUSTERS_FAULT or time.monotonic() - heard > SILENCE_SECONDS:
            sys.stderr.write(f"Slurm job {job}: {standing or 'the controller does not answer'}\n")
            return LOST
        if standing in _WAITING and time.monotonic() - submitted > queue_seconds:
            sys.stderr.write(f"Slurm job {job} did not start within {queue_seconds:g} s ({why})\n")
            return LOST
        if standing != spoken:
            spoken = standing
            sys.stdout.write(f"Slurm job {job}: {standing.lower()}\n")
            sys.stdout.flush()
        time.sleep(POLL_SECONDS)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Run a command as a Slurm job and wait for it.")
    parser.add_argument("--folder", type=Path, required=True, help="the trial's own, shared with the nodes")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--queue-seconds", type=float, required=True, help="how long the job may wait")
    parser.add_argument("--time-limit", required=True, metavar="SECONDS", help="of the command, once it runs")
    parser.add_argument("--output-limit", required=True, metavar="BYTES", help="of the command, on each node")
    parser.add_argument("--option", action="append", default=[], help="of sbatch, as it is")
    parser.add_argument("--gpus", action="store_true", help="the command needs its GPUs for itself")
    parser.add_argument("--srun", action="append", default=[], help="option of srun, as it is")
    parser.add_argument("--python", default=sys.executable, help="which, on the nodes, starts the command")
    parser.add_argument("command", nargs="+", metavar="COMMAND")
    options = parser.parse_args(arguments)
    (options.folder / LEASE).touch()
    return wait(submit(options), options.folder, options.queue_seconds)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
