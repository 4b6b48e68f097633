"""Reads a lock of `name==version` lines. It comes from a commit: nothing else is let through.

No option, URL or path is accepted, since a line of a commit must not choose where
packages come from.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

_PIN = re.compile(
    r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(?P<extras>\[[A-Za-z0-9,._ -]*\])?"
    r"\s*==\s*(?P<version>[A-Za-z0-9][A-Za-z0-9.+!_-]*)"
    r"(?P<marker>\s*;[^\\#\n-]+)?(?P<hashes>(?:\s+--hash=[a-z0-9]+:[0-9a-f]+)*)"
)
_LONGEST_BYTES = 2**20


class Unbuildable(ValueError):
    """The state's environment cannot be made. ``step`` is what was tried, ``log`` what came of it."""

    def __init__(self, step: str, log: str) -> None:
        super().__init__(f"{step}: {log.strip()[-1500:]}")
        self.step = step
        self.log = log


@dataclass(frozen=True, kw_only=True)
class Pin:
    """One locked package. ``name`` is normalised: small letters, and a hyphen for . _ and -"""

    name: str
    version: str
    extras: str = ""
    marker: str = ""

    @property
    def requirement(self) -> str:
        return f"{self.name}{self.extras}=={self.version}{self.marker}"


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def read_lock(text: str, path: str) -> tuple[Pin, ...]:
    """The pins in order. Raises Unbuildable, naming the line and the repair."""
    if len(text) > _LONGEST_BYTES:
        raise Unbuildable("reading the lock", f"{path} has more than {_LONGEST_BYTES} characters")
    pins: dict[str, Pin] = {}
    for number, line in _logical_lines(text):
        match = _PIN.fullmatch(line)
        if match is None:
            raise Unbuildable(
                "reading the lock",
                f"{path}, line {number}: {line[:100]!r} is not `name==version`; pin the package to one "
                "version (options, URLs and paths are not accepted in a lock)",
            )
        name = normalised(match["name"])
        pin = Pin(
            name=name,
            version=match["version"],
            extras=(match["extras"] or "").replace(" ", ""),
            marker=(match["marker"] or "").rstrip(),
        )
        if name in pins and pins[name].version != pin.version and not (pin.marker and pins[name].marker):
            raise Unbuildable(
                "reading the lock",
                f"{path}, line {number}: {name} is pinned to {pin.version}, and above to "
                f"{pins[name].version}; keep one of them",
            )
        pins[f"{name}{pin.marker}"] = pin
    return tuple(pins.values())


def with_overrides(pins: Collection[Pin], packages: Mapping[str, str], path: str) -> tuple[Pin, ...]:
    """The pins with other packages: see `as_overrides` for what a value says. Raises Unbuildable."""
    wanted = {normalised(name): value for name, value in packages.items()}
    known = {pin.name for pin in pins}
    moved = []
    for pin in pins:
        value = wanted.get(pin.name)
        if value is None:
            moved.append(pin)
        elif value and "==" not in value:
            moved.append(Pin(name=pin.name, version=value, extras=pin.extras, marker=pin.marker))
    for name, value in sorted(wanted.items()):
        if "==" in value:
            moved += [pin for pin in read_lock(value, f"{path} (as overridden)") if pin.name == name]
        elif value and name not in known:
            moved.append(Pin(name=name, version=value))
    return tuple(moved)


def as_overrides(pins: Collection[Pin]) -> dict[str, str]:
    """What each package is locked to, as the value of a state's override.

    A version, where the name stands once and plainly; else all of its lines, such as
    ``torch[cuda]==2.7.0; python_version < "3.13"``. "" as an override says: not installed.
    """
    lines: dict[str, list[Pin]] = {}
    for pin in pins:
        lines.setdefault(pin.name, []).append(pin)
    return {
        name: found[0].version
        if len(found) == 1 and not found[0].extras and not found[0].marker
        else "\n".join(pin.requirement for pin in found)
        for name, found in lines.items()
    }


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines without comments, with continued ones joined, and the number that each starts at."""
    waiting, start = "", 0
    for number, raw in enumerate(text.splitlines(), start=1):
        line = re.sub(r"(^|\s)#.*$", "", raw).strip()
        start = start or number
        if line.endswith("\\"):
            waiting += line[:-1].strip() + " "
            continue
        joined = (waiting + line).strip()
        if joined:
            yield start, joined
        waiting, start = "", 0
    if waiting.strip():
        yield start, waiting.strip()
