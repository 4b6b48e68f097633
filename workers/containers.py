"""A trial's command inside an image: the words that start it there, and how what was started ends.

Which image that is decides the environment (`PreparedEnvironment.image` and its `python`, a path in the
image); how it is run, the profile (`bisection.adapters.containers.Container`). The command sees the
workspace, the trial's folder, firstbad's own programs for it, the profile's data and places, and nothing
else of this host.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from bisection.adapters.containers import Container, Mount
from workers import container_run
from workers.launching import Launch
from workers.supervisor import Result

#: What no test of firstbad's has ever run; the doctor and docs/compatibility.md say so, too.
UNTESTED = frozenset({"apptainer", "pyxis"})
_PROGRAM = "container-program.txt"
#: What a container's program needs of the worker's environment; the trial's own goes in by words.
_CLIENTS = (
    "HOME", "PATH", "XDG_RUNTIME_DIR", "TMPDIR", "DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG",
    "CONTAINER_HOST", "CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF", "CONTAINERS_REGISTRIES_CONF",
    "REGISTRY_AUTH_FILE", "APPTAINER_CACHEDIR", "APPTAINER_TMPDIR",
)  # fmt: skip


def client_environment() -> dict[str, str]:
    """For every call of docker, podman or apptainer: the worker's own, without anything of the service."""
    return {name: os.environ[name] for name in _CLIENTS if name in os.environ}


def contained(launch: Launch, container: Container, folder: Path, variables: dict[str, str]) -> Launch:
    """The launch with its command inside the image, for docker, podman and apptainer.

    ``folder`` is the trial's own; ``variables`` are put beside the launch's environment. The result's
    environment is the program's, not the command's.
    """
    inside = {**launch.environment, **variables}
    devices = {name: inside.pop(name) for name in ("CUDA_VISIBLE_DEVICES",) if inside.get(name)}
    outside = client_environment() | variables | devices
    gpus = ["--gpus"] if launch.environment.get("FIRSTBAD_DEVICE") == "cuda" else []
    if container.runtime == "apptainer":
        outside |= {f"APPTAINERENV_{name}": value for name, value in inside.items()}
        words = ["exec", *_apptainer(container, launch, folder)]
    else:
        words = ["run", *_daemonic(container, launch, folder, inside)]
    return replace(
        launch,
        command=(
            *(sys.executable, "-I", container_run.__file__, "--folder", str(folder), *gpus, "--"),
            *(container.runtime, *words),
        ),
        environment=outside,
    )


def srun_options(launch: Launch, container: Container, folder: Path) -> list[str]:
    """What Pyxis adds to srun. The image's own variables win there, except over those that are named."""
    mounts = [
        f"{m.source}:{m.place}" + ("" if m.writable else ":ro") for m in _mounts(launch, container, folder)
    ]
    return [
        f"--container-image={launch.image}", f"--container-mounts={','.join(mounts)}",
        f"--container-workdir={launch.folder}", "--no-container-mount-home", "--no-container-entrypoint",
        f"--container-env={','.join(sorted(launch.environment))}", *container.options,
    ]  # fmt: skip


def announce(container: Container, folder: Path) -> None:
    """Written before a container can be: by it `take_back` knows whom to ask."""
    if container.runtime in ("docker", "podman"):
        (folder / _PROGRAM).write_text(container.runtime, encoding="utf-8")


def take_back(folder: Path) -> None:
    """Ends the containers that a trial in this folder left on this host, whoever of its owners was killed."""
    with suppress(OSError):
        container_run.end((folder / _PROGRAM).read_text(encoding="utf-8"), folder)


def told_apart(result: Result, container: Container, folder: Path, *, node: int, said: str) -> Result:
    """The result of a container's program, with what the program knows of the container's own end.

    ``said`` is the last line of its output: of the program itself where no container started.
    """
    if container.runtime not in ("docker", "podman") or result.exit_code is None:
        return result
    try:
        row = json.loads((folder / f"container-{node}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return result
    if not row["started"]:
        return Result(error=f"{container.runtime} could not start the container: {said or row['error']}")
    if row["oom_killed"]:
        result.memory_kills = max(result.memory_kills, 1)
    return result


def _daemonic(container: Container, launch: Launch, folder: Path, inside: dict[str, str]) -> list[str]:
    rootless = container.runtime == "podman" and os.getuid() != 0
    words = [
        "--interactive", "--pull=missing", f"--network={'host' if container.network else 'none'}",
        f"--user={os.getuid()}:{os.getgid()}", *(["--userns=keep-id"] if rootless else []),
        "--cap-drop=all", "--security-opt=no-new-privileges", "--oom-score-adj=500",
        f"--shm-size={container.shared_memory_bytes}",
        f"--workdir={launch.folder}", f"--entrypoint={launch.command[0]}",
    ]  # fmt: skip
    if container.memory_bytes:
        words += [f"--memory={container.memory_bytes}", f"--memory-swap={container.memory_bytes}"]
    for mount in _mounts(launch, container, folder):
        words += [
            "--mount",
            f"type=bind,src={mount.source},dst={mount.place}" + ("" if mount.writable else ",readonly"),
        ]
    words += [f"--env={name}={value}" for name, value in inside.items()]
    return [*words, *container.options, launch.image, *launch.command[1:]]


def _apptainer(container: Container, launch: Launch, folder: Path) -> list[str]:
    words = ["--containall", "--no-home", "--pwd", str(launch.folder)]
    if not container.network:
        words += ["--net", "--network", "none"]
    for mount in _mounts(launch, container, folder):
        words += ["--bind", f"{mount.source}:{mount.place}" + ("" if mount.writable else ":ro")]
    is_file = launch.image.startswith("/") or "://" in launch.image
    image = launch.image if is_file else f"docker://{launch.image}"
    return [*words, *container.options, image, *launch.command]


def _mounts(launch: Launch, container: Container, folder: Path) -> list[Mount]:
    """The trial's folder, with the workspace in it; what the command names; what the profile adds."""
    mine = [Mount(source=str(folder), writable=True)]
    mine += [Mount(source=str(path)) for path in launch.reads]
    added = {mount.place for mount in container.mounts}
    return [*(mount for mount in mine if mount.place not in added), *container.mounts]
