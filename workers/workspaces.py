"""Workspaces: the files of a state, exported once a host and copied for every trial.

The kept export is named by its content (the commit's tree and every pinned tree), so
states that differ in nothing share one. A trial gets a copy, not links: a run that
writes into its files in place must not change the next run's. Exports are made under
a lock and renamed into place; one that no longer has the files it was made with is
discarded. Nothing of git's is in a workspace, and no trial sees the kept one.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bisection.adapters.catalogue import Catalogue, CatalogueError, RepositoryEntry
from bisection.adapters.mirror import Mirror, MirrorError
from bisection.adapters.tree_export import TreeEntry, UnsafeTreeError, check_lengths, write_tree
from bisection.commits import State
from workers.supervisor import write_atomically

#: About 400 exports of a repository of Megatron Bridge's size with its Megatron-LM.
BUDGET_BYTES = 20 * 2**30
#: A pin that pins again is followed this deep; real ones need two.
_DEEPEST_PIN = 4
_MARKER = "complete.json"
_GITLINK = "160000"


class WorkspaceRefused(ValueError):
    """The state cannot be written to a disk; the state's fault, not the worker's."""


@dataclass(frozen=True, kw_only=True)
class Workspace:
    """A trial's own copy of a state's files."""

    folder: Path
    key: str  #: equal for states with equal files
    commit: str
    pins: Mapping[str, str]  #: path of a gitlink to what is checked out there

    def has(self, path: str) -> bool:
        return (self.folder / path).exists()


@dataclass(frozen=True, kw_only=True)
class _Part:
    """One tree of a workspace: where it goes, and whence it comes."""

    path: str  #: "" for the repository itself
    mirror: Mirror
    commit: str
    entries: tuple[TreeEntry, ...]


def mirror_of(root: Path, repository: RepositoryEntry) -> Mirror:
    """The host's mirror of a registered repository."""
    return Mirror(root / "mirrors" / f"{repository.name}.git", repository.url)


class Workspaces:
    """The kept exports of one host, below ``root / "workspaces"``; any number of workers may share them."""

    def __init__(self, root: Path, catalogue: Catalogue, budget_bytes: int = BUDGET_BYTES) -> None:
        self._root = root
        self._kept = root / "workspaces"
        self._catalogue = catalogue
        self._budget_bytes = budget_bytes

    def check_out(
        self,
        repository: RepositoryEntry,
        state: State,
        destination: Path,
        progress: Callable[[str], None] = lambda _: None,
    ) -> Workspace:
        """Copies the state's files to ``destination``, which must not exist.

        Raises WorkspaceRefused for a state that cannot be written, and MirrorError or
        OSError for what is the host's or the network's fault.
        """
        parts = self._parts(repository, state)
        for part in parts:
            try:
                check_lengths(part.entries, destination / part.path)
            except UnsafeTreeError as error:
                raise WorkspaceRefused(f"{part.commit[:10]}: {error}") from error
        key = _key(parts)
        while True:
            with _lock(self._kept, key, shared=False):
                if not self._whole(key):
                    progress(f"exporting {state.commit[:10]}")
                    self._make(key, parts)
                os.utime(self._kept / key / _MARKER)
            self._evict(sparing=key)
            with _lock(self._kept, key, shared=True):
                # Between the two locks another worker may have thrown it out for space: then once more.
                if (self._kept / key / _MARKER).exists():
                    shutil.copytree(self._kept / key / "tree", destination, symlinks=True)
                    break
        pins = {part.path: part.commit for part in parts if part.path}
        return Workspace(folder=destination, key=key, commit=state.commit, pins=pins)

    # -- what belongs to a state --------------------------------------------------

    def _parts(self, repository: RepositoryEntry, state: State) -> list[_Part]:
        overrides = dict(state.pins)
        parts: list[_Part] = []
        waiting = [("", repository, state.commit, 0)]
        while waiting:
            path, entry, commit, depth = waiting.pop()
            mirror = mirror_of(self._root, entry)
            mirror.require(commit)
            try:
                entries = mirror.tree(commit)
            except UnsafeTreeError as error:
                raise WorkspaceRefused(f"{entry.name} at {commit[:10]}: {error}") from error
            parts.append(_Part(path=path, mirror=mirror, commit=commit, entries=entries))
            for gitlink in entries:
                if gitlink.mode == _GITLINK and gitlink.path in entry.pins:
                    if depth == _DEEPEST_PIN:
                        raise WorkspaceRefused(f"{entry.name} at {commit[:10]} pins itself, or too deep")
                    below = f"{path}/{gitlink.path}" if path else gitlink.path
                    target = overrides.pop(below, gitlink.hash)
                    waiting.append((below, self._pinned(entry, gitlink.path), target, depth + 1))
        if overrides:
            raise WorkspaceRefused(
                f"{state.commit[:10]} has no registered pin at {', '.join(sorted(overrides))}: the commit "
                "lacks the gitlink, or the repository's file lacks it under `pins`"
            )
        return sorted(parts, key=lambda part: part.path)

    def _pinned(self, entry: RepositoryEntry, path: str) -> RepositoryEntry:
        try:
            return self._catalogue.repository(entry.pins[path])
        except CatalogueError as error:
            raise MirrorError(f"{entry.name} pins {path}, but: {error}") from error

    # -- making and checking ------------------------------------------------------

    def _make(self, key: str, parts: list[_Part]) -> None:
        total = sum(entry.bytes for part in parts for entry in part.entries)
        if total > self._budget_bytes:
            raise WorkspaceRefused(
                f"the state has {total} bytes of files, more than the {self._budget_bytes} "
                "that this host keeps"
            )
        making = self._kept / f".making-{key}"  # we hold the lock: whatever is there is a dead worker's
        shutil.rmtree(making, ignore_errors=True)
        shutil.rmtree(self._kept / key, ignore_errors=True)
        tree = making / "tree"
        tree.mkdir(parents=True)
        try:
            for part in parts:
                folder = tree / part.path
                _check_real_folder(tree, folder)
                _write(part, folder)
        except UnsafeTreeError as error:
            shutil.rmtree(making, ignore_errors=True)
            raise WorkspaceRefused(f"{part.commit[:10]}: {error}") from error
        except BaseException:
            shutil.rmtree(making, ignore_errors=True)
            raise
        listing, count = _listing(tree)
        write_atomically(
            making / _MARKER, json.dumps({"version": 1, "bytes": total, "files": count, "listing": listing})
        )
        making.rename(self._kept / key)

    def _whole(self, key: str) -> bool:
        """Whether the kept export is there, with exactly the files that it was made with."""
        marker = _marker(self._kept / key)
        return bool(marker) and _listing(self._kept / key / "tree")[0] == marker["listing"]

    def _evict(self, sparing: str) -> None:
        """Throws out what was longest not used, until the rest fits; never what is being copied."""
        kept = []
        for folder in self._kept.iterdir():
            if folder.name.startswith(".trash-"):  # of a worker that was killed while evicting
                shutil.rmtree(folder, ignore_errors=True)
            elif not folder.name.startswith("."):
                with suppress(OSError, KeyError, ValueError):
                    used = (folder / _MARKER).stat().st_mtime_ns
                    kept.append((used, folder.name, int(str(_marker(folder)["bytes"]))))
        total = sum(size for _, _, size in kept)
        for _, key, size in sorted(kept):
            if total <= self._budget_bytes:
                return
            if key == sparing:
                continue
            with suppress(BlockingIOError), _lock(self._kept, key, shared=False, wait=False):
                trash = self._kept / f".trash-{key}"
                shutil.rmtree(trash, ignore_errors=True)
                with suppress(FileNotFoundError):
                    (self._kept / key).rename(trash)
                shutil.rmtree(trash, ignore_errors=True)
                total -= size


def _key(parts: list[_Part]) -> str:
    """Equal exactly for equal files: a digest over path, mode and object of all of them."""
    digest = hashlib.sha256()
    for part in parts:
        for entry in part.entries:
            # A gitlink that is exported is in the digest by its files, one that is not by nothing.
            target = "" if entry.mode == _GITLINK else entry.hash
            digest.update(f"{part.path}\0{entry.path}\0{entry.mode}\0{target}\0".encode())
    return digest.hexdigest()[:32]


def _check_real_folder(tree: Path, folder: Path) -> None:
    """A pinned tree goes where its gitlink left an empty folder, never through a link."""
    straight = os.path.normpath(os.path.join(os.path.realpath(tree), os.path.relpath(folder, tree)))
    if os.path.realpath(folder) != straight or any(folder.iterdir()):
        raise UnsafeTreeError(f"{os.path.relpath(folder, tree)!r} is no empty folder for a pinned tree")


def _write(part: _Part, folder: Path) -> None:
    """Writes the part into its empty folder, from the start again if the mirror had to be made anew."""

    def write() -> None:
        shutil.rmtree(folder)
        folder.mkdir()
        write_tree(part.mirror.folder, part.entries, folder)

    part.mirror.reading(write)


def _listing(tree: Path) -> tuple[str, int]:
    """A digest over names, kinds, sizes and times, without reading a file; and how many files."""
    digest = hashlib.sha256()
    count = 0
    for folder, folders, files in os.walk(tree):
        folders.sort()
        for name in sorted([*files, *folders]):
            path = os.path.join(folder, name)
            facts = os.lstat(path)
            is_folder = os.path.isdir(path) and not os.path.islink(path)
            sizes = (0, 0) if is_folder else (facts.st_size, facts.st_mtime_ns)
            digest.update(f"{os.path.relpath(path, tree)}\0{facts.st_mode}\0{sizes}\0".encode())
            count += not is_folder
    return digest.hexdigest(), count


def _marker(folder: Path) -> dict[str, object]:
    try:
        row = json.loads((folder / _MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return row if isinstance(row, dict) and row.get("version") == 1 else {}


@contextmanager
def _lock(kept: Path, key: str, *, shared: bool, wait: bool = True) -> Iterator[None]:
    """A lock a key; the kernel lets go of it when the worker dies. BlockingIOError if it must not wait."""
    locks = kept / ".locks"
    locks.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(locks / key, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        operation = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        fcntl.flock(descriptor, operation | (0 if wait else fcntl.LOCK_NB))
        yield
    finally:
        os.close(descriptor)
