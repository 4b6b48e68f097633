"""The line of distinct states that a level's range of commits comes down to.

Here lives which commits are one state to the repro, and so which of them can be
the first bad one at all. No measurement and no probability belongs here.

    commits   B--d--X--d--Y--d--R--H        d touches no relevant path, R undoes Y
    states    0  0  1  1  .  .  1  2        Y lies off the line: its effect is undone

Two commits with equal relevant trees, pins and environment behave alike. A
regression that is still there at the bad end therefore cannot have begun between
two commits of one state, and of a run of equal commits only the first can have
begun it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bisection.commits import Commit, CommitRange, State
from bisection.levels import Level


@dataclass(frozen=True, kw_only=True)
class Line:
    """Distinct states, oldest first, without the detours that were undone.

    ``groups[g]`` are the commits of state ``g``, oldest first; the first one stands
    for them all. ``groups[0]`` holds the good end, the last group the bad end.
    """

    level: Level
    groups: tuple[tuple[Commit, ...], ...]
    places: Mapping[State, int]  #: state to group; states off the line are missing

    @classmethod
    def through(cls, level: Level) -> Line:
        """The line of a level; a detour back to an earlier state is taken out."""
        states = dict(zip((commit.hash for commit in level.range.commits), level.states, strict=True))
        groups: list[list[Commit]] = []
        place_of: dict[tuple[str, str] | str, int] = {}
        for commit in level.range.commits:
            key = _state_key(commit)
            if key in place_of:
                for undone in groups[place_of[key] + 1 :]:
                    del place_of[_state_key(undone[0])]
                del groups[place_of[key] + 1 :]
                groups[-1].append(commit)
            else:
                place_of[key] = len(groups)
                groups.append([commit])
        return cls(
            level=level,
            groups=tuple(tuple(group) for group in groups),
            places={states[commit.hash]: place for place, group in enumerate(groups) for commit in group},
        )

    def __len__(self) -> int:
        return len(self.groups)

    @property
    def last(self) -> int:
        """The group of the bad end."""
        return len(self.groups) - 1

    def first_commit(self, group: int) -> Commit:
        """The commit that stands for a state: the only one of its group that can be the culprit."""
        return self.groups[group][0]

    def state(self, group: int) -> State:
        """What a trial of this group checks out."""
        return self.level.state_of(self.groups[group][0].hash)

    def parent(self, group: int) -> Commit:
        """The commit right before the first one of this group; its state is the group before."""
        return self.level.before(self.first_commit(group).hash)

    def name(self, group: int) -> str:
        """What to call a state in a sentence."""
        return self.level.name(self.first_commit(group))

    @property
    def range(self) -> CommitRange:
        return self.level.range


def _state_key(commit: Commit) -> tuple[str, str] | str:
    """What two commits share if they are one state. Without a tree key nothing is known: no two are."""
    return (commit.tree_key, commit.environment_key) if commit.tree_key else commit.hash
