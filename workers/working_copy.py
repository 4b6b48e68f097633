"""A working copy: the files of one state on a disk, and the record that makes the next state a difference.

The record holds, for every file, which content it was written with and its inode's
facts right after. A job may do what it likes to its copy: whatever no longer has the
facts of the record is removed and written again, whatever was added is removed. The
time of the last inode change is among the facts, and no program can set it, so a file that
was changed and dressed up again is found too. Nothing here knows repositories or disks' budgets.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bisection.adapters.mirror import Mirror
from bisection.adapters.tree_export import TreeEntry, UnsafeTreeError, check_links, write_tree

GITLINK = "160000"
_LINK = "120000"


@dataclass(frozen=True, kw_only=True)
class Part:
    """One tree of a state: where it goes, and whence it comes."""

    path: str  #: "" for the repository itself
    mirror: Mirror
    commit: str
    entries: tuple[TreeEntry, ...]

    def place(self, entry: TreeEntry) -> str:
        """Where an entry of this part lies in the whole working copy."""
        return f"{self.path}/{entry.path}" if self.path else entry.path


#: What a file was written with (mode and object), then inode, size, and nanoseconds of the last change of its
#: content and of its inode.
Record = tuple[str, int, int, int, int]


class WorkingCopy:
    """The files below ``folder``, and their records by path."""

    def __init__(self, folder: Path, records: Mapping[str, Record]) -> None:
        self.folder = folder
        self.records = dict(records)

    def bring_to(self, parts: Sequence[Part]) -> None:
        """Makes the files those of the parts; only what differs is written.

        Raises UnsafeTreeError for a tree that cannot be written safely, and MirrorError,
        GitError or OSError where the host is at fault. The copy is of no use after an error.
        """
        wanted = _wanted(parts)
        folders = _folders(parts, wanted)
        self.folder.mkdir(exist_ok=True)
        kept = self._keep(wanted, folders)
        for part in parts:
            _write_missing(part, self.folder / part.path, kept)
        for part in parts:
            check_links(self.folder / part.path, [entry for entry in part.entries if entry.mode == _LINK])
        self.records = {
            path: kept[path] if path in kept else _record(content, os.lstat(self.folder / path))
            for path, content in wanted.items()
        }

    def clean(self) -> None:
        """Removes what a job added or changed. Raises OSError where that is not possible."""
        written = {path: record[0] for path, record in self.records.items()}
        self.records = self._keep(written, _folders_above(written))

    def _keep(self, wanted: Mapping[str, str], folders: set[str]) -> dict[str, Record]:
        """Removes all but the files that are as wanted and as recorded, and gives their records."""
        kept: dict[str, Record] = {}
        root = str(self.folder)
        waiting = [""]
        while waiting:
            here = waiting.pop()
            before = f"{here}/" if here else ""
            with os.scandir(f"{root}/{here}") as entries:
                for entry in entries:
                    path = before + entry.name
                    facts = entry.stat(follow_symlinks=False)
                    if stat.S_ISDIR(facts.st_mode):
                        if path not in folders:
                            shutil.rmtree(entry.path)
                            continue
                        if facts.st_mode & 0o700 != 0o700:
                            os.chmod(entry.path, 0o755)
                        waiting.append(path)
                        continue
                    record, content = self.records.get(path), wanted.get(path)
                    if record is not None and content is not None and record == _record(content, facts):
                        kept[path] = record
                    else:
                        os.unlink(entry.path)
        return kept


def _record(content: str, facts: os.stat_result) -> Record:
    return (content, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)


def _wanted(parts: Sequence[Part]) -> dict[str, str]:
    """The content of every file and link by path. Raises UnsafeTreeError for a path that occurs twice."""
    wanted: dict[str, str] = {}
    for part in parts:
        for entry in part.entries:
            if entry.mode == GITLINK:
                continue
            path = part.place(entry)
            if path in wanted:
                raise UnsafeTreeError(f"{path!r} occurs twice in its folder")
            wanted[path] = f"{entry.mode} {entry.hash}"
    return wanted


def _folders(parts: Sequence[Part], wanted: Mapping[str, str]) -> set[str]:
    """Every folder of the copy. Raises UnsafeTreeError for one that is a file or a link as well.

    A pinned tree therefore goes where its gitlink lies, never through a link.
    """
    folders: set[str] = set()
    for part in parts:
        gitlinks = {entry.path for entry in part.entries if entry.mode == GITLINK}
        for inside in gitlinks & _folders_above(entry.path for entry in part.entries):
            raise UnsafeTreeError(f"{inside!r} is a gitlink and has files of its own")
        folders |= _folders_above(part.place(entry) for entry in part.entries)
        folders.update(f"{part.path}/{path}" if part.path else path for path in gitlinks)
    for folder in folders & wanted.keys():
        raise UnsafeTreeError(f"{folder!r} is both a file and a folder")
    return folders


def _folders_above(paths: Iterable[str]) -> set[str]:
    """Every folder that one of the paths lies in, at whatever depth; each is climbed once."""
    found: set[str] = set()
    for path in paths:
        here = path.rpartition("/")[0]
        while here and here not in found:
            found.add(here)
            here = here.rpartition("/")[0]
    return found


def _write_missing(part: Part, folder: Path, kept: Mapping[str, Record]) -> None:
    missing = [entry for entry in part.entries if part.place(entry) not in kept]
    begun = False

    def write() -> None:
        nonlocal begun
        if begun:  # the mirror was made anew while it was read: from the start again
            for entry in missing:
                if entry.mode != GITLINK:
                    (folder / entry.path).unlink(missing_ok=True)
        begun = True
        write_tree(part.mirror.folder, missing, folder)

    part.mirror.reading(write)
