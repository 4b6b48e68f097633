"""A training repository with what real ones carry: a pinned library that pins again, and a lock.

    training ── vendor/library ── vendor/kernel        gitlinks
        └─ lock.txt: alpha, beta                       packages, from a folder of wheels

The job takes the sum of the bytes that its own plan, both pinned plans and the packages say, and those of
files ``extra-NAME.json``. A plan may say which numbers of another part it needs: like real hybrids, the job
does not start with others.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.e2e.installation import CAPACITY_BYTES, JOB, Installation
from tests.repository_scene import RepositoryScene
from tests.wheel_scene import write_wheel

LIBRARY, KERNEL = "vendor/library", "vendor/kernel"

#: Sums up the parts, and fails to start where one needs what another does not have.
PARTS = """
import glob
plan = json.load(open("plan.json"))
plan["bytes"] += sum(json.load(open(path)) for path in glob.glob("extra-*.json"))
parts = {"training": plan}
for name, path in (("library", "vendor/library"), ("kernel", "vendor/library/vendor/kernel")):
    if os.path.exists(path + "/plan.json"):
        parts[name] = json.load(open(path + "/plan.json"))
for name in plan.get("packages", ()):
    parts[name] = {"bytes": __import__(name).BYTES, "number": __import__(name).NUMBER}
for name, part in parts.items():
    for other, (least, most) in part.get("needs", {}).items():
        number = parts[other].get("number", 0)
        if not least <= number <= most:
            raise ImportError(f"{name} needs {other} {least} to {most}, and there is {number}")
plan["bytes"] = sum(part.get("bytes", 0) for part in parts.values())
"""
NESTED_JOB = JOB.replace('plan = json.load(open("plan.json"))\n', PARTS)
assert NESTED_JOB != JOB


class Nested:
    """The three repositories, the wheels, and the profile ``nested``."""

    def __init__(self, installation: Installation, folder: Path) -> None:
        self.training = RepositoryScene(folder / "training")
        self.library = RepositoryScene(folder / "library")
        self.kernel = RepositoryScene(folder / "kernel")
        self.wheels = folder / "wheels"
        self.wheels.mkdir()
        self.catalogue = installation.settings.catalogue
        repositories: tuple[tuple[str, RepositoryScene, dict[str, str]], ...] = (
            ("training", self.training, {LIBRARY: "library"}),
            ("library", self.library, {KERNEL: "kernel"}),
            ("kernel", self.kernel, {}),
        )
        for name, scene, pins in repositories:
            self._register("repositories", name, {"name": name, "url": scene.url, "pins": pins})
        self.write_profile("nested")

    def write_profile(self, name: str, **changes: Any) -> None:
        row = {
            "name": name,
            "repository": "training",
            "environment": {"kind": "interpreter", "python": sys.executable},
            "launch": [{"command": ["{python}", "train.py"]}],
            "capacity_bytes": CAPACITY_BYTES,
            "criterion": {"kind": "out_of_memory"},
            **changes,
        }
        self._register("profiles", name, row)

    def write_profile_with_lock(self, *packages: str) -> None:
        """``nested`` with packages of the lock, each in a folder of its own."""
        environment = {
            "kind": "interpreter",
            "python": sys.executable,
            "lock": "lock.txt",
            "overlay": list(packages),
            "find_links": [str(self.wheels)],
        }
        self.write_profile("nested", environment=environment)

    def _register(self, kind: str, name: str, row: Mapping[str, Any]) -> None:
        path = self.catalogue / kind / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(dict(row)))

    def wheel(self, name: str, version: str, size: int) -> None:
        number = int(version.split(".")[0])
        write_wheel(self.wheels, name, version, f"BYTES = {size}\nNUMBER = {number}\n")

    def commit(
        self,
        subject: str,
        *,
        pin: str | None = None,
        lock: str | None = None,
        scene: RepositoryScene | None = None,
        packages: Sequence[str] = (),
        **plan: Any,
    ) -> str:
        """A commit of the training repository (or of another), with a plan, a pin and a lock.

        Without a plan the one of the commit before stays.
        """
        scene = scene or self.training
        plan |= {"packages": list(packages)} if packages else {}
        files = {"plan.json": json.dumps(plan)} if plan else {}
        if scene is self.training:
            files["train.py"] = NESTED_JOB
            if lock is not None:
                files["lock.txt"] = lock
        for path, content in files.items():
            scene.write(path, content)
        scene.git("add", *files)
        if pin is not None:
            scene.pin(LIBRARY if scene is self.training else KERNEL, pin)
        return scene.commit_index(subject)
