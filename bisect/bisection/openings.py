"""What to look through next, once a search has found something: the way down, decided.

    a commit that moves several things    -> FACTORS: lock, pins and source, one after another
    a moved pin                           -> PIN: the commits of the pinned repository
    a moved lock                          -> PACKAGES: its packages, one after another
    one moved package                     -> PACKAGES: the versions between, where they are at hand
    a merge commit                        -> MERGE: the commits of the merged branch
    where a branch left, failing already  -> COMMITS: the other side since then, backwards: it holds a fix
    a good end that fails                 -> WIDENED: an older good end, on request

Pure: what git, the locks and the disk say comes in as a `Change` (`workers.descending` asks them), and
what goes out is an `Opening`. Nothing is guessed: parts of a
change that no state can separate stay together and are reported as a joint change.

The order of the factors is lock, pins, source, since old code runs with newer packages more often than
new code with older ones; where those hybrids cannot be tested, the other order is tried, once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise

from bisection.commits import Commit, CommitRange, State
from bisection.finding import Finding, FindingKind
from bisection.levels import Level, LevelKind, made_step
from bisection.quantities import counted

#: Drops the overrides of a state that change nothing, see `levels.canonical`.
Tidy = Callable[[State], State]

#: The value of a package override that says: not installed.
ABSENT = ""


class FactorKind(StrEnum):
    """A part of a change that can be switched on its own. In the order in which they are switched."""

    LOCK = "lock"
    PIN = "pin"
    SOURCE = "source"


@dataclass(frozen=True, kw_only=True)
class PackageMove:
    """One package of a moved lock, as overrides of it: a version, a whole requirement, or `ABSENT`."""

    name: str
    before: str
    after: str

    @property
    def words(self) -> str:
        return f"{self.name} {self.before or 'not there'} -> {self.after or 'not there'}"


@dataclass(frozen=True, kw_only=True)
class Factor:
    """One thing that a change moves. ``before`` and ``after`` are hashes: of the pin, or of the commits
    whose lock or source it is.
    """

    kind: FactorKind
    path: str  #: of the gitlink or the lock, from the top; of SOURCE: where its repository lies
    before: str
    after: str
    packages: tuple[PackageMove, ...] = ()  #: of LOCK, by name

    @property
    def name(self) -> str:
        if self.kind is FactorKind.SOURCE:
            return f"the source of {self.path}" if self.path else "the source"
        return self.path

    @property
    def words(self) -> str:
        moved = "moved to" if self.kind is FactorKind.PIN else "as at"
        return f"{self.name} {moved} {self.after[:10]}"


@dataclass(frozen=True, kw_only=True)
class Change:
    """What differs between two states that were measured, the last that passed and the first that failed."""

    good: State
    bad: State
    path: str  #: of the repository whose commits were looked through
    before: Commit  #: of that repository
    after: Commit
    factors: tuple[Factor, ...]
    versions: tuple[str, ...] = ()  #: of the only package that moved: those at hand between the two
    rest_moved: bool = False  #: whether files changed that are of no factor, since they seem to be no code

    @property
    def is_merge(self) -> bool:
        return len(set(self.after.parents)) == 2 and self.before.hash in self.after.parents


class OpeningKind(StrEnum):
    """What is opened."""

    FACTORS = "factors"
    FACTORS_REVERSED = "factors_reversed"  #: source first, then pins, then the lock
    PIN = "pin"
    PACKAGES = "packages"
    VERSIONS = "versions"
    MERGE = "merge"
    COMMITS = "commits"  #: the source moved by more than one commit
    WIDENED = "widened"


@dataclass(frozen=True, kw_only=True)
class Opening:
    """The next level. ``factor`` is the one to open (PIN, PACKAGES, VERSIONS, COMMITS)."""

    kind: OpeningKind
    factor: Factor | None = None


def is_joint(levels: Sequence[Level], finding: Finding) -> bool:
    """Whether parts of a change could not be told apart in either order."""
    return (
        len(levels) > 1
        and levels[-1].kind is LevelKind.FACTORS
        and levels[-2].kind is LevelKind.FACTORS
        and _untestable(finding)
    )


def wants_reversal(levels: Sequence[Level], finding: Finding) -> bool:
    """Whether the hybrids of one order of the factors cannot be tested, and the other was not tried."""
    reversed_already = len(levels) > 1 and levels[-2].kind is LevelKind.FACTORS
    return levels[-1].kind is LevelKind.FACTORS and not reversed_already and _untestable(finding)


def _untestable(finding: Finding) -> bool:
    return (
        finding.kind is FindingKind.SET
        and finding.problem in ("untestable-stretch", "nothing-left-to-try")
        and len(finding.commits) > 1
    )


def opening(levels: Sequence[Level], finding: Finding, change: Change) -> Opening | None:
    """What to open after the last of the levels ended with a culprit, whose change is given; or nothing."""
    level = levels[-1]
    if level.kind is LevelKind.PACKAGES:
        return _below_packages(change)
    if level.kind is not LevelKind.FACTORS and change.is_merge:
        if level.kind is LevelKind.MERGE and finding.commits[0] == level.range.bad.hash:
            return None  # both parents pass: the merge itself is to blame
        return Opening(kind=OpeningKind.MERGE)
    if level.leaves_behind(finding.commits[0]):
        factor = Factor(
            kind=FactorKind.SOURCE, path=change.path, before=change.before.hash, after=change.after.hash
        )
        return Opening(kind=OpeningKind.COMMITS, factor=factor)
    if is_between_pairs(levels) and change.good.commit != change.bad.commit:
        return Opening(kind=OpeningKind.COMMITS, factor=whole_source(change))
    if not change.factors:
        return None
    if len(change.factors) > 1:
        return Opening(kind=OpeningKind.FACTORS)
    factor = change.factors[0]
    match factor.kind:
        case FactorKind.PIN:
            return Opening(kind=OpeningKind.PIN, factor=factor)
        case FactorKind.LOCK if len(factor.packages) > 1:
            return Opening(kind=OpeningKind.PACKAGES, factor=factor)
        case FactorKind.LOCK if change.versions:
            return Opening(kind=OpeningKind.VERSIONS, factor=factor)
    return None


def is_between_pairs(levels: Sequence[Level]) -> bool:
    """Whether no commit was looked through yet: the ends are pairs, with a range of source between them."""
    return all(level.kind is LevelKind.FACTORS for level in levels)


def whole_source(change: Change) -> Factor:
    """The source of two ends, with its lock: a commit between that moves the lock is opened when found."""
    return Factor(kind=FactorKind.SOURCE, path="", before=change.good.commit, after=change.bad.commit)


def of_pairs(change: Change) -> Change:
    """The change between two ends that are pairs: their pins, and the source with its lock."""
    factors = [factor for factor in change.factors if factor.kind is FactorKind.PIN]
    if change.good.commit != change.bad.commit:
        factors.append(whole_source(change))
    return replace(change, factors=tuple(factors), rest_moved=False)


def _below_packages(change: Change) -> Opening | None:
    lock = next((factor for factor in change.factors if factor.kind is FactorKind.LOCK), None)
    if lock is None or len(lock.packages) != 1 or not change.versions:
        return None
    return Opening(kind=OpeningKind.VERSIONS, factor=lock)


# -- the levels whose steps are of our own making -----------------------------------------------------------


def factor_level(
    change: Change,
    opened_by: Finding | None,
    tidy: Tidy,
    *,
    source_first: bool = False,
    repository: str = "",
) -> Level:
    """The factors of a change, switched one after another from its good state to its bad one."""
    factors = _in_order(change.factors, source_first)
    good = start(change, factors, tidy)
    steps = [_factor_step(good, f"all as at {change.before.short}", factors, 0)]
    states = [good]
    for count in range(1, len(factors) + 1):
        state = change.bad if count == len(factors) else tidy(_switched(change, factors, count))
        states.append(state)
        steps.append(_factor_step(state, factors[count - 1].words, factors, count))
    names = ", ".join(factor.name for factor in factors)
    return Level(
        kind=LevelKind.FACTORS,
        range=CommitRange(commits=tuple(steps)),
        states=tuple(states),
        path=change.path,
        repository=repository,
        title=f"what {change.after.short} moves ({names})",
        opened_by=opened_by,
    )


def start(change: Change, factors: Sequence[Factor], tidy: Tidy) -> State:
    """The good end of a level over these factors, which are all that the change has.

    As it was measured; but where the change touches more than its factors, the bad state without them. Where
    that fails, they are not to blame. It is tried only if hardly anything else of the level passes.
    """
    if not change.rest_moved:
        return change.good
    return tidy(_with(change.bad, change, factors, after=False))


def _in_order(factors: Sequence[Factor], source_first: bool) -> list[Factor]:
    order = list(FactorKind)
    ordered = sorted(factors, key=lambda factor: (order.index(factor.kind), factor.path))
    return ordered[::-1] if source_first else ordered


def _switched(change: Change, factors: Sequence[Factor], count: int) -> State:
    """The state after so many factors: the good one with them, or the bad one without the rest."""
    source = next((n for n, factor in enumerate(factors) if factor.kind is FactorKind.SOURCE), 0)
    if count > source:
        return _with(change.bad, change, factors[count:], after=False)
    return _with(change.good, change, factors[:count], after=True)


def _with(state: State, change: Change, factors: Sequence[Factor], *, after: bool) -> State:
    """A state of the change with some of its factors switched. All pins are named: one may lie in another."""
    pins, packages = dict(state.pins), dict(state.packages)
    for factor in factors:
        if factor.kind is FactorKind.PIN:
            for below in [path for path in pins if path.startswith(f"{factor.path}/")]:
                del pins[below]  # it was of the other commit at this pin
    for factor in change.factors:
        if factor.kind is FactorKind.PIN:
            pins[factor.path] = factor.after if (factor in factors) is after else factor.before
    for factor in factors:
        for move in factor.packages:
            packages[move.name] = move.after if after else move.before
    return State(
        commit=state.commit, pins=tuple(sorted(pins.items())), packages=tuple(sorted(packages.items()))
    )


def _factor_step(state: State, subject: str, factors: Sequence[Factor], count: int) -> Commit:
    """A step with what the prior looks at: the pins and the environment after it."""
    lock = next((n for n, factor in enumerate(factors) if factor.kind is FactorKind.LOCK), None)
    environment = "" if lock is None else "environment after" if count > lock else "environment before"
    pins = {
        factor.path: factor.after if n < count else factor.before
        for n, factor in enumerate(factors)
        if factor.kind is FactorKind.PIN
    }
    paths = (factors[count - 1].path,) if count and factors[count - 1].path else ()
    return made_step(state, subject, environment_key=environment, pins=pins, paths=paths)


def package_level(change: Change, lock: Factor, opened_by: Finding | None, tidy: Tidy) -> Level:
    """The packages that a lock moves, switched by name from the good state to the bad one.

    One line over cumulative switches is group testing: each trial asks of a whole group at once.
    """
    good = start(change, [lock], tidy)
    states, steps = [good], [_package_step(good, f"{lock.path} as before", 0)]
    for count, move in enumerate(lock.packages, start=1):
        rest = lock.packages[count:]
        state = change.bad if not rest else tidy(_with_packages(change.bad, rest))
        states.append(state)
        steps.append(_package_step(state, move.words, count))
    return Level(
        kind=LevelKind.PACKAGES,
        range=CommitRange(commits=tuple(steps)),
        states=tuple(states),
        path=lock.path,
        title=f"the {counted(len(lock.packages), 'package')} that {lock.path} moves",
        opened_by=opened_by,
    )


def version_level(change: Change, lock: Factor, opened_by: Finding | None, tidy: Tidy) -> Level:
    """The versions of one package between the old and the new one."""
    move = lock.packages[0]
    versions = [move.before, *change.versions, move.after]
    between = [
        tidy(_with_packages(change.bad, [PackageMove(name=move.name, before=v, after="")]))
        for v in change.versions
    ]
    states = (start(change, [lock], tidy), *between, change.bad)
    names = [f"{move.name} {move.before}"]
    names += [PackageMove(name=move.name, before=old, after=new).words for old, new in pairwise(versions)]
    steps = [
        _package_step(state, name, count)
        for count, (state, name) in enumerate(zip(states, names, strict=True))
    ]
    return Level(
        kind=LevelKind.PACKAGES,
        range=CommitRange(commits=tuple(steps)),
        states=states,
        path=lock.path,
        title=f"the versions of {move.name} between {move.before} and {move.after}",
        opened_by=opened_by,
    )


def _with_packages(state: State, moves: Sequence[PackageMove]) -> State:
    packages = {**dict(state.packages), **{move.name: move.before for move in moves}}
    return State(commit=state.commit, pins=state.pins, packages=tuple(sorted(packages.items())))


def _package_step(state: State, subject: str, count: int) -> Commit:
    return made_step(state, subject, environment_key=f"environment {count}")
