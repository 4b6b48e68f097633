"""What a state holds: which commit at which pin, which packages, and what differs between two states.

Asks the mirrors and reads the locks. What follows from a difference is `bisection.openings`' matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bisection.adapters.catalogue import Catalogue, CatalogueError, Profile, RepositoryEntry
from bisection.adapters.mirror import Mirror, MissingPath
from bisection.adapters.training_environments import lies_in
from bisection.commits import Commit, State
from bisection.levels import canonical, relevant_below
from bisection.openings import ABSENT, Change, Factor, FactorKind, PackageMove
from bisection.prior import is_code
from workers.building import BuildHostError
from workers.requirement_lock import Unbuildable, as_overrides, normalised, read_lock
from workers.uv_lock import plain_lock
from workers.wheels import versions_between
from workers.workspaces import mirror_of


def lock_at(mirror: Mirror, commit: str, path: str) -> str | None:
    """The lock of a commit in lines of ``name==version``; None if it has none. Raises Unbuildable."""

    def read(file: str) -> str | None:
        try:
            return mirror.read_file(commit, file).decode(errors="replace")
        except MissingPath:
            return None

    return plain_lock(path, read)


class StateReader:
    """Reads states of one profile on this host. Raises MirrorError or CatalogueError."""

    def __init__(self, root: Path, catalogue: Catalogue, profile: Profile) -> None:
        self._root = root
        self._catalogue = catalogue
        self._profile = profile
        self._locks: dict[str, dict[str, str]] = {}  #: of commits that were read

    # -- repositories --------------------------------------------------------------

    def repository(self, path: str) -> RepositoryEntry:
        """The registered repository at the path of a pin; "" is the profile's own."""
        entry = self._catalogue.repository(self._profile.repository)
        left = path
        while left:
            found = next((pin for pin in entry.pins if left == pin or left.startswith(f"{pin}/")), None)
            if found is None:
                raise CatalogueError(f"repository {entry.name!r} registers no pin at {left}")
            entry = self._catalogue.repository(entry.pins[found])
            left = left[len(found) + 1 :]
        return entry

    def mirror(self, path: str) -> Mirror:
        return mirror_of(self._root, self.repository(path))

    def path_of(self, repository: str) -> str:
        """Where a repository is pinned. Raises CatalogueError if it is nowhere, or at several paths."""
        pins = self._catalogue.pins_of(self._profile.repository)
        found = sorted(path for path, name in pins.items() if name == repository)
        if len(found) != 1:
            where = f"pins {repository!r} at {', '.join(found)}" if found else f"does not pin {repository!r}"
            raise CatalogueError(f"repository {self._profile.repository!r} {where}")
        return found[0]

    # -- one state -------------------------------------------------------------------

    def commit(self, state: State, path: str) -> str | None:
        """What is checked out at a path; None if the commit above it has no gitlink there."""
        if not path:
            return state.commit
        overridden = dict(state.pins).get(path)
        return overridden or self.own_pin(state, path)

    def own_pin(self, state: State, path: str) -> str | None:
        """Where the gitlink at a path points in what is checked out above it; None if there is none."""
        above, pin = self._split(path)
        commit = self.commit(state, above)
        if commit is None:
            return None
        mirror = self.mirror(above)
        mirror.require(commit)
        return mirror.gitlinks(commit, [pin]).get(pin)

    def _split(self, path: str) -> tuple[str, str]:
        """The path of the repository that holds a pin, and the pin's path within it."""
        entry, above, left = self._catalogue.repository(self._profile.repository), "", path
        while left not in entry.pins:
            found = next((pin for pin in entry.pins if left.startswith(f"{pin}/")), None)
            if found is None:
                raise CatalogueError(f"repository {entry.name!r} registers no pin at {left}")
            entry = self._catalogue.repository(entry.pins[found])
            above = f"{above}/{found}" if above else found
            left = left[len(found) + 1 :]
        return above, left

    def pins(self, state: State, path: str) -> dict[str, str]:
        """The registered pins of the repository at a path, by their path from the top."""
        pins = {}
        for pin in self.repository(path).pins:
            below = f"{path}/{pin}" if path else pin
            commit = self.commit(state, below)
            if commit is not None:
                pins[below] = commit
        return pins

    def packages(self, state: State) -> dict[str, str]:
        """What decides of the lock: each package's value as an override. Raises Unbuildable."""
        return {**self._own_packages(state.commit), **dict(state.packages)}

    def _own_packages(self, commit: str) -> dict[str, str]:
        environment = self._profile.environment
        if environment.lock is None:
            return {}
        if commit not in self._locks:
            text = lock_at(self.mirror(""), commit, environment.lock)
            if text is None:
                raise Unbuildable("reading the lock", f"{environment.lock} is not in {commit[:10]}")
            self._locks[commit] = as_overrides(read_lock(text, environment.lock))
        packages = self._locks[commit]
        if environment.kind == "venv":
            return packages
        apart = {normalised(name) for name in environment.overlay}  # the rest is not made from the lock
        return {name: value for name, value in packages.items() if name in apart}

    def tidy(self, state: State) -> State:
        """The state without the overrides that change nothing."""
        own = {path: pin for path, _ in state.pins if (pin := self.own_pin(state, path)) is not None}
        packages: Mapping[str, str] = {}
        if state.packages:
            known = self._own_packages(state.commit)
            packages = {name: known.get(name, ABSENT) for name, _ in state.packages}
        return canonical(state, own, packages)

    # -- two states ------------------------------------------------------------------

    def change(self, good: State, bad: State, path: str, before: Commit, after: Commit) -> Change:
        """What differs between two states, seen from the repository at a path.

        ``before`` and ``after`` are commits of that repository, for their names and parents.
        """
        old, new = self.commit(good, path), self.commit(bad, path)
        # Another host may have made the level: here nothing of it need be fetched yet.
        for at, commits in (("", (good.commit, bad.commit)), (path, (old, new))):
            for commit in commits:
                if commit is not None:
                    self.mirror(at).require(commit)
        factors: list[Factor] = []
        lock, inseparable = self._lock_factor(good, bad) if not path else (None, False)
        if lock is not None:
            factors.append(lock)
        old_pins, new_pins = (self._pins_between(state, path, good, bad) for state in (good, bad))
        factors += [
            Factor(kind=FactorKind.PIN, path=at, before=old_pins[at], after=new_pins[at])
            for at in sorted(old_pins.keys() & new_pins.keys())
            if old_pins[at] != new_pins[at]
        ]
        # A pin that only one side has comes or goes with the source that reads it.
        inseparable |= old_pins.keys() != new_pins.keys()
        moved = self._moved(old, new, path) if old and new else []
        relevant = relevant_below(self._profile.relevant_paths, path)
        # What builds the environment is no package that an override could move: it goes with the source.
        builds = () if path else self._profile.environment.inputs_beside_the_lock
        source_moved = inseparable or any(is_code(file, relevant) or lies_in(file, builds) for file in moved)
        if old and new and old != new and source_moved:
            factors.append(Factor(kind=FactorKind.SOURCE, path=path, before=old, after=new))
        versions: tuple[str, ...] = ()
        if lock is not None and len(lock.packages) == 1:
            move = lock.packages[0]
            links = self._profile.environment.find_links
            versions = versions_between(move.name, move.before, move.after, links)
        return Change(
            good=good,
            bad=bad,
            path=path,
            before=before,
            after=after,
            factors=tuple(factors),
            versions=versions,
            rest_moved=bool(moved) and not source_moved and not relevant,
        )

    def _pins_between(self, state: State, path: str, *ends: State) -> dict[str, str]:
        """The pins of a state below a path, with those deeper ones that either end overrides."""
        inside = f"{path}/" if path else ""
        overridden = {at for end in ends for at, _ in end.pins if at.startswith(inside) and at != path}
        deeper = {at: self.commit(state, at) for at in overridden}
        return {**self.pins(state, path), **{at: pin for at, pin in deeper.items() if pin is not None}}

    def _lock_factor(self, good: State, bad: State) -> tuple[Factor | None, bool]:
        """The moved lock; and whether it moved in a way that no override can follow."""
        try:
            old, new = self.packages(good), self.packages(bad)
        except (Unbuildable, BuildHostError):
            return None, True
        moves = tuple(
            PackageMove(name=name, before=old.get(name, ABSENT), after=new.get(name, ABSENT))
            for name in sorted({*old, *new})
            if old.get(name, ABSENT) != new.get(name, ABSENT)
        )
        if not moves:
            return None, False
        path = self._profile.environment.lock or ""
        return Factor(
            kind=FactorKind.LOCK, path=path, before=good.commit, after=bad.commit, packages=moves
        ), False

    def _moved(self, old: str, new: str, path: str) -> list[str]:
        """The changed files of the repository at a path, without its pins and the lock."""
        environment = self._profile.environment
        lock = (environment.lock,) if not path and environment.kind != "image" else ()
        moved_apart = {*self.repository(path).pins, *lock}
        changed = (change.path for change in self.mirror(path).diff_summary(old, new))
        return [file for file in changed if file not in moved_apart]
