"""What an operator registered: profiles and repositories, read from YAML files.

Here live the shapes of `profiles/*.yaml` and `repositories/*.yaml` and the folder
that holds them. A request names a profile; it never brings a command, a URL or a
path of its own. Nothing here runs git or a process.

Errors::

    CatalogueError          the catalogue cannot answer
    +- NotRegistered        the requester's fault: no such name; says which there are
    +- BadCatalogueFile     the operator's fault: says file, field and repair
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    field_validator,
    model_validator,
)

from bisection.adapters.queue import CONTROL
from bisection.criteria import Criterion, CriterionKind

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
Package = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")]
EnvironmentVariable = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]

_URL = re.compile(r"(https://|ssh://|file:///|/)[^\s-][^\s]*|[A-Za-z0-9._-]+@[A-Za-z0-9._-]+:[^\s/-][^\s]*")
_NOT_PASSABLE = re.compile("[\0\ud800-\udfff]")
_PASSWORD_IN_URL = re.compile(r"https://[^/@]*@")


class CatalogueError(ValueError):
    """The catalogue of profiles and repositories cannot answer."""


class NotRegistered(CatalogueError):
    """No profile or repository of that name is registered here."""


class BadCatalogueFile(CatalogueError):
    """A file of the catalogue does not say what it must; the operator has to mend it."""


def _inside(path: str) -> str:
    """A relative path in the tree, in git's spelling; ValueError if it could leave the tree."""
    parts = path.split("/")
    odd = "\\" in path or any(ord(letter) < 32 for letter in path)
    if not path or path.startswith("/") or odd or ".." in parts or "" in parts[:-1]:
        raise ValueError(f"{path!r} must be a relative path inside the repository, with forward slashes")
    return path


def _passable(text: str) -> str:
    """ValueError for what no command line, path or environment of a process can hold."""
    if _NOT_PASSABLE.search(text):
        raise ValueError("must not hold a NUL character or half a surrogate pair")
    return text


Text = Annotated[str, AfterValidator(_passable)]
PathInTree = Annotated[Text, Field(min_length=1)]
Bytes = Annotated[int, Field(gt=0, lt=2**63)]


class _Shape(BaseModel):
    """A part of a file: immutable, and a misspelt field is an error, not silence."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Environment(_Shape):
    """What the training job runs in.

    ``interpreter`` takes one that exists; ``venv`` makes one from the lock in the tree.
    """

    kind: Literal["interpreter", "venv"]
    lock: PathInTree | None = None  #: file in the tree with one `name==version` a line
    overlay: tuple[Package, ...] = ()  #: installed apart, so that a new version needs no new environment
    pip_first: tuple[Package, ...] = ()  #: installed by pip, which honours the machine's pip configuration
    find_links: tuple[Text, ...] = ()  #: folders with wheels
    python: Text | None = None  #: the interpreter (`interpreter`), or what to make the venv from (`venv`)

    @field_validator("lock")
    @classmethod
    def _lock_is_in_the_tree(cls, value: str | None) -> str | None:
        return _inside(value) if value else None

    @model_validator(mode="after")
    def _kind_has_what_it_needs(self) -> Self:
        if self.kind == "interpreter" and not self.python:
            raise ValueError("kind interpreter needs `python`: the path of an interpreter that exists")
        if (self.kind == "venv" or self.overlay) and not self.lock:
            raise ValueError("kind venv, and any overlay, need `lock`: the path of the lock in the tree")
        return self


class When(_Shape):
    """What a commit must contain for an adapter to fit. Nothing given: it fits every commit."""

    path_exists: PathInTree | None = None
    path_absent: PathInTree | None = None

    @field_validator("path_exists", "path_absent")
    @classmethod
    def _path_is_in_the_tree(cls, value: str | None) -> str | None:
        return _inside(value) if value else None


class LaunchAdapter(_Shape):
    """How commits of one era are launched.

    ``command`` may use {python}, {workspace}, {steps}, {data} and {trial} (a folder of the trial's own).
    ``override`` says how a changed configuration key is spelt, with {key} and {value}.
    """

    when: When = When()
    command: Annotated[tuple[Text, ...], Field(min_length=1)]
    processes: Annotated[int, Field(ge=1, le=64)] = 1  #: ranks on this host
    override: Text = "{key}={value}"
    python_path: tuple[Text, ...] = (".",)  #: folders of the tree that go on PYTHONPATH
    env: dict[EnvironmentVariable, Text] = {}

    @field_validator("python_path")
    @classmethod
    def _folders_are_in_the_tree(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(_inside(folder) for folder in value)

    @field_validator("override")
    @classmethod
    def _override_names_both(cls, value: str) -> str:
        if "{key}" not in value or "{value}" not in value:
            raise ValueError("must contain {key} and {value}")
        return value


#: What the launcher itself says to sbatch.
_SBATCH_OWN = re.compile(
    r"--(output|error|open-mode|wrap|export|export-file|job-name|nodes|ntasks|ntasks-per-node|parsable|requeue"
    r"|no-requeue|array|chdir|test-only|wait)(=|$)"
)


def _sbatch_option(option: str) -> str:
    if not re.fullmatch(r"--[a-z][a-z-]*(=[!-~]+)?", option):
        raise ValueError(f"{option!r} must be one option of sbatch in its long form, like --gres=gpu:8")
    if _SBATCH_OWN.match(option):
        raise ValueError(f"{option!r} is set by firstbad itself; remove it")
    return option


class SlurmJob(_Shape):
    """A trial runs as a job of a Slurm cluster, submitted by the worker; both share the worker's folder."""

    nodes: Annotated[int, Field(ge=1, le=512)] = 1  #: each runs the adapter's `processes`
    options: tuple[Annotated[Text, AfterValidator(_sbatch_option)], ...] = ()  #: of sbatch, in long form
    queue_seconds: Annotated[float, Field(gt=0)] = 86400.0  #: waiting longer than this, the trial is lost


class Data(_Shape):
    """What is trained on. A criterion of memory or speed needs real data to mean anything."""

    kind: Literal["real", "mock"] = "real"
    path: Text | None = None  #: on the worker host; {data} in the command
    digest: Text | None = None  #: of the data set; a part of the profile's digest


class Limits(_Shape):
    """What one trial, and one bisection, may take."""

    trial_seconds: Annotated[float, Field(gt=0)] = 3600.0
    gpu_hours_without_approval: Annotated[float, Field(ge=0)] | None = None


class CriterionDefault(_Shape):
    """What a bisection looks for where the request does not say; capacity from the profile if not here."""

    kind: CriterionKind
    capacity_bytes: Bytes | None = None
    threshold: Annotated[float, Field(gt=0)] | None = None
    signature: Text = ""


class Profile(_Shape):
    """A training job that this installation can repeat at any commit of a repository."""

    name: Name
    description: Text = ""
    repository: Name
    relevant_paths: tuple[PathInTree, ...] = ()  #: prefixes that can change the repro; none: all
    environment: Environment
    launch: Annotated[tuple[LaunchAdapter, ...], Field(min_length=1)]  #: the first that fits is used
    slurm: SlurmJob | None = None  #: none: trials run on the worker's own host
    data: Data = Data()
    steps: Annotated[int, Field(ge=3, lt=2**31)] = 3  #: optimizer steps of a trial; fewer taken: INVALID
    device: Literal["cpu", "cuda"] = "cpu"
    gpus: Annotated[int, Field(ge=0, lt=2**31)] = 0  #: of one trial, on all hosts
    queue: Name = "local"
    capacity_bytes: Bytes | None = None  #: of one device
    limits: Limits = Limits()
    criterion: CriterionDefault | None = None
    expected_imports: dict[str, Text] = {}  #: module to where its file must lie; may use {workspace}

    @field_validator("relevant_paths")
    @classmethod
    def _prefixes_are_in_the_tree(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(_inside(prefix) for prefix in value)

    @field_validator("queue")
    @classmethod
    def _queue_is_for_trials(cls, value: str) -> str:
        if value == CONTROL:
            raise ValueError(
                f"is {value!r}, which serves the installation's own short tasks; "
                "name a pool, and start its workers with `firstbad worker --queue NAME`"
            )
        return value

    @model_validator(mode="after")
    def _parts_agree(self) -> Self:
        if self.device == "cuda" and self.gpus < 1:
            raise ValueError("device cuda needs gpus of at least 1")
        self.default_criterion()
        return self

    def default_criterion(self) -> Criterion | None:
        """The criterion for requests that bring none, or None where they must."""
        if self.criterion is None:
            return None
        values = self.criterion.model_dump()
        if self.criterion.kind is CriterionKind.OUT_OF_MEMORY:
            values["capacity_bytes"] = self.criterion.capacity_bytes or self.capacity_bytes
        return Criterion(**values)

    @property
    def environment_paths(self) -> tuple[str, ...]:
        """Files of the tree that decide the environment."""
        return (self.environment.lock,) if self.environment.lock else ()

    @property
    def digest(self) -> str:
        """sha256 over what decides a measurement; who may run it, where and why is left out."""
        decides = {
            "repository", "environment", "launch", "data", "steps", "device", "gpus", "expected_imports",
            *(["slurm"] if self.slurm else []),
        }  # fmt: skip
        row = self.model_dump(mode="json", include=decides)
        row["trial_seconds"] = self.limits.trial_seconds
        return hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()


class Webhook(_Shape):
    """Which failed GitHub workflow runs start a bisection."""

    github: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9-]*/[A-Za-z0-9._-]+$")]
    workflows: Annotated[tuple[Text, ...], Field(min_length=1)]  #: names of workflows, as GitHub shows them
    branches: Annotated[tuple[Text, ...], Field(min_length=1)]
    profile: Name
    secret_file: Text  #: path of a file that holds the webhook's secret; never the secret itself
    good: Text | None = None  #: where the range starts while no successful run has been delivered


class RepositoryEntry(_Shape):
    """A repository that may be bisected, or pinned by one that may."""

    name: Name
    url: Text
    default_branch: Text = "main"
    pins: dict[str, Name] = {}  #: path of a gitlink to the registered repository that it points into
    webhook: Webhook | None = None

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
            _inside(path)
        return value


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
