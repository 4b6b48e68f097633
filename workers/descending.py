"""Opens what a search has found: reads what lies inside, and makes the next level of it.

The decision is `bisection.openings`'; here git, the locks and the disk are asked. What cannot be
read is told beside the answer and takes nothing from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import structlog

from bisection.adapters.catalogue import CatalogueError, Profile
from bisection.adapters.mirror import Mirror, MirrorError
from bisection.commits import Commit, CommitRange, State
from bisection.descent import only_step, whole_answer
from bisection.finding import Finding, FindingKind, LevelFinding
from bisection.levels import Level, LevelKind, relevant_below
from bisection.openings import (
    Change,
    Factor,
    Opening,
    OpeningKind,
    factor_level,
    is_between_pairs,
    of_pairs,
    opening,
    package_level,
    start,
    version_level,
    wants_reversal,
)
from bisection.quantities import counted
from bisection.specification import BisectionSpec
from bisection.states import Line
from workers.context import WorkerContext
from workers.state_reading import StateReader

log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class Descended:
    """The way on: a specification with a further level to search, or the whole answer."""

    spec: BisectionSpec
    answer: Finding | None = None


def descend(
    context: WorkerContext, profile: Profile, spec: BisectionSpec, finding: Finding, *, widen: bool
) -> Descended:
    """What follows from what was found on the last level. Never raises: what was found stands."""
    reader = StateReader(context.root, context.catalogue, profile)
    while True:
        try:
            level = _next_level(reader, profile, spec, finding, widen)
        except Exception as error:
            ours = not isinstance(error, (MirrorError, CatalogueError))
            log.warning("a finding could not be opened", error=str(error), exc_info=ours)
            return Descended(spec=spec, answer=whole_answer(spec, finding, _not_opened(spec, error)))
        if level is None:
            return Descended(spec=spec, answer=whole_answer(spec, finding))
        is_measured = any(level.states[0] in above.states for above in spec.levels)
        spec = spec.with_level(level)
        if len(level.states) > 2 or not is_measured:
            return Descended(spec=spec)
        finding = only_step(level, finding)


def _not_opened(spec: BisectionSpec, error: Exception) -> LevelFinding:
    return LevelFinding(
        level=spec.levels[-1].kind,
        path=spec.levels[-1].path,
        title="what the culprit carries",
        kind=FindingKind.NONE,
        why=f"It could not be opened: {error}",
        problem=getattr(error, "problem", ""),
    )


def _next_level(
    reader: StateReader, profile: Profile, spec: BisectionSpec, finding: Finding, widen: bool
) -> Level | None:
    levels = spec.levels
    if widen and finding.problem == "good-end-is-bad" and levels[-1].is_ground and levels[-1].is_plain:
        return _wider(reader, profile, levels[-1], finding)
    if wants_reversal(levels, finding):
        return _reversed_factors(reader, levels, finding)
    if finding.kind is not FindingKind.FOUND:
        return None
    change = _change(reader, levels[-1], finding.commits[0])
    chosen = opening(levels, finding, change)
    return _open(reader, profile, finding, change, chosen) if chosen else None


def _change(reader: StateReader, level: Level, step: str) -> Change:
    """What the first bad step of a level differs in from the state that was measured before it."""
    line = Line.through(level)
    bad = level.state_of(step)
    good = line.state(line.places[bad] - 1)
    path = "" if level.kind is LevelKind.PACKAGES else level.path
    if level.is_made:
        before, after = (_commit_at(reader, state, path) for state in (good, bad))
    else:
        before, after = level.before(step), level.range.commits[level.range.position(step)]
    return reader.change(good, bad, path, before, after)


def _commit_at(reader: StateReader, state: State, path: str) -> Commit:
    commit = reader.commit(state, path)
    assert commit is not None  # the state was measured with it
    mirror = reader.mirror(path)
    mirror.require(commit)
    return mirror.read_back(commit, 0)[0]


def _reversed_factors(reader: StateReader, levels: Sequence[Level], finding: Finding) -> Level:
    """The factors that could not be told apart, in the other order."""
    level = levels[-1]
    first = level.range.position(finding.commits[0])
    good, bad = level.states[first - 1], level.state_of(finding.commits[-1])
    before, after = (_commit_at(reader, state, level.path) for state in (good, bad))
    change = reader.change(good, bad, level.path, before, after)
    return factor_level(
        of_pairs(change) if is_between_pairs(levels) else change,
        finding,
        reader.tidy,
        source_first=True,
        repository=reader.repository(level.path).name,
    )


def _open(
    reader: StateReader, profile: Profile, finding: Finding, change: Change, chosen: Opening
) -> Level | None:
    factor = chosen.factor
    match chosen.kind:
        case OpeningKind.FACTORS:
            name = reader.repository(change.path).name
            return factor_level(change, finding, reader.tidy, repository=name)
        case OpeningKind.PACKAGES if factor:
            return package_level(change, factor, finding, reader.tidy)
        case OpeningKind.VERSIONS if factor:
            return version_level(change, factor, finding, reader.tidy)
        case OpeningKind.PIN | OpeningKind.COMMITS if factor:
            return history_level(reader, profile, change, factor, finding)
        case OpeningKind.MERGE:
            return _merge(reader, profile, change, finding)
    return None


def history_level(
    reader: StateReader, profile: Profile, change: Change, factor: Factor, finding: Finding | None
) -> Level:
    """The commits between two ends of one repository, the rest of the state being held."""
    path = factor.path
    mirror, relevant, environment = _reading(reader, profile, path)
    for commit in (factor.before, factor.after):
        mirror.require(commit)
    commits, turn = mirror.read_path(factor.before, factor.after, relevant, environment)
    good = start(change, [factor], reader.tidy) if path else change.good
    steps, states = _states(reader, change, good, commits.commits, path)
    name = reader.repository(path).name
    return Level(
        kind=LevelKind.PIN if path else LevelKind.COMMITS,
        range=CommitRange(commits=steps),
        states=states,
        path=path,
        repository=name,
        title=f"{path or name} from {factor.before[:10]} to {factor.after[:10]}"
        + (f", through {steps[turn].short}, where they part" if 0 < turn < len(steps) - 1 else ""),
        turn=turn,
        opened_by=finding,
    )


def _merge(reader: StateReader, profile: Profile, change: Change, finding: Finding) -> Level | None:
    mirror, relevant, environment = _reading(reader, profile, change.path)
    commits = mirror.read_merge(change.after.hash, change.before.hash, relevant, environment)
    steps, states = _states(reader, change, change.good, commits.commits, change.path)
    if len(steps) < 3:
        return None  # the branch holds nothing that the merge itself does not
    return Level(
        kind=LevelKind.MERGE,
        range=CommitRange(commits=steps),
        states=states,
        path=change.path,
        repository=reader.repository(change.path).name,
        title=f"the branch that {change.after.short} merges",
        opened_by=finding,
    )


def _reading(reader: StateReader, profile: Profile, path: str) -> tuple[Mirror, Sequence[str], Sequence[str]]:
    relevant = relevant_below(profile.relevant_paths, path)
    return reader.mirror(path), relevant, () if path else profile.environment_paths


def _states(
    reader: StateReader, change: Change, good: State, commits: Sequence[Commit], path: str
) -> tuple[tuple[Commit, ...], tuple[State, ...]]:
    """The steps and their states: from the good one to the bad one, and the latter at other commits between.

    Pins that either end overrides are held as the bad one has them, whatever a commit between pins itself.
    Of steps that come to one state the first one stays.
    """
    overridden = sorted({at for end in (change.good, change.bad) for at, _ in end.pins} - {path})
    held = {at: pin for at in overridden if (pin := reader.commit(change.bad, at)) is not None}

    def at(commit: str) -> State:
        state = replace(change.bad, commit=change.bad.commit if path else commit, pins=())
        for pinned, pin in sorted({**held, **({path: commit} if path else {})}.items()):
            if reader.own_pin(state, pinned) is not None:
                state = replace(state, pins=(*state.pins, (pinned, pin)))
        return reader.tidy(state)

    ends = {good: commits[0], change.bad: commits[-1]}
    between: dict[State, Commit] = {}
    for commit in commits[1:-1]:
        state = at(commit.hash)
        if state not in ends:
            between.setdefault(state, commit)
    return (commits[0], *between.values(), commits[-1]), (good, *between, change.bad)


def _wider(reader: StateReader, profile: Profile, level: Level, finding: Finding) -> Level | None:
    """The same range from an older good end on: as many commits further back as it has."""
    commits = level.range.commits
    mirror = reader.mirror("")
    mirror.require(level.range.good.hash)
    older = mirror.read_back(
        level.range.good.hash, len(commits) - 1, profile.relevant_paths, profile.environment_paths
    )
    if len(older) < 2:
        return None  # history begins here
    wider = CommitRange(commits=(*older[:-1], *commits))
    return Level(
        kind=LevelKind.WIDENED,
        range=wider,
        states=Level.plain(wider).states,
        repository=level.repository,
        title=f"the range from {wider.good.short} on, {counted(len(older) - 1, 'commit')} further back",
        opened_by=finding,
    )
