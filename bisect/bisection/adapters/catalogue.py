"""What an operator registered: profiles and repositories, read from YAML files.

Here live the shape of `repositories/*.yaml` and the folder that holds it and the profiles
(profiles.py). A request names a profile; it never brings a command, a URL or a
path of its own. Nothing here runs git or a process.

Errors::

    CatalogueError          the catalogue cannot answer
    +- NotRegistered        the requester's fault: no such name; says which there are
    +- BadCatalogueFile     the operator's fault: says file, field and repair
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, TypeVar

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from bisection.adapters.catalogue_fields import Name, Shape, Text, inside
from bisection.adapters.launch_adapters import LaunchAdapter, Renamed, When
from bisection.adapters.nightlies import Announce, CiIntake, DailyLimits, GitHubAccess, Webhook
from bisection.adapters.profiles import CriterionDefault, Data, Limits, Profile, SlurmJob
from bisection.adapters.training_environments import Environment

__all__ = [
    "DEEPEST_PIN", "BadCatalogueFile", "Catalogue", "CatalogueError", "CriterionDefault", "Data",
    "Environment", "LaunchAdapter", "Limits", "NotRegistered", "Profile", "Renamed", "RepositoryEntry",
    "SlurmJob", "Webhook", "When",
]  # fmt: skip

_URL = re.compile(
    r"(https://|ssh://)[^\s-][^\s]*|(file:///|/)[^\s-][^\0\r\n]*|[A-Za-z0-9._-]+@[A-Za-z0-9._-]+:[^\s/-][^\s]*"
)
_PASSWORD_IN_URL = re.compile(r"https://[^/@]*@")


class CatalogueError(ValueError):
    """The catalogue of profiles and repositories cannot answer."""


class NotRegistered(CatalogueError):
    """No profile or repository of that name is registered here."""


class BadCatalogueFile(CatalogueError):
    """A file of the catalogue does not say what it must; the operator has to mend it."""


class RepositoryEntry(Shape):
    """A repository that may be bisected, or pinned by one that may."""

    name: Name
    url: Text
    default_branch: Text = "main"
    pins: dict[str, Name] = Field(
        default_factory=dict
    )  #: path of a gitlink to the registered repository that it points into
    webhook: Webhook | None = None
    ci: CiIntake | None = None
    limits: DailyLimits = DailyLimits()  #: of what webhook and ci start
    github: GitHubAccess | None = None  #: none: neither jobs nor logs are fetched, and nothing is said there
    announce: Announce = Announce()

    @field_validator("url")
    @classmethod
    def _url_is_of_a_known_kind(cls, value: str) -> str:
        if not _URL.fullmatch(value):
            raise ValueError("must be https://, ssh://, file:/// or user@host:path, or an absolute path")
        if _PASSWORD_IN_URL.match(value):
            raise ValueError("must not hold a user or password; use ssh with a key of the worker's user")
        return value

    @field_validator("pins")
    @classmethod
    def _pins_are_in_the_tree(cls, value: dict[str, str]) -> dict[str, str]:
        for path in value:
            inside(path)
        return value

    @model_validator(mode="after")
    def _github_is_reached_where_it_is_used(self) -> Self:
        if self.announce.uses_github and self.github is None:
            raise ValueError("announce on GitHub needs `github`: how its API is reached")
        if self.webhook and self.github and self.webhook.github != self.github.repository:
            raise ValueError("webhook.github and github.repository must name the same repository")
        return self


_Entry = TypeVar("_Entry", Profile, RepositoryEntry)

#: A pin that pins again is followed this deep; real ones need two.
DEEPEST_PIN = 4


class Catalogue:
    """The folder with `profiles/` and `repositories/`, one YAML file a name.

    It is read at every call, so an edit needs no restart. Raises NotRegistered
    for a name without a file, and BadCatalogueFile for a file that is not valid.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)

    def profile(self, name: str) -> Profile:
        return self._one(Profile, "profiles", "profile", name)

    def repository(self, name: str) -> RepositoryEntry:
        return self._one(RepositoryEntry, "repositories", "repository", name)

    def pins_of(self, name: str) -> dict[str, str]:
        """Every pin below a repository, at whatever depth: its path from the top, and what it points into.

        A pin into a repository that is not registered is left out.
        """
        found: dict[str, str] = {}
        waiting = [("", self.repository(name), 0)]
        while waiting:
            path, entry, depth = waiting.pop()
            for pin, target in entry.pins.items():
                below = f"{path}/{pin}" if path else pin
                with suppress(NotRegistered):
                    waiting += [(below, self.repository(target), depth + 1)] if depth < DEEPEST_PIN else []
                    found[below] = target
        return found

    def profiles(self) -> tuple[Profile, ...]:
        """All of them, by name."""
        return tuple(_read(Profile, path) for path in self._files("profiles"))

    def repositories(self) -> tuple[RepositoryEntry, ...]:
        """All of them, by name."""
        return tuple(_read(RepositoryEntry, path) for path in self._files("repositories"))

    def _files(self, kind: str) -> list[Path]:
        return sorted((self.folder / kind).glob("*.yaml"))

    def _one(self, shape: type[_Entry], kind: str, word: str, name: str) -> _Entry:
        # Looked up among the files that exist: a name never becomes a path.
        for path in self._files(kind):
            if path.stem == name:
                return _read(shape, path)
        known = ", ".join(path.stem for path in self._files(kind)) or "none"
        raise NotRegistered(f"no {word} {name!r} is registered here; registered: {known}")


class _UniqueKeys(yaml.SafeLoader):
    """YAML keeps the last of two equal keys in silence; here they are an error."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if (key.tag, key.value) in seen:
                raise yaml.composer.ComposerError(
                    "in a mapping", node.start_mark, f"the key {key.value!r} stands twice", key.start_mark
                )
            seen.add((key.tag, key.value))
        return node


def _short(error: Exception) -> str:
    return "it is nested too deep" if isinstance(error, RecursionError) else str(error)[:500]


def _read(shape: type[_Entry], path: Path) -> _Entry:
    try:
        row = yaml.load(path.read_text(encoding="utf-8"), Loader=_UniqueKeys)
    except Exception as error:
        # Not YAMLError alone: a 30th of February, an endless number or a deep nesting each fail
        # in a way of Python's own, and one odd file must not become a fault of the service.
        raise BadCatalogueFile(f"{path}: cannot be read as YAML: {_short(error)}") from error
    if not isinstance(row, dict):
        raise BadCatalogueFile(f"{path}: must be a mapping of fields, not {type(row).__name__}")
    try:
        entry = shape.model_validate(row)
    except ValidationError as error:
        raise BadCatalogueFile(f"{path}: {_explain(error.errors())}") from error
    if entry.name != path.stem:
        raise BadCatalogueFile(
            f"{path}: name: is {entry.name!r}; rename the file to {entry.name}.yaml or set name: {path.stem}"
        )
    return entry


def _explain(problems: Iterable[Any]) -> str:
    """Each problem as `field: what is wrong`, so that an operator can go straight to the line."""
    lines = []
    for problem in problems:
        field = ".".join(str(part) for part in problem["loc"]) or "the file"
        if problem["type"] == "extra_forbidden":
            lines.append(f"{field}: no such field; remove it or check its spelling")
        elif problem["type"] == "missing":
            lines.append(f"{field}: is missing; add it")
        else:
            lines.append(f"{field}: {problem['msg'].removeprefix('Value error, ')}")
    return "; ".join(lines)
