"""The answer of a search: one commit, a set, none, or a refusal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from bisection.revert_test import RevertTest


class FindingKind(StrEnum):
    """How a bisection ended."""

    FOUND = "found"  #: one commit, confirmed: it failed and its parent passed, at least twice each
    SET = "set"  #: the culprit is among these commits, and more trials cannot or may not tell
    NONE = "none"  #: no commit of the range is to blame; ``why`` says what the evidence is
    REJECTED = "rejected"  #: the request could not be carried out; ``why`` names the repair


class LevelKind(StrEnum):
    """What the steps of a level are; see `levels`."""

    COMMITS = "commits"  #: commits of the bisected repository
    WIDENED = "widened"  #: the same, from an older good end on
    FACTORS = "factors"  #: what one step moved at once: lock, pins and source, switched one after another
    PIN = "pin"  #: commits of a pinned repository
    PACKAGES = "packages"  #: packages of a moved lock, or versions of one of them
    MERGE = "merge"  #: commits of a merged branch


#: Levels whose steps are of our own making, and whose hashes mean nothing to git.
MADE = (LevelKind.FACTORS, LevelKind.PACKAGES)


@dataclass(frozen=True, kw_only=True)
class LevelFinding:
    """What was found one level further down, inside what the culprit carries."""

    level: LevelKind
    path: str = ""  #: of the gitlink or the lock; "" for the repository itself
    repository: str = ""  #: registered name of the repository that the commits are of
    title: str = ""  #: for people: what was looked through
    kind: FindingKind
    commits: tuple[str, ...] = ()  #: hashes, oldest first; of steps that are no commits, of our own making
    names: tuple[
        str, ...
    ] = ()  #: what to call them, parallel to ``commits``: hash and subject, or what moved
    parent: str | None = None
    lost: bool = False  #: the commit is a fix that the new side lacks; of a MERGE: such a fix came after it
    joint: bool = False  #: parts of one change that could not be told apart
    confidence: float = 0.0
    why: str = ""
    problem: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "level": self.level.value,
            "path": self.path,
            "repository": self.repository,
            "title": self.title,
            "kind": self.kind.value,
            "commits": list(self.commits),
            "names": list(self.names),
            "parent": self.parent,
            "lost": self.lost,
            "joint": self.joint,
            "confidence": self.confidence,
            "why": self.why,
            "problem": self.problem,
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> LevelFinding:
        return cls(
            level=LevelKind(row["level"]),
            path=row["path"],
            repository=row["repository"],
            title=row["title"],
            kind=FindingKind(row["kind"]),
            commits=tuple(row["commits"]),
            names=tuple(row["names"]),
            parent=row["parent"],
            lost=row["lost"],
            joint=row["joint"],
            confidence=row["confidence"],
            why=row["why"],
            problem=row["problem"],
        )


@dataclass(frozen=True, kw_only=True)
class OtherStep:
    """A further change beside the culprit's: the values rise or fall once more, or another failure begins."""

    commits: tuple[str, ...]  #: hashes, oldest first: one of them makes the step
    parent: str  #: the state before the step, where it is not there yet
    delta: float | None  #: what the metric changes by, in its unit; None for a failure
    worse: bool  #: False: the values come back towards good here
    confirmed: bool = False  #: tried at the commit and before it as often as a culprit is
    signature: str = ""  #: of the other failure; "" for a step of the values

    def __post_init__(self) -> None:
        if not self.commits or (self.confirmed and len(self.commits) != 1):
            raise ValueError("a step lies among commits, and a confirmed one is one commit")

    def to_json(self) -> dict[str, Any]:
        return {
            "commits": list(self.commits),
            "parent": self.parent,
            "delta": self.delta,
            "worse": self.worse,
            "confirmed": self.confirmed,
            "signature": self.signature,
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> OtherStep:
        return cls(
            commits=tuple(row["commits"]),
            parent=row["parent"],
            delta=row["delta"],
            worse=row["worse"],
            confirmed=row["confirmed"],
            signature=row["signature"],
        )


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A frozen answer. ``commits`` are hashes, oldest first: one if FOUND, none if NONE."""

    kind: FindingKind
    commits: tuple[str, ...] = ()
    parent: str | None = None  #: of the culprit, if FOUND: the last good commit
    confidence: float = 0.0  #: posterior of the answer
    why: str = ""
    problem: str = ""  #: name of a docs/errors page, where there is something to repair
    descent: tuple[LevelFinding, ...] = ()  #: inside of what the culprit carries, outermost first
    revert: RevertTest | None = None  #: the bad end without the culprit; None before that was looked at
    others: tuple[OtherStep, ...] = ()  #: further changes that the trials show beside the culprit's

    def __post_init__(self) -> None:
        if self.kind is FindingKind.FOUND and (len(self.commits) != 1 or self.parent is None):
            raise ValueError("a found culprit is one commit with a parent")
        if self.kind is FindingKind.SET and not self.commits:
            raise ValueError("a credible set has commits")

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind.value,
            "commits": list(self.commits),
            "parent": self.parent,
            "confidence": self.confidence,
            "why": self.why,
            "problem": self.problem,
            "descent": [level.to_json() for level in self.descent],
            "revert": self.revert.to_json() if self.revert else None,
            "others": [step.to_json() for step in self.others],
        }

    def with_revert(self, test: RevertTest) -> Finding:
        """The same answer, with what became of the bad end without the culprit."""
        return replace(self, revert=test)

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Finding:
        return cls(
            kind=FindingKind(row["kind"]),
            commits=tuple(row["commits"]),
            parent=row["parent"],
            confidence=row["confidence"],
            why=row["why"],
            problem=row.get("problem", ""),
            descent=tuple(LevelFinding.from_json(level) for level in row.get("descent", ())),
            revert=RevertTest.from_json(row["revert"]) if row.get("revert") else None,
            others=tuple(OtherStep.from_json(step) for step in row.get("others", ())),
        )
