"""The words that start a trial in a container: what is handed on, what is not, as each program reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from bisection.adapters.containers import Container
from workers.container_run import gpu_words
from workers.containers import contained, srun_options
from workers.launching import Launch

LAUNCH = Launch(
    command=("/opt/venv/bin/python", "-I", "/firstbad/workers/ranks.py", "--processes", "8"),
    environment={"HOME": "/t/home", "FIRSTBAD_DEVICE": "cuda", "CUDA_VISIBLE_DEVICES": "2,3", "A": "x,y z"},
    folder=Path("/t/workspace"),
    processes=8,
    python=Path("/opt/venv/bin/python"),
    adapter="",
    overrides=(),
    image="nvcr.io/nvidia/nemo@sha256:" + "a" * 64,
    reads=(Path("/firstbad/workers"), Path("/data/cord-v2")),
)


def words(runtime: str, **changes: Any) -> tuple[list[str], dict[str, str]]:
    container = Container.model_validate({"runtime": runtime, **changes})
    launch = contained(LAUNCH, container, Path("/t"), {"MARK": "m"})
    command = list(launch.command)
    return command[command.index("--") + 1 :], dict(launch.environment)


def test_docker_gets_the_places_the_limits_and_the_environment_by_words() -> None:
    command, client = words("docker", memory_bytes=2**36, options=["--ulimit=memlock=-1"])
    assert command[:2] == ["docker", "run"]
    image = command.index(LAUNCH.image)
    assert command[image + 1 :] == list(LAUNCH.command[1:])
    given = set(command[:image])
    assert given >= {
        "--network=none", f"--memory={2**36}", f"--memory-swap={2**36}",
        "--ulimit=memlock=-1", "--cap-drop=all",
        "type=bind,src=/t,dst=/t", "type=bind,src=/data/cord-v2,dst=/data/cord-v2,readonly",
        "--env=A=x,y z", "--env=MARK=m", "--entrypoint=/opt/venv/bin/python", "--workdir=/t/workspace",
    }  # fmt: skip
    assert not any("CUDA_VISIBLE_DEVICES" in word for word in command), "the container numbers its GPUs anew"
    assert client["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert "A" not in client


def test_apptainer_gets_variables_as_they_are_and_cannot_see_the_host() -> None:
    command, client = words("apptainer")
    assert command[:3] == ["apptainer", "exec", "--containall"]
    assert "/data/cord-v2:/data/cord-v2:ro" in command
    assert f"docker://{LAUNCH.image}" in command
    assert client["APPTAINERENV_A"] == "x,y z"
    assert command[-len(LAUNCH.command) :] == list(LAUNCH.command)


def test_pyxis_mounts_alike_and_names_the_variables_that_win_over_the_images() -> None:
    container = Container.model_validate({"runtime": "pyxis", "network": True})
    options = srun_options(LAUNCH, container, Path("/t"))
    assert (
        "--container-mounts=/t:/t,/firstbad/workers:/firstbad/workers:ro,/data/cord-v2:/data/cord-v2:ro"
        in options
    )
    assert "--container-env=A,CUDA_VISIBLE_DEVICES,FIRSTBAD_DEVICE,HOME" in options


@pytest.mark.parametrize(
    ("runtime", "visible", "expected"),
    [
        ("docker", None, ["--gpus", "all"]),
        ("docker", "2,GPU-5c1b", ["--gpus", '"device=2,GPU-5c1b"']),
        ("docker", "", []),
        ("podman", None, ["--device", "nvidia.com/gpu=all"]),
        ("podman", "0,1", ["--device", "nvidia.com/gpu=0", "--device", "nvidia.com/gpu=1"]),
    ],
)
def test_gpus_are_handed_on_as_the_worker_sees_them(
    runtime: str, visible: str | None, expected: list[str]
) -> None:
    assert gpu_words(runtime, visible) == expected


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"runtime": "podman", "options": ["--network=host"]}, "set by firstbad itself"),
        ({"runtime": "podman", "options": ["-v"]}, "long form"),
        ({"runtime": "docker", "mounts": [{"source": "data"}]}, "absolute path"),
        ({"runtime": "apptainer", "memory_bytes": 1}, "limit the job itself"),
        ({"runtime": "pyxis"}, "write network: true"),
    ],
)
def test_what_a_profile_cannot_mean_is_refused(row: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        Container.model_validate(row)
