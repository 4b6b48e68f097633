"""How commits of each era are launched: what a commit must contain, and the command that fits it.

Upstream moves scripts, renames recipes and renames configuration keys. An adapter says what a commit
of its era contains and how it is launched; `Renamed` says under which names a setting was known, and
what in a commit's own files shows it. Only shapes here: the commits are read by the workers.
"""

from __future__ import annotations

import re
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from bisection.adapters.catalogue_fields import EnvironmentVariable, PathInTree, Shape, Text, inside

_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_]*(\.[A-Za-z0-9][A-Za-z0-9_]*)*")


def _listed(value: object) -> object:
    """One path may stand without brackets."""
    return (value,) if isinstance(value, str) else value


Paths = Annotated[tuple[PathInTree, ...], BeforeValidator(_listed)]
#: File in the tree -> text, as it stands in the file.
Passages = dict[PathInTree, Annotated[Text, Field(min_length=1)]]


class When(Shape):
    """What a commit must contain for an adapter to fit; all of it. Nothing given: it fits every commit."""

    path_exists: Paths = ()
    path_absent: Paths = ()
    file_contains: Passages = Field(default_factory=dict)  #: the file is there, and holds the text
    file_lacks: Passages = Field(default_factory=dict)  #: the file is not there, or does not hold the text

    @field_validator("path_exists", "path_absent")
    @classmethod
    def _paths_are_in_the_tree(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(inside(path) for path in value)

    @field_validator("file_contains", "file_lacks")
    @classmethod
    def _files_are_in_the_tree(cls, value: dict[str, str]) -> dict[str, str]:
        return {inside(path): text for path, text in value.items()}


class LaunchAdapter(Shape):
    """How commits of one era are launched, or why they cannot be.

    ``command`` may use {python}, {environment}, {workspace}, {commit}, {steps}, {data}, {trial} (a folder
    of the trial's own) and the names of the profile's places. ``override`` says how a changed configuration
    key is spelt, with {key} and {value}.
    """

    name: Text = ""  #: of the era, for people and in the trial's record
    when: When = When()
    command: tuple[Text, ...] = ()
    refused: Text = ""  #: instead of a command: why commits of this era cannot run the job
    processes: Annotated[int, Field(ge=1, le=64)] = 1  #: ranks on each host
    override: Text = "{key}={value}"
    python_path: tuple[Text, ...] = (".",)  #: folders of the tree that go on PYTHONPATH
    env: dict[EnvironmentVariable, Text] = Field(default_factory=dict)

    @field_validator("python_path")
    @classmethod
    def _folders_are_in_the_tree(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(inside(folder) for folder in value)

    @field_validator("override")
    @classmethod
    def _override_names_both(cls, value: str) -> str:
        if "{key}" not in value or "{value}" not in value:
            raise ValueError("must contain {key} and {value}")
        return value

    @model_validator(mode="after")
    def _launches_or_refuses(self) -> Self:
        if bool(self.command) == bool(self.refused):
            raise ValueError(
                "needs either `command`, or `refused`: why commits of this era cannot be launched"
            )
        return self


class Renamed(Shape):
    """The names of one setting over time, and what in a commit shows that it knows one."""

    #: Name -> the text that shows it, newest first. Without a text the name is taken where no other is known.
    names: Annotated[dict[str, Text], Field(min_length=1)]
    files: Annotated[
        Paths, Field(min_length=1)
    ]  #: where such a text stands; those that a commit lacks are passed over
    note: Text = ""  #: what to do where no name is known

    @field_validator("names")
    @classmethod
    def _names_are_keys(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if not _KEY.fullmatch(name):
                raise ValueError(f"{name!r} is not a configuration key: write it like train.micro_batch_size")
        return value

    @field_validator("files")
    @classmethod
    def _files_are_in_the_tree(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(inside(path) for path in value)
