"""The fields that files of the catalogue are made of: names, texts, paths in a tree, bytes.

Each refuses at reading what could not be used later: a path that leaves its tree, a text that no
command line can hold. Nothing here reads a file.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
Package = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")]
EnvironmentVariable = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]

_NOT_PASSABLE = re.compile("[\0\ud800-\udfff]")


def inside(path: str) -> str:
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


class Shape(BaseModel):
    """A part of a file: immutable, and a misspelt field is an error, not silence."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
