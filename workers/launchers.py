"""Where a trial's command runs: under the supervisor on this host, or as a job of a Slurm cluster.

Around both there may be a container (`containers`).

Both give the same `Result`, and both leave nothing behind however the worker ends. What the command
measured is in the trial's folder, which the nodes of a cluster share with this host.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bisection.adapters.catalogue import SlurmJob
from bisection.adapters.containers import Container
from bisection.adapters.isolation import Isolation
from workers import containers, gpus, slurm_job
from workers.isolating import CannotIsolate, isolated
from workers.launching import Launch
from workers.supervision import Cancelled, last_line, read_bounded, run_supervised
from workers.supervisor import MARK, Result

#: As slurmstepd says that memory ended: of the control group's limit, and of the accounting's.
_MEMORY_KILL = re.compile(r"oom[-_ ]kill|exceeded (?:job |step )?memory limit|Out Of Memory", re.IGNORECASE)
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
    gpus: bool  #: whether the trial needs the GPUs of its place for itself
    isolation: Isolation | None = None  #: of a trial without a container, on this host


def launch_here(launch: Launch, container: Container | None, ground: Ground) -> Result:
    """Raises Cancelled or SupervisorLost, as `run_supervised` does. GPUs that others hold are waited for."""
    if not ground.gpus:
        return _launched(launch, container, ground)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    try:
        before, most, notes = gpus.before_a_trial(visible, cancelled=ground.cancelled, say=ground.say)
    except gpus.NotEmpty as error:
        return Result(error=str(error))
    if ground.cancelled():
        raise Cancelled("cancelled while it waited for GPUs")
    result = _launched(launch, container, ground)
    result.gpu_bytes_of_others = most
    result.notes += [*notes, *gpus.after(before, visible)]
    return result


def _launched(launch: Launch, container: Container | None, ground: Ground) -> Result:
    if container is None:
        try:
            shut_in = isolated(launch, ground.isolation, ground.folder) if ground.isolation else launch
        except CannotIsolate as error:
            return Result(error=str(error))
        return _supervised(shut_in, ground)
    containers.announce(container, ground.folder)
    try:
        result = _supervised(
            containers.contained(launch, container, ground.folder, {MARK: ground.mark}), ground
        )
    finally:
        containers.take_back(ground.folder)
    return containers.told_apart(result, container, ground.folder, node=0, said=last_line(ground.output))


def _supervised(launch: Launch, ground: Ground) -> Result:
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


def launch_in_slurm(launch: Launch, job: SlurmJob, container: Container | None, ground: Ground) -> Result:
    """The command as a job, once a node. Raises Cancelled or SupervisorLost.

    The time limit counts from the job's start. What is the cluster's fault (a node that failed, a job that
    was refused, cancelled by others or waited too long) is a result with ``error``: the trial is run again.
    """
    client = ground.folder / "slurm-client.txt"
    inside: list[str] = []
    if container and container.runtime == "pyxis":
        inside = [f"--python={launch.command[0]}"]
        inside += [f"--srun={option}" for option in containers.srun_options(launch, container, ground.folder)]
    elif container:
        launch = containers.contained(launch, container, ground.folder, {MARK: ground.mark})
    try:
        waited = run_supervised(
            [
                *(sys.executable, "-I", slurm_job.__file__),
                *("--folder", str(ground.folder), "--nodes", str(job.nodes)),
                *("--queue-seconds", f"{job.queue_seconds:g}"),
                *("--time-limit", f"{ground.time_limit_seconds:g}"),
                *("--output-limit", str(ground.output_limit_bytes // job.nodes)),
                *(f"--option={option}" for option in job.options),
                *inside,
                *(["--gpus"] if ground.gpus else []),
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
        return Result(error="the Slurm job neither ended nor was lost in all the time that it had")
    if waited.exit_code != 0:
        return Result(error=last_line(client) or f"the Slurm client ended with {waited.exit_code}")
    ended = _how_the_job_ended(ground.folder)
    try:
        nodes = [_of_node(ground.folder, node) for node in range(job.nodes)]
    except (OSError, ValueError, TypeError):
        return _of_the_cluster_alone(ended, slurms)
    if container:
        nodes = [
            containers.told_apart(
                result,
                container,
                ground.folder,
                node=node,
                said=last_line(ground.folder / f"node-{node}.txt"),
            )
            for node, result in enumerate(nodes)
        ]
    joined = _joined(nodes)
    if ended.startswith("OUT_OF_MEMORY"):
        joined.memory_kills = max(joined.memory_kills, 1)
    return joined


def _how_the_job_ended(folder: Path) -> str:
    """Slurm's words, for example ``FAILED JobLaunchFailure``; "" where it had forgotten the job."""
    return read_bounded(folder / slurm_job.ENDED, 1000)


def _of_the_cluster_alone(ended: str, slurms: str) -> Result:
    """What became of a job whose nodes could not write how the command ended."""
    said = next((line for line in reversed(slurms.splitlines()) if line.strip()), "it was lost")
    # Without cgroups the cluster's accounting kills the whole step, and calls that a failed launch.
    if ended.startswith("OUT_OF_MEMORY") or _MEMORY_KILL.search(slurms):
        told = [line for line in slurms.splitlines() if _MEMORY_KILL.search(line)]
        return Result(signal=signal.SIGKILL, memory_kills=1, kernel=told[:5] or [f"Slurm: {ended}"])
    if ended.startswith("TIMEOUT"):
        return Result(
            error="the cluster's own time limit ended the Slurm job before the profile's trial_seconds: "
            "raise it by slurm.options (--time=...)"
        )
    return Result(error=f"the Slurm job left no result on every node: {said} ({ended or 'no longer known'})")


def _of_the_cluster() -> dict[str, str]:
    """What Slurm's own commands need of the worker's environment."""
    return {name: os.environ[name] for name in ("SLURM_CONF",) if name in os.environ}


def _of_node(folder: Path, node: int) -> Result:
    result = Result(**json.loads((folder / f"node-{node}.json").read_text(encoding="utf-8")))
    with suppress(OSError, ValueError):  # there is none where no GPU was asked for
        row = json.loads((folder / f"gpus-{node}.json").read_text(encoding="utf-8"))
        result.gpu_bytes_of_others = row.get("others_bytes")
        result.notes += [f"node {node}: {note}" for note in row.get("notes", [])]
    return result


def _joined(nodes: list[Result]) -> Result:
    """One result for all nodes: the first failure speaks, since the others end in its wake."""
    failed = [node for node in nodes if node.exit_code != 0]
    taken = [node.gpu_bytes_of_others for node in nodes if node.gpu_bytes_of_others is not None]
    first = min(failed, key=lambda node: node.seconds) if failed else nodes[0]
    kills = [node.memory_kills_on_host for node in nodes]
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
        memory_kills=sum(node.memory_kills for node in nodes),
        memory_kills_on_host=None if None in kills else sum(kill or 0 for kill in kills),
        kernel=[line for node in nodes for line in node.kernel],
        gpu_bytes_of_others=max(taken, default=None),
        notes=[note for node in nodes for note in node.notes],
    )
