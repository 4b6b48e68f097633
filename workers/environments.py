"""The Python that a state's training job runs in: one that exists, or one made from its lock.

An environment is named by what decides it: kind, Python, platform, the locked
packages that are in it, and which of them pip installs. Packages that the profile
names as overlays are apart (`wheels`), so a commit that moves only those shares it.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bisection.adapters.catalogue import Environment
from workers.building import BuildHostError, BuildSteps, build_environment, build_once, uv_program
from workers.requirement_lock import Pin, Unbuildable, normalised, read_lock, with_overrides
from workers.wheels import Overlay, make_overlay

#: Tells of a Python what decides an environment; and, of one that exists, what is installed in it.
_DESCRIBE = """
import importlib.metadata, json, platform, sys, sysconfig
print(json.dumps({
    "version": platform.python_version(), "implementation": sys.implementation.cache_tag,
    "platform": sysconfig.get_platform(), "libc": "-".join(platform.libc_ver()),
    "installed": sorted({f"{d.metadata['Name']}=={d.version}" for d in importlib.metadata.distributions()}),
}))
"""
_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class PreparedEnvironment:
    """What a trial is started with."""

    key: str  #: equal exactly for equal environments, overlays included
    python: Path
    overlays: tuple[Overlay, ...]  #: to be put on PYTHONPATH, in this order
    image: str = ""  #: in which ``python`` is, as the container's program names it; "": on this host


class Environments:
    """The environments of one host, below ``root``; any number of workers may share them."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def prepare(
        self,
        wanted: Environment,
        lock_text: str | None,
        packages: Mapping[str, str],
        *,
        progress: Callable[[str], None] = lambda _: None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> PreparedEnvironment:
        """Makes what is missing. ``packages`` are the state's overrides of the lock.

        Raises Unbuildable (the state's fault), BuildHostError (the host's) or Cancelled.
        """
        pins = _pins(wanted, lock_text, packages)
        apart = [normalised(name) for name in wanted.overlay]
        base = [pin for pin in pins if pin.name not in apart]
        if wanted.kind == "interpreter":
            assert wanted.python is not None  # the catalogue's shape guarantees it
            python = Path(wanted.python)
            described = describe_python(python)
            key = _digest("interpreter", str(python), described)
        else:
            python, described, key = self._venv(wanted, base, progress, cancelled)
        overlays = tuple(
            make_overlay(
                self._root,
                pin,
                python=python,
                platform=f"{described['implementation']} {described['platform']}",
                find_links=wanted.find_links,
                progress=progress,
                cancelled=cancelled,
            )
            for pin in _in_order(apart, pins)
        )
        return PreparedEnvironment(
            key=_digest(key, [overlay.key for overlay in overlays]), python=python, overlays=overlays
        )

    def _venv(
        self,
        wanted: Environment,
        pins: Sequence[Pin],
        progress: Callable[[str], None],
        cancelled: Callable[[], bool],
    ) -> tuple[Path, dict[str, object], str]:
        maker = Path(wanted.python or sys.executable)
        described = {name: value for name, value in describe_python(maker).items() if name != "installed"}
        by_pip = [normalised(name) for name in wanted.pip_first]
        unknown = sorted(set(by_pip) - {pin.name for pin in pins})
        if unknown:
            raise Unbuildable(
                "reading the lock",
                f"the profile's pip_first names {', '.join(unknown)}, which is not locked here",
            )
        key = _digest(_VERSION, "venv", described, sorted(pin.requirement for pin in pins), sorted(by_pip))

        def build(folder: Path, steps: BuildSteps) -> None:
            venv = folder / "venv"
            python = venv / "bin" / "python"
            tool = uv_program()
            # pip is in it only where pip has work to do: its own version is nobody's pin.
            bare = ["--without-pip"] if tool and not by_pip else []
            steps.run("making a virtual environment", [str(maker), "-m", "venv", *bare, str(venv)])
            lock = folder / "lock.txt"
            lock.write_text("".join(f"{pin.requirement}\n" for pin in pins), encoding="utf-8")
            links = [word for link in wanted.find_links for word in ("--find-links", link)]
            first = [pin.requirement for pin in pins if pin.name in by_pip]
            if first:
                # With what they depend on: which that is (CUDA libraries or none) is the machine's choice.
                plain = [pin for pin in pins if not pin.extras]
                limits = folder / "constraints.txt"
                limits.write_text("".join(f"{pin.requirement}\n" for pin in plain), encoding="utf-8")
                command = [str(python), "-m", "pip", "install", "--constraint", str(limits), *links, *first]
                steps.run(f"installing {', '.join(by_pip)} with pip", command)
            rest = folder / "rest.txt"
            others = [pin.requirement for pin in pins if pin.name not in by_pip]
            rest.write_text("".join(f"{line}\n" for line in others), encoding="utf-8")
            if others:
                program = (
                    [tool, "pip", "install", "--python", str(python), "--compile-bytecode"]
                    if tool
                    else [str(python), "-m", "pip", "install"]
                )
                steps.run(
                    f"installing {len(others)} locked packages with {'uv' if tool else 'pip'}",
                    [*program, "--no-deps", *links, "-r", str(rest)],
                )

        built = build_once(self._root / "environments", key, build, progress=progress, cancelled=cancelled)
        if built.made_now:
            progress("the environment is built")
        return built.folder / "venv" / "bin" / "python", described, key


def describe_python(python: Path) -> dict[str, object]:
    """Version, platform and installed packages of an interpreter. Raises BuildHostError."""
    try:
        done = subprocess.run(
            [str(python), "-I", "-c", _DESCRIBE],
            env=build_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=120,
            check=True,
        )
        row: dict[str, object] = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise BuildHostError(
            f"{python} does not run as a Python: {error}. Set environment.python in the profile "
            "to one that does"
        ) from error
    return row


def _pins(wanted: Environment, lock_text: str | None, packages: Mapping[str, str]) -> tuple[Pin, ...]:
    if wanted.lock is None:
        if packages:
            raise Unbuildable("reading the lock", "the state moves packages, but the profile names no lock")
        return ()
    if lock_text is None:
        raise Unbuildable("reading the lock", f"{wanted.lock} is not in the tree of this state")
    pins = with_overrides(read_lock(lock_text, wanted.lock), packages, wanted.lock)
    missing = sorted({normalised(name) for name in wanted.overlay} - {pin.name for pin in pins})
    if missing:
        raise Unbuildable(
            "reading the lock", f"{wanted.lock} has no line for the overlay {', '.join(missing)}"
        )
    return pins


def _in_order(names: Sequence[str], pins: Sequence[Pin]) -> list[Pin]:
    return [pin for name in names for pin in pins if pin.name == name]


def _digest(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]
