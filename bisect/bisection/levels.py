"""The levels of a bisection: lines of states, each one opened from what the one before it found.

A search always runs on one line. Where its culprit only carries something else (a moved pin, a
moved lock, a merged branch), that is opened as the next level, down to whatever depth:

    level 0   commits of the repository    B--o--o--C--o--H      C moves uv.lock and a pin
    level 1   what C moves                 B' -> uv.lock -> pin -> source = C
    level 2   commits of the pin           x--o--d--o--y         d is what changed

Here lives what a level is; which one to open next is `openings`' matter. Two corners of a level
are states of the level before, measured already: states are written in one canonical way
(`canonical`), so that the ledger, which all levels share, counts them here as well.

The steps of some levels (factors, packages) are no commits of a repository. Such a step is a
`Commit` of our own making: its hash is the SHA-1 of its state, its subject says what it switches,
and nothing else about it is known to git.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bisection.commits import Commit, CommitRange, State
from bisection.finding import MADE, Finding, LevelKind

__all__ = ["Level", "LevelKind", "canonical", "made_step", "relevant_below"]

#: Levels whose steps are commits of the bisected repository, from end to end of what was asked about.
_GROUND = (LevelKind.COMMITS, LevelKind.WIDENED)


@dataclass(frozen=True, kw_only=True)
class Level:
    """One line of states. Raises ValueError if states and commits do not go together."""

    kind: LevelKind
    range: CommitRange
    states: tuple[State, ...]  #: what a trial of each step checks out, parallel to ``range.commits``
    path: str = ""  #: of the gitlink or the lock that is opened; "" for the repository itself
    repository: str = ""  #: registered name of the repository that the steps are commits of
    title: str = ""  #: for people: what is looked through
    turn: int = 0  #: steps up to here lead backwards, to the merge base: each takes a commit away
    opened_by: Finding | None = None  #: what was found one level above; None for level 0

    def __post_init__(self) -> None:
        if len(self.states) != len(self.range.commits):
            raise ValueError("a level needs one state for each of its steps")
        if len(set(self.states)) != len(self.states):
            raise ValueError("two steps of a level are the same state")
        if not 0 <= self.turn < len(self.states):
            raise ValueError("the merge base of a level is one of its steps")

    @classmethod
    def plain(cls, commits: CommitRange) -> Level:
        """The commits of the bisected repository, each as it is."""
        return cls(
            kind=LevelKind.COMMITS,
            range=commits,
            states=tuple(State(commit=commit.hash) for commit in commits.commits),
        )

    @property
    def is_plain(self) -> bool:
        return self.states == tuple(State(commit=commit.hash) for commit in self.range.commits)

    @property
    def is_ground(self) -> bool:
        """Whether its steps are what was asked about, and not what one of them carries.

        A line with steps backwards is not: what it accuses may be what a step takes away.
        """
        return self.kind in _GROUND and not self.turn

    @property
    def is_made(self) -> bool:
        """Whether its steps are of our own making, and their hashes mean nothing to git."""
        return self.kind in MADE

    def state_of(self, commit_hash: str) -> State:
        """What a trial of this step checks out. KeyError if it is not on the level."""
        return self.states[self.range.position(commit_hash)]

    def before(self, commit_hash: str) -> Commit:
        """The step before this one. KeyError for the first, and for what is not on the level."""
        position = self.range.position(commit_hash)
        if position == 0:
            raise KeyError(commit_hash)
        return self.range.commits[position - 1]

    def takes_away(self, commit_hash: str) -> bool:
        """Whether this step differs from the one before it by lacking a commit, not by having one more."""
        return 0 < self.range.position(commit_hash) <= self.turn

    def leaves_behind(self, commit_hash: str) -> bool:
        """Whether this step of a merge is where its branch left: it lacks what the other side has since."""
        if self.kind is not LevelKind.MERGE or self.range.position(commit_hash) != 1:
            return False
        other, left = self.range.commits[:2]
        return len(self.states) > 2 and other.hash not in left.parents

    def accused(self, commit_hash: str) -> Commit:
        """The commit to speak of, if this step is the first bad one: what came, or what was lost."""
        position = self.range.position(commit_hash)
        return self.range.commits[position - 1 if 0 < position <= self.turn else position]

    def name(self, commit: Commit) -> str:
        """What to call a step in a sentence."""
        return commit.subject if self.is_made else commit.short

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind.value,
            "commits": [commit.to_json() for commit in self.range.commits],
            "states": None if self.is_plain else [state.to_json() for state in self.states],
            "path": self.path,
            "repository": self.repository,
            "title": self.title,
            "turn": self.turn,
            "opened_by": self.opened_by.to_json() if self.opened_by else None,
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Level:
        commits = CommitRange(commits=tuple(Commit.from_json(c) for c in row["commits"]))
        states = row["states"]
        return cls(
            kind=LevelKind(row["kind"]),
            range=commits,
            states=Level.plain(commits).states
            if states is None
            else tuple(State.from_json(state) for state in states),
            path=row["path"],
            repository=row["repository"],
            title=row["title"],
            turn=row["turn"],
            opened_by=Finding.from_json(row["opened_by"]) if row["opened_by"] else None,
        )


def made_step(
    state: State,
    subject: str,
    *,
    environment_key: str = "",
    pins: Mapping[str, str] | None = None,
    paths: tuple[str, ...] = (),
) -> Commit:
    """A step that is no commit: its hash is the SHA-1 of its state, equal on every host."""
    digest = hashlib.sha1(json.dumps(state.to_json(), sort_keys=True).encode(), usedforsecurity=False)
    return Commit(
        hash=digest.hexdigest(),
        subject=subject,
        environment_key=environment_key,
        pins=pins or {},
        paths=paths,
    )


def canonical(state: State, pins: Mapping[str, str], packages: Mapping[str, str]) -> State:
    """The state without the overrides that change nothing.

    ``pins`` are what the state's own commits pin at the overridden paths (of a pin below a pin: what the
    commit pins that is checked out above it), ``packages`` what the commit's own lock says. Of what is
    not known there, the override is kept.
    """
    return State(
        commit=state.commit,
        pins=tuple((path, pin) for path, pin in state.pins if pins.get(path) != pin),
        packages=tuple((name, v) for name, v in state.packages if packages.get(name) != v),
    )


def relevant_below(paths: Sequence[str], path: str) -> tuple[str, ...]:
    """A profile's relevant paths as the repository at ``path`` sees them; none: all of it."""
    if not path:
        return tuple(paths)
    inside = f"{path}/"
    if any(inside.startswith(f"{p.rstrip('/')}/") for p in paths):
        return ()  # the whole of it is named
    return tuple(p[len(inside) :] for p in paths if p.startswith(inside) and len(p) > len(inside))
