"""Overlays: single packages in folders of their own, put in front of a shared environment.

A commit that only moves one such package needs no second environment. A folder is
named by what is in it (name, version, and the wheel's own digest where the wheel is
at hand), made under a lock, and never changed.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from packaging.version import InvalidVersion, Version

from workers.building import BuildSteps, Built, Claim, build_once, uv_program
from workers.requirement_lock import Pin, normalised


@dataclass(frozen=True, kw_only=True)
class Overlay:
    """One package in its own folder."""

    key: str
    folder: Path
    pin: Pin
    claim: Claim | None = field(default=None, compare=False, repr=False)  #: while it is held, it is kept


def make_overlay(
    kept: Path,
    pin: Pin,
    *,
    python: Path,
    platform: str,
    find_links: Sequence[str],
    progress: Callable[[str], None],
    cancelled: Callable[[], bool],
) -> Overlay:
    """The package's folder, made below ``kept`` if it is not there.

    Raises Unbuildable, BuildHostError or Cancelled.
    """
    wheels = find_wheels(pin, find_links)
    source = [hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in wheels] or ["index"]
    # Which of several wheels is taken, and what an index gives, is the Python's and platform's matter.
    decides = source if len(wheels) == 1 else [*source, platform]
    digest = hashlib.sha256(f"{pin.name}=={pin.version} {' '.join(decides)}".encode()).hexdigest()[:16]
    key = f"{pin.name}-{pin.version}-{digest}"

    def build(folder: Path, steps: BuildSteps) -> None:
        packages = folder / "packages"
        wanted = str(wheels[0]) if len(wheels) == 1 else f"{pin.name}{pin.extras}=={pin.version}"
        links = [] if len(wheels) == 1 else [word for link in find_links for word in ("--find-links", link)]
        tool = uv_program()
        program = (
            [tool, "pip", "install", "--python", str(python), "--compile-bytecode"]
            if tool
            else [str(python), "-m", "pip", "install"]
        )
        steps.run(
            f"installing the overlay {pin.name}=={pin.version}",
            [*program, "--no-deps", "--target", str(packages), *links, wanted],
        )
        shutil.rmtree(packages / "bin", ignore_errors=True)  # scripts of a folder that will be renamed

    built: Built = build_once(kept, key, build, progress=progress, cancelled=cancelled)
    return Overlay(key=key, folder=built.folder / "packages", pin=pin, claim=built.claim)


def find_wheels(pin: Pin, find_links: Sequence[str]) -> list[Path]:
    """The wheels of exactly this version in the first of the folders that has any."""
    for folder in find_links:
        found = [path for path in sorted(Path(folder).glob("*.whl")) if _is_of(path, pin)]
        if found:
            return found
    return []


def versions_between(name: str, older: str, newer: str, find_links: Sequence[str]) -> tuple[str, ...]:
    """The versions of a package in the folders that lie between two others, from ``older`` on.

    ``older`` may be the newer of the two: then they go down. Pre-releases count; what is no version of
    PEP 440 is passed over.
    """
    try:
        ends = Version(older), Version(newer)
    except InvalidVersion:
        return ()
    found = {}
    for folder in find_links:
        for wheel in Path(folder).glob("*.whl"):
            named = _named(wheel)
            if named is None or named[0] != name:
                continue
            with suppress(InvalidVersion):
                found[Version(named[1])] = named[1]
    between = sorted(version for version in found if min(ends) < version < max(ends))
    return tuple(found[version] for version in (between if ends[0] < ends[1] else reversed(between)))


def _is_of(wheel: Path, pin: Pin) -> bool:
    return _named(wheel) == (pin.name, pin.version)


def _named(wheel: Path) -> tuple[str, str] | None:
    """The normalised name and the version that a wheel's file name says."""
    parts = wheel.name.split("-")  # name-version[-build]-python-abi-platform.whl
    return (normalised(parts[0]), parts[1].replace("_", "+")) if len(parts) >= 5 else None
