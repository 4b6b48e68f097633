"""Where a trial's command runs: under the supervisor on this host, or as a job of a Slurm cluster.

Both give the same `Result`, and both leave nothing behind however the worker ends. What the command
measured is in the trial's folder, which the nodes of a cluster share with this host.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bisection.adapters.catalogue import SlurmJob
from workers import slurm_job
from workers.launching import Launch
from workers.supervision import last_line, read_bounded, run_supervised
from workers.supervisor import Result

#: A job ends, is noticed and is read back within this long after its own time limit.
_SETTLING_SECONDS = 120.0


@dataclass(frozen=True, kw_only=True)
class Ground:
    """The trial's own folder, and what every launcher needs to know of the trial."""

    folder: Path
    output: Path  #: the command's output, bounded
    output_limit_bytes: int
    time_limit_seconds: float
    cancelled: Callable[[], bool]
    say: Callable[[str], None]
    held: tuple[int, ...]
    mark: str


def launch_here(launch: Launch, ground: Ground) -> Result:
    """Raises Cancelled or SupervisorLost, as `run_supervised` does."""
    return run_supervised(
        launch.command,
        environment=launch.environment,
        folder=launch.folder,
        output=ground.output,
        output_limit_bytes=ground.output_limit_bytes,
        time_limit_seconds=ground.time_limit_seconds,
        cancelled=ground.cancelled,
        say=ground.say,
        held=ground.held,
        mark=ground.mark,
    )


def launch_in_slurm(launch: Launch, job: SlurmJob, ground: Ground) -> Result:
    """The command as a job, once a node. Raises Cancelled or SupervisorLost.

    The time limit counts from the job's start. What is the cluster's fault (a node that failed, a job that
    was refused, cancelled by others or waited too long) is a result with ``error``: the trial is run again.
    """
    client = ground.folder / "slurm-client.txt"
    try:
        waited = run_supervised(
            [
                *(sys.executable, "-I", slurm_job.__file__),
                *("--folder", str(ground.folder), "--nodes", str(job.nodes)),
                *("--time-limit", f"{ground.time_limit_seconds:g}"),
                *("--output-limit", str(ground.output_limit_bytes // job.nodes)),
                *(f"--option={option}" for option in job.options),
                *("--", *launch.command),
            ],
            environment={**_of_the_cluster(), **launch.environment},
            folder=launch.folder,
            output=client,
            output_limit_bytes=ground.output_limit_bytes,
            time_limit_seconds=job.queue_seconds + ground.time_limit_seconds + _SETTLING_SECONDS,
            cancelled=ground.cancelled,
            say=ground.say,
            held=ground.held,
            mark=ground.mark,
        )
    finally:
        slurm_job.cancel(ground.folder)
    outputs = [
        read_bounded(ground.folder / f"node-{n}.txt", ground.output_limit_bytes) for n in range(job.nodes)
    ]
    slurms = read_bounded(ground.folder / "slurm.txt", ground.output_limit_bytes)
    ground.output.write_text("".join([*outputs, slurms]), encoding="utf-8")
    if waited.owner_died or waited.stopped:
        return waited
    if waited.timed_out:
        return Result(error=f"the Slurm job did not start within {job.queue_seconds:g} s")
    if waited.exit_code != 0:
        return Result(error=last_line(client) or f"the Slurm client ended with {waited.exit_code}")
    try:
        return _joined([_of_node(ground.folder, node) for node in range(job.nodes)])
    except (OSError, ValueError, TypeError):
        said = slurms.strip().splitlines()
        return Result(
            error="the Slurm job left no result on every node: " + (said[-1] if said else "it was lost")
        )


def _of_the_cluster() -> dict[str, str]:
    """What Slurm's own commands need of the worker's environment."""
    return {name: os.environ[name] for name in ("SLURM_CONF",) if name in os.environ}


def _of_node(folder: Path, node: int) -> Result:
    return Result(**json.loads((folder / f"node-{node}.json").read_text(encoding="utf-8")))


def _joined(nodes: list[Result]) -> Result:
    """One result for all nodes: the first failure speaks, since the others end in its wake."""
    failed = [node for node in nodes if node.exit_code != 0]
    first = min(failed, key=lambda node: node.seconds) if failed else nodes[0]
    return Result(
        exit_code=first.exit_code,
        signal=first.signal,
        timed_out=any(node.timed_out for node in nodes),
        owner_died=any(node.owner_died for node in nodes),
        stopped=any(node.stopped for node in nodes),
        seconds=max(node.seconds for node in nodes),
        left_behind_killed=sum(node.left_behind_killed for node in nodes),
        survivors=sum(node.survivors for node in nodes),
        output_bytes=sum(node.output_bytes for node in nodes),
        error=first.error,
    )
