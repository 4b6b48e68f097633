"""What a worker host must have, looked at one thing at a time: what was found, and how to mend it.

Nothing is changed and nothing is installed. Each check stands alone: one that cannot even look says so,
and the others go on.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from bisection.adapters.catalogue import Profile
from bisection.adapters.git_process import git_version
from memory_models.breakdown import GIB


class Health(StrEnum):
    """How a check came out."""

    WELL = "well"
    DOUBTFUL = "doubtful"  #: it works, and something will go slower or fail later
    BROKEN = "broken"  #: trials will fail or lie


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that was looked at."""

    name: str
    health: Health
    found: str
    mend: str = ""  #: what to do; empty where all is well

    def to_json(self) -> dict[str, str]:
        return {"name": self.name, "health": self.health.value, "found": self.found, "mend": self.mend}


#: A first trial writes an environment of Megatron Bridge (2 to 12 GiB), mirrors and workspaces.
ENOUGH_DISK, LEAST_DISK = 40 * GIB, 8 * GIB
#: Data loaders hand batches over in shared memory; the default of a container, 64 MiB, ends them by SIGBUS.
ENOUGH_SHARED_MEMORY = 2 * GIB
ENOUGH_FILES = 4096
#: A lease lasts a minute: beyond this, clocks that differ make workers look dead.
LARGEST_CLOCK_SKEW_SECONDS = 5.0
LEAST_GIT, MERGING_GIT = (2, 31), (2, 38)
LEAST_PYTHON = (3, 11)


def check_host(home: Path, profiles: Iterable[Profile]) -> list[Check]:
    """Everything that needs no server. ``profiles`` say whether GPUs or Slurm are wanted."""
    profiles = list(profiles)
    checks: list[tuple[str, Callable[[], Check]]] = [
        ("python", _python),
        ("git", _git),
        ("disk", lambda: _disk(home)),
        ("shared memory", lambda: _shared_memory(Path("/dev/shm"))),
        ("open files", _open_files),
        ("loopback", _loopback),
        ("process tree", _process_tree),
    ]
    if any(profile.slurm for profile in profiles):
        checks.append(("slurm", _slurm))
    if any(profile.device == "cuda" and not profile.slurm for profile in profiles):
        checks += [("driver", _driver), ("gpus are free", _free_gpus)]
    return [guarded(name, look) for name, look in checks]


def guarded(name: str, look: Callable[[], Check]) -> Check:
    """The check, or that it could not be made."""
    try:
        return look()
    except Exception as error:  # whatever goes wrong here is what people came to hear about
        return Check(
            name=name,
            health=Health.BROKEN,
            found=f"could not be looked at: {type(error).__name__}: {error}",
            mend="Mend what the message names, and run the doctor again.",
        )


def _python() -> Check:
    found = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] < LEAST_PYTHON:
        return Check(
            name="python", health=Health.BROKEN, found=found, mend="Run firstbad with Python 3.11 to 3.13."
        )
    return Check(name="python", health=Health.WELL, found=found)


def _git() -> Check:
    version = git_version()
    found = ".".join(map(str, version))
    if version < LEAST_GIT:
        return Check(name="git", health=Health.BROKEN, found=found, mend="Install git 2.38 or newer.")
    if version < MERGING_GIT:
        return Check(
            name="git",
            health=Health.DOUBTFUL,
            found=found,
            mend="Install git 2.38 or newer: older ones find fewer reverts that do not conflict.",
        )
    return Check(name="git", health=Health.WELL, found=found)


def _disk(home: Path) -> Check:
    there = next(folder for folder in (home, *home.parents) if folder.exists())
    free, nodes = shutil.disk_usage(there).free, os.statvfs(there)
    found = f"{free / GIB:.0f} GiB and {nodes.f_favail:,} files free below {home}"
    mend = "Free space, or point FIRSTBAD_HOME at a larger disk: environments and workspaces are kept there."
    if free < LEAST_DISK or (nodes.f_files and nodes.f_favail < 100_000):
        return Check(name="disk", health=Health.BROKEN, found=found, mend=mend)
    if free < ENOUGH_DISK:
        return Check(name="disk", health=Health.DOUBTFUL, found=found, mend=mend)
    return Check(name="disk", health=Health.WELL, found=found)


def _shared_memory(folder: Path) -> Check:
    size = shutil.disk_usage(folder).total
    found = f"{size / GIB:.2f} GiB at {folder}"
    if size < ENOUGH_SHARED_MEMORY:
        return Check(
            name="shared memory",
            health=Health.DOUBTFUL,
            found=found,
            mend="Start the container with --shm-size=16g or --ipc=host: data loaders die by SIGBUS without.",
        )
    return Check(name="shared memory", health=Health.WELL, found=found)


def _open_files() -> Check:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit < ENOUGH_FILES and limit != resource.RLIM_INFINITY:
        return Check(
            name="open files",
            health=Health.DOUBTFUL,
            found=f"{limit} a process",
            mend=f"Raise it to {ENOUGH_FILES} or more (ulimit -n, LimitNOFILE): data loaders need it.",
        )
    return Check(name="open files", health=Health.WELL, found=f"{limit} a process")


def _loopback() -> Check:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        with socket.create_connection(listening.getsockname(), timeout=5):
            pass
    return Check(name="loopback", health=Health.WELL, found="ranks of a trial can meet on 127.0.0.1")


def _process_tree() -> Check:
    if not Path(f"/proc/{os.getpid()}/stat").exists():
        return Check(
            name="process tree",
            health=Health.BROKEN,
            found="there is no /proc",
            mend="Use Linux with /proc mounted: what a trial leaves behind is found there.",
        )
    return Check(name="process tree", health=Health.WELL, found="/proc shows what a trial starts")


def _slurm() -> Check:
    missing = [name for name in ("sbatch", "srun", "scontrol", "scancel") if shutil.which(name) is None]
    if missing:
        return Check(
            name="slurm",
            health=Health.BROKEN,
            found=f"{', '.join(missing)} not found",
            mend="Install Slurm's client programs on this host, or remove `slurm` from the profile.",
        )
    answer = _asked("scontrol", "ping")
    if " is UP" not in answer:
        return Check(
            name="slurm",
            health=Health.BROKEN,
            found=answer or "the controller does not answer",
            mend="Check slurm.conf, munge, and the network to the controller.",
        )
    return Check(name="slurm", health=Health.WELL, found=answer)


def _driver() -> Check:
    answer = _asked("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader")
    if not answer:
        return Check(
            name="driver",
            health=Health.BROKEN,
            found="nvidia-smi shows no GPU",
            mend="Install NVIDIA's driver, start the container with its GPUs, or run this queue elsewhere.",
        )
    return Check(name="driver", health=Health.WELL, found="; ".join(answer.splitlines()))


def _free_gpus() -> Check:
    answer = _asked(
        "nvidia-smi", "--query-compute-apps=pid,process_name,used_memory", "--format=csv,noheader"
    )
    if answer:
        return Check(
            name="gpus are free",
            health=Health.DOUBTFUL,
            found="; ".join(answer.splitlines()[:8]),
            mend="End these processes, or keep them off this host: their memory is not a trial's.",
        )
    return Check(name="gpus are free", health=Health.WELL, found="no other process uses them")


def check_clock(name: str, server_seconds: float) -> Check:
    """This host's clock against a server's, which was asked just now."""
    skew = time.time() - server_seconds
    found = f"{abs(skew):.1f} s {'ahead of' if skew > 0 else 'behind'} {name}"
    if abs(skew) > LARGEST_CLOCK_SKEW_SECONDS:
        return Check(
            name="clock",
            health=Health.BROKEN,
            found=found,
            mend="Run chrony or ntpd on every host: leases are told by the clock.",
        )
    return Check(name="clock", health=Health.WELL, found=found)


def check_torch(python: Path, environment: Mapping[str, str]) -> Check:
    """torch as a training environment has it."""
    program = (
        "import torch; print('torch', torch.__version__, 'CUDA', torch.version.cuda, 'GPUs', "
        "torch.cuda.device_count(), 'NCCL', "
        "'.'.join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else None)"
    )
    done = subprocess.run(
        [str(python), "-c", program],
        env={**environment, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    found = done.stdout.strip().rpartition("\n")[2]
    version = re.match(r"torch (\d+)\.(\d+)", found)
    if done.returncode != 0 or version is None:
        said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return Check(
            name="torch",
            health=Health.BROKEN,
            found=f"{python} cannot import torch: {said}",
            mend="Lock torch in the repository, or name an interpreter that has it in the profile.",
        )
    if (int(version[1]), int(version[2])) < (2, 6):
        return Check(
            name="torch", health=Health.BROKEN, found=found, mend="The probe needs torch 2.6 or newer."
        )
    return Check(name="torch", health=Health.WELL, found=found)


def check_bridge(python: Path, environment: Mapping[str, str]) -> Check:
    """A dry run goes through Megatron's own loop: Bridge, or Core alone, must be where the job finds it."""
    program = (
        "import importlib.util as u; "
        "print((u.find_spec('megatron.bridge') or u.find_spec('megatron.core')).origin or 'found')"
    )
    done = subprocess.run(
        [str(python), "-c", program],
        env=dict(environment),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode != 0:
        return Check(
            name="bridge",
            health=Health.BROKEN,
            found=f"{python} finds neither megatron.bridge nor megatron.core",
            mend="A dry run goes through their loop: lock them, or name their folder in python_path.",
        )
    return Check(name="bridge", health=Health.WELL, found=done.stdout.strip())


def _asked(*command: str) -> str:
    """What a program prints; "" if it is not there or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
