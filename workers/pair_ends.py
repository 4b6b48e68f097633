"""Ends of a range that are pairs: a commit of the repository, and commits of what it pins.

    good {"megatron-bridge": a, "megatron-lm": x}      bad {"megatron-bridge": b, "megatron-lm": y}

What differs between them is a change like one that a commit makes, only larger: the first level tells
its parts apart (a with x, a with y, b with y), and the guilty part's own range is opened below it.
"""

from __future__ import annotations

from collections.abc import Mapping

from bisection.adapters.catalogue import Profile
from bisection.adapters.mirror import BadRange
from bisection.commits import State
from bisection.levels import Level
from bisection.openings import factor_level, of_pairs
from workers.descending import history_level
from workers.state_reading import StateReader


def pair_level(
    reader: StateReader, profile: Profile, good: str | Mapping[str, str], bad: str | Mapping[str, str]
) -> Level:
    """Level 0 between two such ends. Raises MirrorError, CatalogueError, or ValueError for a pin that is
    no pin of the repository.
    """
    before, after = (_state(reader, profile, end) for end in (good, bad))
    if before == after:
        raise BadRange("good and bad come to the same commits: there is nothing between them")
    mirror = reader.mirror("")
    commits = [mirror.read_back(state.commit, 0)[0] for state in (before, after)]
    change = reader.change(before, after, "", commits[0], commits[1])
    change = of_pairs(change)
    if len(change.factors) == 1:
        level = history_level(reader, profile, change, change.factors[0], None)
        # A step that leads backwards is told by what it loses, below one that says what moved at all.
        if not level.turn:
            return level
    return factor_level(change, None, reader.tidy, repository=profile.repository)


def _state(reader: StateReader, profile: Profile, end: str | Mapping[str, str]) -> State:
    refs = {profile.repository: end} if isinstance(end, str) else dict(end)
    commit = reader.mirror("").resolve(refs.pop(profile.repository))
    pins = {}
    for name, ref in refs.items():
        path = reader.path_of(name)
        mirror = reader.mirror(path)
        mirror.fetch()
        pins[path] = mirror.resolve(ref)
    state = State(commit=commit, pins=tuple(sorted(pins.items())))
    for path in pins:
        if reader.own_pin(state, path) is None:
            raise BadRange(
                f"{commit[:10]} pins nothing at {path}: leave {reader.repository(path).name!r} out of that "
                "end, or give a commit that pins it"
            )
    return reader.tidy(state)
