"""The doctor's look at container programs, each printing what the real one prints."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bisection.adapters.containers import Container
from workers.container_checks import check_container
from workers.host_checks import Health

SRUN = (
    "      --container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH\n                        [pyxis] the image\n"
)


@pytest.mark.parametrize(
    ("runtime", "program", "prints", "code", "health", "found"),
    [
        ("podman", "podman", "4.3.1\n", 0, Health.WELL, "4.3.1"),
        ("docker", "docker", "28.2.2\n", 0, Health.WELL, "28.2.2"),
        ("docker", "docker", "\n", 1, Health.BROKEN, "it does not answer as expected"),
        ("apptainer", "apptainer", "apptainer version 1.3.4\n", 0, Health.DOUBTFUL, "1.3.4; untested: "),
        ("pyxis", "srun", SRUN, 0, Health.DOUBTFUL, "--container-image; untested: "),
        ("pyxis", "srun", "      --container   Path to OCI container bundle\n", 0, Health.BROKEN, ""),
    ],
)
def test_a_program_is_told_by_its_answer(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    runtime: str,
    program: str,
    prints: str,
    code: int,
    health: Health,
    found: str,
) -> None:
    (tmp_path / "says").write_text(prints)
    (tmp_path / program).write_text(f'#!/bin/sh\ncat "{tmp_path}/says"\nexit {code}\n')
    (tmp_path / program).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    check = check_container(Container.model_validate({"runtime": runtime, "network": True}))
    assert check.health is health
    assert check.found.startswith(found)
    assert bool(check.mend) == (health is not Health.WELL)


def test_a_program_that_is_not_there_is_told_with_the_repair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    check = check_container(Container.model_validate({"runtime": "podman"}))
    assert (check.health, check.found) == (Health.BROKEN, "podman is not installed")
    assert "Install Podman" in check.mend
