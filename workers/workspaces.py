"""Workspaces: the files of a state for one trial, and the copies that are kept between trials.

A trial has its copy for itself: a run that writes into its files in place changes no other run.
When it is over, the copy is cleaned and kept, and the next trial of the repository takes it and
writes only what differs (`working_copy` tells how what a job did is found). Copies change hands by
renaming: no lock, and a worker that is killed takes its copy with it. Nothing of git's is in a workspace.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from bisection.adapters.catalogue import DEEPEST_PIN, Catalogue, CatalogueError, RepositoryEntry
from bisection.adapters.git_process import GitError
from bisection.adapters.mirror import Mirror, MirrorError
from bisection.adapters.tree_export import TreeEntry, UnsafeTreeError, check_lengths
from bisection.commits import State
from workers.disk_budget import Kept, beyond
from workers.working_copy import GITLINK, Part, Record, WorkingCopy

#: About 400 copies of a repository of Megatron Bridge's size with its Megatron-LM.
BUDGET_BYTES = 20 * 2**30
_RECORD = "record.json"
_VERSION = 1


class WorkspaceRefused(ValueError):
    """The state cannot be written to a disk; the state's fault, not the worker's."""


@dataclass(frozen=True, kw_only=True)
class Workspace:
    """A trial's own copy of a state's files."""

    copy: WorkingCopy
    repository: str
    key: str  #: equal for states with equal files
    commit: str
    pins: Mapping[str, str]  #: path of a gitlink to what is checked out there

    @property
    def folder(self) -> Path:
        return self.copy.folder


def mirror_of(root: Path, repository: RepositoryEntry) -> Mirror:
    """The host's mirror of a registered repository."""
    return Mirror(root / "mirrors" / f"{repository.name}.git", repository.url)


class Workspaces:
    """The kept copies of one host, below ``root / "workspaces"``; any number of workers may share them."""

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
        """Writes the state's files to ``destination``, which must not exist.

        Raises WorkspaceRefused for a state that cannot be written, and MirrorError, GitError or
        OSError for what is the host's or the network's fault.
        """
        parts = self._parts(repository, state)
        self._check(parts, destination)
        progress(f"exporting {state.commit[:10]}")
        copy = self._take(repository.name, destination)
        try:
            if copy is None or not _brought(copy, parts):
                copy = WorkingCopy(destination, {})
                copy.bring_to(parts)
        except BaseException as error:
            shutil.rmtree(destination, ignore_errors=True)
            if isinstance(error, UnsafeTreeError):
                raise WorkspaceRefused(f"{state.commit[:10]}: {error}") from error
            raise
        return Workspace(
            copy=copy,
            repository=repository.name,
            key=_key(parts),
            commit=state.commit,
            pins={part.path: part.commit for part in parts if part.path},
        )

    def give_back(self, workspace: Workspace) -> None:
        """Keeps the copy for the next trial. Only once no process of this trial runs any more.

        A copy that cannot be cleaned is thrown away: nothing is lost but time.
        """
        folder = workspace.folder
        leaving = folder.with_name(f".{folder.name}.kept")
        try:
            workspace.copy.clean()
            leaving.mkdir()
            records = workspace.copy.records
            row = {"version": _VERSION, "records": records}
            (leaving / _RECORD).write_text(json.dumps(row), encoding="utf-8")
            folder.rename(leaving / "tree")
            self._kept.mkdir(parents=True, exist_ok=True)
            total = sum(size for _, _, size, _, _ in records.values())
            leaving.rename(self._kept / f"{workspace.repository}@{total}@{uuid.uuid4().hex}")
            self._evict()
        except OSError:
            shutil.rmtree(leaving, ignore_errors=True)
            shutil.rmtree(folder, ignore_errors=True)

    # -- what belongs to a state --------------------------------------------------

    def _parts(self, repository: RepositoryEntry, state: State) -> list[Part]:
        overrides = dict(state.pins)
        parts: list[Part] = []
        waiting = [("", repository, state.commit, 0)]
        while waiting:
            path, entry, commit, depth = waiting.pop()
            mirror = mirror_of(self._root, entry)
            mirror.require(commit)
            try:
                entries = _tree(mirror.folder, mirror.url, commit)
            except UnsafeTreeError as error:
                raise WorkspaceRefused(f"{entry.name} at {commit[:10]}: {error}") from error
            parts.append(Part(path=path, mirror=mirror, commit=commit, entries=entries))
            for gitlink in entries:
                if gitlink.mode == GITLINK and gitlink.path in entry.pins:
                    if depth == DEEPEST_PIN:
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

    def _check(self, parts: list[Part], destination: Path) -> None:
        for part in parts:
            try:
                check_lengths(part.entries, destination / part.path)
            except UnsafeTreeError as error:
                raise WorkspaceRefused(f"{part.commit[:10]}: {error}") from error
        total = sum(entry.bytes for part in parts for entry in part.entries)
        if total > self._budget_bytes:
            raise WorkspaceRefused(
                f"the state has {total} bytes of files, more than the {self._budget_bytes} "
                "that this host keeps"
            )

    # -- kept copies ----------------------------------------------------------------

    def _take(self, repository: str, destination: Path) -> WorkingCopy | None:
        """The kept copy of the repository that was used last, moved to the destination; None without one.

        A rename is atomic: of two workers that want the same copy one finds it gone, and looks further.
        """
        coming = destination.with_name(f".{destination.name}.coming")
        for used in sorted(self._copies(), reverse=True):
            if not used.name.startswith(f"{repository}@"):
                continue
            with suppress(OSError):
                used.folder.rename(coming)
                record = _read_record(coming)
                if record is not None:
                    (coming / "tree").rename(destination)
                shutil.rmtree(coming)
                if record is not None:
                    return WorkingCopy(destination, record)
        return None

    def _copies(self) -> Iterator[Kept]:
        with suppress(FileNotFoundError):
            for folder in self._kept.iterdir():
                if folder.name.startswith(".trash-"):  # of a worker that was killed while evicting
                    shutil.rmtree(folder, ignore_errors=True)
                    continue
                with suppress(OSError, ValueError, IndexError):  # a name that is not ours
                    used_ns, size = (folder / _RECORD).stat().st_mtime_ns, int(folder.name.split("@")[1])
                    yield Kept(used_ns=used_ns, name=folder.name, bytes=size, folder=folder)

    def _evict(self) -> None:
        """Throws out what was longest not used, until the rest fits."""
        for kept in beyond(self._budget_bytes, self._copies()):
            trash = self._kept / f".trash-{uuid.uuid4().hex}"
            with suppress(OSError):
                kept.folder.rename(trash)
                shutil.rmtree(trash, ignore_errors=True)


def _brought(copy: WorkingCopy, parts: list[Part]) -> bool:
    """Whether a kept copy could be brought to the parts; else it is removed."""
    try:
        copy.bring_to(parts)
    except (OSError, GitError, MirrorError):
        shutil.rmtree(copy.folder)
        return False
    return True


def _read_record(folder: Path) -> dict[str, Record] | None:
    """None for a record that is damaged, or of another version of this program."""
    try:
        row = json.loads((folder / _RECORD).read_text(encoding="utf-8"))
        if row["version"] != _VERSION:
            return None
        return {
            path: (str(content), int(inode), int(size), int(modified), int(changed))
            for path, (content, inode, size, modified, changed) in row["records"].items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


@lru_cache(maxsize=8)
def _tree(folder: Path, url: str, commit: str) -> tuple[TreeEntry, ...]:
    """A commit's listing never changes, and a pin seldom moves from state to state: it is read once."""
    return Mirror(folder, url).tree(commit)


def _key(parts: list[Part]) -> str:
    """Equal exactly for equal files: a digest over path, mode and object of all of them."""
    digest = hashlib.sha256()
    for part in parts:
        for entry in part.entries:
            # A gitlink that is exported is in the digest by its files, one that is not by nothing.
            target = "" if entry.mode == GITLINK else entry.hash
            digest.update(f"{part.path}\0{entry.path}\0{entry.mode}\0{target}\0".encode())
    return digest.hexdigest()[:32]
