"""A world of repositories that pin each other, bisected to the end in this process without a job.

    training ── vendor/library ── vendor/kernel        gitlinks
        ├─ vendor/other
        └─ lock.txt: alpha, beta, ...

Every repository holds a number in ``n.py``. What a trial comes to is a rule over the numbers of what it
would check out, read here with plain git.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from bisection.adapters.storage.bisections import Status
from bisection.commits import State
from bisection.measurement import Measurement, Outcome
from bisection.report import CulpritReport
from tests.integration.two_hosts import Hosts
from tests.repository_scene import RepositoryScene
from workers.advancing import advance

LIBRARY, KERNEL, OTHER = "vendor/library", "vendor/library/vendor/kernel", "vendor/other"

#: Numbers by part: "training", a pin's path, or a package's name.
Parts = Mapping[str, int]
Rule = Callable[[Parts], bool]


def _package(line: str) -> tuple[str, str]:
    name, _, version = line.partition("==")
    return name.partition("[")[0].replace("_", "-").lower(), version


def _number(version: str) -> int:
    """Of a version, or of a whole requirement."""
    return int(version.rpartition("==")[2].partition(";")[0])


def _never(_parts: Parts) -> bool:
    return False


class PinnedWorld(Hosts):
    """``self.scene`` is the training repository."""

    def __init__(self, folder: Path, **profile: Any) -> None:
        environment = {"kind": "venv", "lock": "lock.txt", "find_links": [str(folder / "wheels")]}
        super().__init__(folder, **{"relevant_paths": [], "environment": environment, **profile})
        self.library, self.kernel, self.other = (
            RepositoryScene(folder / name) for name in ("library", "kernel", "other")
        )
        self.scenes = {"": self.scene, LIBRARY: self.library, KERNEL: self.kernel, OTHER: self.other}
        for name, scene, pins in (
            ("training", self.scene, {LIBRARY: "library", OTHER: "other"}),
            ("library", self.library, {"vendor/kernel": "kernel"}),
            ("kernel", self.kernel, {}),
            ("other", self.other, {}),
        ):
            path = folder / "catalogue" / "repositories" / f"{name}.yaml"
            path.write_text(yaml.safe_dump({"name": name, "url": scene.url, "pins": pins}))

    def line(self, scene: RepositoryScene, count: int, start: int = 0) -> list[str]:
        """Commits with the numbers from ``start`` on."""
        return [self.commit(n, scene=scene) for n in range(start, start + count)]

    def commit(
        self,
        number: int | None = None,
        *,
        scene: RepositoryScene | None = None,
        subject: str = "",
        files: Mapping[str, str] | None = None,
        **pins: str | None,
    ) -> str:
        """A commit with a number, and pins by name; a pin that is None goes."""
        scene = scene or self.scene
        written = {**({"n.py": str(number)} if number is not None else {}), **(files or {})}
        for path, content in written.items():
            scene.write(path, content)
            scene.git("add", path)
        for name, pin in pins.items():
            if pin is None:
                scene.git("rm", "-q", "--cached", f"vendor/{name}")
            else:
                scene.pin(f"vendor/{name}", pin)
        return scene.commit_index(subject or f"{scene.folder.name} {number}")

    def parts(self, state: State) -> dict[str, int]:
        """The numbers of what a state checks out.

        KeyError for an override of what it does not pin, ValueError for a commit that is nowhere.
        """
        overrides, found = dict(state.pins), {"": state.commit}
        numbers = {"training": int(self._read(self.scene, state.commit, "n.py"))}
        for path, above in ((LIBRARY, ""), (OTHER, ""), (KERNEL, LIBRARY)):
            holder = found.get(above)
            own = holder and self._gitlink(self.scenes[above], holder, path.removeprefix(f"{above}/"))
            if own:
                found[path] = overrides.pop(path, own)
                numbers[path] = int(self._read(self.scenes[path], found[path], "n.py"))
        if overrides:
            raise KeyError(f"{state} overrides what is not pinned: {overrides}")
        lock = dict(_package(line) for line in self._read(self.scene, state.commit, "lock.txt").splitlines())
        numbers |= {name: _number(value) for name, value in {**lock, **dict(state.packages)}.items() if value}
        numbers["tests/job.py"] = int(self._read(self.scene, state.commit, "tests/job.py") or 0)
        return numbers

    @staticmethod
    def _read(scene: RepositoryScene, commit: str, path: str) -> str:
        done = subprocess.run(
            ["git", "show", f"{commit}:{path}"], cwd=scene.folder, capture_output=True, text=True, check=False
        )
        return done.stdout

    @staticmethod
    def _gitlink(scene: RepositoryScene, commit: str, path: str) -> str | None:
        mode, _, rest = scene.git("ls-tree", commit, "--", path).partition(" ")
        return rest.split()[1] if mode == "160000" else None

    def bisect(
        self, good: Any, bad: Any, fails: Rule, unbuildable: Rule = _never, **more: Any
    ) -> CulpritReport:
        """The report, once it has ended."""
        bisection_id = self.create(good, bad, **more)
        for _ in range(200):
            advance(self.control, bisection_id)
            row = self.row(bisection_id)
            if row.status is Status.ENDED:
                assert row.report is not None
                return CulpritReport.from_json(row.report)
            self._run_one(fails, unbuildable)
        raise AssertionError("the bisection does not come to an end")

    def _run_one(self, fails: Rule, unbuildable: Rule) -> None:
        claim = self.worker.claims.claim(self.control.catalogue.profile("small").queue, "w")
        if claim is None:
            return
        self.ran.append(claim.trial)
        measured = Measurement(
            outcome=Outcome.UNBUILDABLE, state=claim.trial.state, worker=f"w{len(self.ran)}", seconds=1.0
        )
        if claim.trial.purpose != "revert":
            with suppress(ValueError, KeyError):
                parts = self.parts(claim.trial.state)
                if unbuildable(parts):
                    raise ValueError("this mix is not buildable")
                bad = fails(parts)
                measured = measured.evolve(
                    outcome=Outcome.CRASHED if bad else Outcome.COMPLETED,
                    signature="ValueError in experts" if bad else "",
                )
        assert self.worker.claims.complete(claim, measured, {})
