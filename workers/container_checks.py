"""What a worker host must have for trials in containers: the program, its answer, and what is untested."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable
from functools import partial

from bisection.adapters.catalogue import Profile
from bisection.adapters.containers import Container
from workers.containers import UNTESTED, client_environment
from workers.host_checks import Check, Health, guarded

_INSTALL = {
    "docker": "Install Docker, start its daemon, and let the worker's user ask it (group docker).",
    "podman": "Install Podman; where it starts no container, its message says which file of containers.conf.",
    "apptainer": "Install Apptainer on every host and node that runs trials.",
    "pyxis": "Install Pyxis and enroot on the cluster: srun must know --container-image.",
}
#: What each prints of itself, and what of it counts.
_ASKED = {
    "docker": (("docker", "version", "--format", "{{.Server.Version}}"), r"(\S+)"),
    "podman": (("podman", "version", "--format", "{{.Client.Version}}"), r"(\S+)"),
    "apptainer": (("apptainer", "--version"), r"version (\S+)"),
    "pyxis": (("srun", "--help"), r"(--container-image)"),
}


def check_containers(profiles: Iterable[Profile]) -> list[Check]:
    """One check for each program that a profile runs its trials by."""
    wanted = {profile.container.runtime: profile.container for profile in profiles if profile.container}
    return [
        guarded(f"container {runtime}", partial(check_container, container))
        for runtime, container in sorted(wanted.items())
    ]


def check_container(container: Container) -> Check:
    """Whether the program is there and answers. Whether it can start a container, the first trial shows."""
    runtime = container.runtime
    command, pattern = _ASKED[runtime]
    said, answer = "", None
    if shutil.which(command[0]) is None:
        said = f"{command[0]} is not installed"
    else:
        try:
            done = subprocess.run(
                command, env=client_environment(), capture_output=True, text=True, timeout=60, check=False
            )
            answer = re.search(pattern, done.stdout) if done.returncode == 0 else None
            said = (done.stderr.strip().splitlines() or ["it does not answer as expected"])[-1]
        except subprocess.TimeoutExpired:
            said = "it does not answer within 60 s"
    if answer is None:
        return Check(name=f"container {runtime}", health=Health.BROKEN, found=said, mend=_INSTALL[runtime])
    if runtime in UNTESTED:
        return Check(
            name=f"container {runtime}",
            health=Health.DOUBTFUL,
            found=f"{answer[1]}; untested: firstbad's own tests have never run {runtime}",
            mend="Try one trial by hand first, and compare its launch.json with what ran.",
        )
    return Check(name=f"container {runtime}", health=Health.WELL, found=answer[1])
