"""`firstbad doctor` on this real machine, and on profiles with one thing wrong."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from bisection.adapters.catalogue import Catalogue
from tests.repository_scene import RepositoryScene
from workers.host_checks import Check, Health, check_clock, check_host, check_torch, guarded
from workers.profile_checks import check_profile


class Installation:
    """A home whose catalogue has one repository and one profile."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.scene = RepositoryScene(home / "origin")
        self.scene.commit("train", train__py="print('trains')")
        for folder in ("profiles", "repositories"):
            (home / "catalogue" / folder).mkdir(parents=True)
        self.write("repositories", "origin", {"name": "origin", "url": self.scene.url})
        self.profile()

    def write(self, folder: str, name: str, row: dict[str, Any]) -> None:
        (self.home / "catalogue" / folder / f"{name}.yaml").write_text(yaml.safe_dump(row))

    def profile(self, **fields: Any) -> None:
        row = {
            "name": "small",
            "repository": "origin",
            "environment": {"kind": "interpreter", "python": sys.executable},
            "launch": [{"when": {"path_exists": "train.py"}, "command": ["{python}", "train.py"]}],
            "data": {"kind": "real", "path": str(self.home), "digest": "1"},
        }
        self.write("profiles", "small", {**row, **fields})

    def checks(self) -> dict[str, Check]:
        catalogue = Catalogue(self.home / "catalogue")
        found = check_profile(catalogue.profile("small"), catalogue, self.home, lambda _: None)
        return {check.name: check for check in found}


@pytest.fixture
def installation(tmp_path: Path) -> Installation:
    return Installation(tmp_path)


def test_a_profile_that_is_well_is_prepared_up_to_its_command(installation: Installation) -> None:
    checks = installation.checks()
    assert [checks[name].health for name in ("data", "repository", "workspace", "environment", "launch")] == [
        Health.WELL
    ] * 5
    assert "train.py" in checks["launch"].found
    assert list((installation.home / "trials").iterdir()) == [], "nothing of it stays"


@pytest.mark.parametrize(
    ("fields", "name", "words"),
    [
        ({"data": {"kind": "real", "path": "/nowhere"}}, "data", "not on this host"),
        ({"relevant_paths": ["trian.py"]}, "workspace", "no trian.py in it"),
        ({"launch": [{"when": {"path_exists": "no.py"}, "command": ["x"]}]}, "launch", "no.py must exist"),
        (
            {"environment": {"kind": "interpreter", "python": "/nowhere/python"}},
            "environment",
            "/nowhere/python does not exist on this host",
        ),
        ({"environment": {"kind": "venv", "lock": "no.lock"}}, "environment", "no.lock is not in the tree"),
    ],
)
def test_what_is_broken_is_named_with_its_place(
    installation: Installation, fields: dict[str, Any], name: str, words: str
) -> None:
    installation.profile(**fields)
    check = installation.checks()[name]
    assert check.health is Health.BROKEN
    assert words in check.found
    assert check.mend


def test_a_repository_that_is_gone_ends_the_checks(installation: Installation) -> None:
    installation.write("repositories", "origin", {"name": "origin", "url": "file:///nowhere"})
    checks = installation.checks()
    assert checks["repository"].health is Health.BROKEN
    assert "workspace" not in checks


def test_mock_data_is_doubtful(installation: Installation) -> None:
    installation.profile(data={"kind": "mock"})
    assert installation.checks()["data"].health is Health.DOUBTFUL


def test_the_host_checks_look_at_this_machine(installation: Installation) -> None:
    installation.profile(device="cuda", gpus=1)
    checks = {
        check.name: check
        for check in check_host(installation.home, Catalogue(installation.home / "catalogue").profiles())
    }
    assert checks["git"].health is not Health.BROKEN
    assert checks["loopback"].health is Health.WELL
    assert "driver" in checks, "a profile that wants GPUs has them looked at"
    assert all(check.mend for check in checks.values() if check.health is not Health.WELL)


def test_a_check_that_cannot_look_says_so() -> None:
    def look() -> Check:
        raise OSError("no such thing")

    check = guarded("thing", look)
    assert check.health is Health.BROKEN
    assert "no such thing" in check.found


def test_clocks_that_differ_are_told() -> None:
    assert check_clock("the broker", time.time()).health is Health.WELL
    behind = check_clock("the broker", time.time() + 60)
    assert behind.health is Health.BROKEN
    assert "behind the broker" in behind.found


def test_a_python_without_torch_is_told(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    check = check_torch(bare, {"PATH": "/usr/bin:/bin"})
    assert check.health is Health.BROKEN
    assert "torch" in check.found


def test_the_command_prints_and_exits_by_what_it_found(installation: Installation) -> None:
    def doctor(*words: str) -> tuple[int, dict[str, Any]]:
        done = subprocess.run(
            [sys.executable, "-m", "firstbad", "doctor", "--json", *words],
            env={
                "FIRSTBAD_HOME": str(installation.home),
                "PATH": "/usr/local/bin:/usr/bin:/bin",
                "HOME": "/tmp",
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)

    code, answer = doctor("--profile", "nobody")
    assert code == 1
    assert any(row["section"] == "profile nobody" and row["health"] == "broken" for row in answer["checks"])
    assert {"installation", "host"} <= {row["section"] for row in answer["checks"]}
