"""Commits, the states that trials check out, and the range between good and bad.

Values only. How a range is read from a repository is `adapters.mirror`'s matter.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

_HASH = re.compile(r"[0-9a-f]{40}")


def check_hash(value: str) -> str:
    """The value, if it is a full 40-digit hash; ValueError otherwise."""
    if not _HASH.fullmatch(value):
        raise ValueError(f"{value!r} is not a full 40-digit commit hash")
    return value


@dataclass(frozen=True, kw_only=True)
class Commit:
    """One commit of the bisected repository, as the search and the report see it."""

    hash: str  #: 40 hex digits
    parents: tuple[str, ...] = ()
    subject: str = ""  #: first line of the message; hostile text, escape it
    author: str = ""
    committed_at: str = ""  #: UTC, ISO 8601
    paths: tuple[str, ...] = ()  #: changed against the first parent
    pins: Mapping[str, str] = field(default_factory=dict)  #: gitlinks after the commit: path to hash
    tree_key: str = ""  #: digest of what can change the repro; equal keys are one state
    environment_key: str = ""  #: digest of the lock and all else that decides the environment

    def __post_init__(self) -> None:
        check_hash(self.hash)

    @property
    def short(self) -> str:
        return self.hash[:10]

    def to_json(self) -> dict[str, Any]:
        return {
            "hash": self.hash,
            "parents": list(self.parents),
            "subject": self.subject,
            "author": self.author,
            "committed_at": self.committed_at,
            "paths": list(self.paths),
            "pins": dict(self.pins),
            "tree_key": self.tree_key,
            "environment_key": self.environment_key,
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Commit:
        return cls(
            hash=row["hash"],
            parents=tuple(row["parents"]),
            subject=row["subject"],
            author=row["author"],
            committed_at=row["committed_at"],
            paths=tuple(row["paths"]),
            pins=dict(row["pins"]),
            tree_key=row["tree_key"],
            environment_key=row["environment_key"],
        )


@dataclass(frozen=True, kw_only=True, order=True)
class State:
    """What a trial checks out: a commit, and overrides for what it pins."""

    commit: str  #: 40 hex digits
    pins: tuple[tuple[str, str], ...] = ()  #: overridden gitlinks: (path, hash)
    packages: tuple[tuple[str, str], ...] = ()  #: overridden locked packages: (name, version)

    def __post_init__(self) -> None:
        check_hash(self.commit)

    @property
    def key(self) -> str:
        """A digest that is equal exactly for equal states."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        return {"commit": self.commit, "pins": dict(self.pins), "packages": dict(self.packages)}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> State:
        return cls(
            commit=row["commit"],
            pins=tuple(sorted(row.get("pins", {}).items())),
            packages=tuple(sorted(row.get("packages", {}).items())),
        )


@dataclass(frozen=True, kw_only=True)
class CommitRange:
    """The first-parent line from the good end to the bad end, both included, oldest first.

    Raises ValueError if there are fewer than two commits or if one occurs twice.
    """

    commits: tuple[Commit, ...]

    def __post_init__(self) -> None:
        if len(self.commits) < 2:
            raise ValueError("a range needs a good and a bad end that differ")
        if len({commit.hash for commit in self.commits}) != len(self.commits):
            raise ValueError("a commit occurs twice in the range")

    @property
    def good(self) -> Commit:
        return self.commits[0]

    @property
    def bad(self) -> Commit:
        return self.commits[-1]

    @property
    def suspects(self) -> tuple[Commit, ...]:
        """All that could be the first bad commit: everything after the good end."""
        return self.commits[1:]

    def position(self, commit_hash: str) -> int:
        """Index in ``commits``; KeyError if the commit is not in the range."""
        return self._positions[commit_hash]

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {commit.hash: index for index, commit in enumerate(self.commits)}
