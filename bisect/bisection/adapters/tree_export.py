"""Writes trees of a mirror into a folder, and refuses what could reach outside of it.

Commits come from anywhere. A name or a symbolic link that leaves the folder is
refused before anything outside is touched: files are created with O_EXCL and
O_NOFOLLOW, links come last, and every link is then resolved for real.
Attributes, filters and line endings are not applied: files are the blobs.
"""

from __future__ import annotations

import errno
import os
import re
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bisection.adapters.git_process import GitError, git_environment, run_git

_FILE, _PROGRAM, _LINK, _GITLINK = "100644", "100755", "120000", "160000"
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
#: Nearly every name, for which nothing else need be asked: no part begins or ends with a dot.
_ORDINARY = re.compile(rb"\w[\w+=-]*(?:\.[\w+=-]+)*(?:/\w[\w+=-]*(?:\.[\w+=-]+)*)*")
_LONGEST_PART = 255


class UnsafeTreeError(ValueError):
    """A tree holds a name or a link that must not, or cannot, be written to a disk."""


@dataclass(frozen=True, kw_only=True)
class TreeEntry:
    """One file, link or gitlink of a tree."""

    path: str
    mode: str
    hash: str
    bytes: int  #: 0 for a gitlink


def read_tree(folder: Path, commit: str, paths: Sequence[str] = ()) -> tuple[TreeEntry, ...]:
    """Everything below the paths (the whole tree if none are given) at a full hash."""
    output = run_git(folder, "ls-tree", "-r", "-z", "-l", "--full-tree", commit, "--", *paths)
    entries = []
    for row in output.split(b"\0"):
        if not row:
            continue
        header, name = row.split(b"\t", 1)
        mode, _, target, size = header.decode().split()
        if size == "BAD":  # git's word for an object that it cannot read
            raise GitError("ls-tree", f"missing object {target}, or it is corrupt, in {folder}")
        entries.append(
            TreeEntry(path=_checked(name), mode=mode, hash=target, bytes=int(size) if size != "-" else 0)
        )
    return tuple(entries)


def write_tree(folder: Path, entries: Sequence[TreeEntry], destination: Path) -> None:
    """Writes the entries below ``destination``, which must exist; gitlinks become empty folders.

    Raises UnsafeTreeError; what was written until then is the caller's to discard.
    """
    files = [entry for entry in entries if entry.mode in (_FILE, _PROGRAM, "100664")]
    links = [entry for entry in entries if entry.mode == _LINK]
    gitlinks = [entry for entry in entries if entry.mode == _GITLINK]
    made: set[str] = set()
    for entry in gitlinks:
        with _short_enough(entry):
            _make_folder(destination, entry.path, made)
    for entry, content in zip(files, contents(folder, [file.hash for file in files]), strict=True):
        with _short_enough(entry):
            _make_folder(destination, os.path.dirname(entry.path), made)
            _write_file(destination / entry.path, content, 0o755 if entry.mode == _PROGRAM else 0o644)
    for entry, content in zip(links, contents(folder, [link.hash for link in links]), strict=True):
        with _short_enough(entry):
            _make_folder(destination, os.path.dirname(entry.path), made)
            _write_link(destination / entry.path, entry.path, content)
    check_links(destination, links)


def check_lengths(entries: Sequence[TreeEntry], destination: Path) -> None:
    """Raises UnsafeTreeError for a path that has no room below ``destination``; nothing is written."""
    room = os.pathconf("/", "PC_PATH_MAX") - len(os.fsencode(destination)) - 2  # a slash, and C's final zero
    for entry in entries:
        if len(entry.path.encode()) > room:
            raise UnsafeTreeError(_too_long(entry))


@contextmanager
def _short_enough(entry: TreeEntry) -> Iterator[None]:
    """The file system's own limits, which differ, are the tree's fault and not the host's."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        raise UnsafeTreeError(_too_long(entry)) from error


def _too_long(entry: TreeEntry) -> str:
    kind = "the link" if entry.mode == _LINK else "the path"
    or_target = ", or what it points to," if entry.mode == _LINK else ""
    shown = entry.path if len(entry.path) <= 80 else f"{entry.path[:40]}...{entry.path[-30:]}"
    return f"{kind} {shown!r} ({len(entry.path.encode())} bytes){or_target} is too long for this disk"


def _checked(name: bytes) -> str:
    if len(name) <= _LONGEST_PART and _ORDINARY.fullmatch(name):
        return name.decode("ascii")
    try:
        path = name.decode()
    except UnicodeDecodeError as error:
        raise UnsafeTreeError(f"the name {name!r} is not UTF-8") from error
    if _CONTROL.search(path):
        raise UnsafeTreeError(f"the name {path!r} holds a control character")
    for part in path.split("/"):
        # git itself refuses these in its index; other names of .git are for other file systems.
        folded = part.lower().rstrip(". ")  # "." and ".." become empty
        if folded in ("", ".git", "git~1") or len(part.encode()) > _LONGEST_PART:
            raise UnsafeTreeError(f"the name {path!r} must not be written to a disk")
    return path


def _make_folder(destination: Path, path: str, made: set[str]) -> None:
    if path in made or not path:
        return
    try:
        (destination / path).mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise UnsafeTreeError(f"{path!r} is both a file and a folder") from error
    made.add(path)


def _write_file(path: Path, content: bytes, mode: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, mode)
    except FileExistsError as error:
        raise UnsafeTreeError(f"{path.name!r} occurs twice in its folder") from error
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def _write_link(path: Path, name: str, content: bytes) -> None:
    if not content or b"\0" in content or content.startswith(b"/"):
        raise UnsafeTreeError(f"the link {name!r} leads outside of the tree")
    try:
        os.symlink(content, os.fsencode(path))
    except (FileExistsError, FileNotFoundError, NotADirectoryError) as error:
        raise UnsafeTreeError(f"the link {name!r} is also a file or a folder") from error


def check_links(destination: Path, links: Sequence[TreeEntry]) -> None:
    """Resolves every link; raises UnsafeTreeError for one that leads outside.

    A target's spelling alone does not tell where other links take it.
    """
    root = os.path.realpath(destination)
    for entry in links:
        target = os.path.realpath(destination / entry.path)
        if target != root and not target.startswith(root + os.sep):
            raise UnsafeTreeError(f"the link {entry.path!r} leads outside of the tree")


def contents(folder: Path, hashes: Sequence[str]) -> Iterator[bytes]:
    """The contents of the objects in the given order, through one `git cat-file`."""
    if not hashes:
        return
    process = subprocess.Popen(
        ["git", "cat-file", "--batch", "--buffer"],
        cwd=folder,
        env=git_environment(folder),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    request, answer = process.stdin, process.stdout

    def ask() -> None:
        # In a thread of its own: git blocks on a full answer pipe while we would block on the request.
        try:
            request.write("".join(f"{name}\n" for name in hashes).encode())
            request.close()
        except (BrokenPipeError, ValueError):
            pass

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    try:
        for name in hashes:
            header = answer.readline().split()
            if len(header) != 3:
                raise GitError("cat-file", f"missing object {name}, or it is corrupt, in {folder}")
            size = int(header[2])
            content = answer.read(size + 1)[:-1]
            if len(content) != size:
                raise GitError("cat-file", f"object {name} ended early in {folder}: corrupt")
            yield content
    finally:
        process.kill()
        process.wait()
        asking.join()
        answer.close()
        if not request.closed:
            with suppress(BrokenPipeError):
                request.close()
