"""Reads the commits between two hashes, with the keys that say which of them are one state.

A handful of git processes whatever the length of the range: one for the changed
files of all commits, one for their headers, one for the trees. Hashes only; no ref
and no user's word comes here. Headers are read leniently: git keeps commits with no
date, an impossible one or an unknown encoding, and none of these may spoil a range.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from bisection.adapters.git_process import GitError, run_git
from bisection.adapters.tree_export import contents
from bisection.commits import Commit

_GITLINK = "160000"
_NO_OBJECT = "-"
_NO_FILE = "000000"  #: as git's raw diff says of the side that lacks the file


@dataclass(frozen=True, kw_only=True)
class _Header:
    """What git says of one commit. ``changes``: (path, mode after, object after)."""

    hash: str
    parents: tuple[str, ...]
    author: str
    committed_at: str
    subject: str
    changes: tuple[tuple[str, str, str], ...]


def read_commits(
    folder: Path, hashes: Sequence[str], relevant_paths: Sequence[str], environment_paths: Sequence[str]
) -> tuple[Commit, ...]:
    """The commits of one first-parent line, given oldest first without a gap.

    ``relevant_paths`` are files or folders of the tree; none means the whole tree.
    Gitlinks and ``environment_paths`` always count: they can change the repro too.
    """
    relevant = [path.rstrip("/") for path in relevant_paths]
    locks = [path.rstrip("/") for path in environment_paths]
    names = [*relevant, *locks]
    objects = _objects(folder, hashes, ["", *names])
    pins, modes = _first_modes(folder, hashes[0], names)
    commits = []
    for position, (header, (tree, *found)) in enumerate(zip(_headers(folder, hashes), objects, strict=True)):
        if position > 0:
            pins = _moved(pins, header.changes)
            modes.update((path, mode) for path, mode, _ in header.changes if path in modes)
        for name, target in zip(names, found, strict=True):
            if target == _NO_OBJECT and modes[name] not in (_NO_FILE, _GITLINK):
                raise GitError("cat-file", f"missing object {header.hash}:{name}, or it is corrupt")
        # A file's mode is in its folder's object, not in its own: chmod, or a link to the same bytes.
        states = [f"{modes[name]} {target}" for name, target in zip(names, found, strict=True)]
        chosen, lock = states[: len(relevant)], states[len(relevant) :]
        if relevant:
            tree_key = _digest(*chosen, *lock, *(f"{path}@{pin}" for path, pin in sorted(pins.items())))
        else:
            tree_key = _digest(tree)
        commits.append(
            Commit(
                hash=header.hash,
                parents=header.parents,
                subject=header.subject,
                author=header.author,
                committed_at=header.committed_at,
                paths=tuple(path for path, _, _ in header.changes),
                pins=pins,
                tree_key=tree_key,
                environment_key=_digest(*lock) if locks else "",
            )
        )
    return tuple(commits)


def _moved(pins: dict[str, str], changes: Sequence[tuple[str, str, str]]) -> dict[str, str]:
    """The gitlinks after the changes; the same object where none moved, since most commits move none."""
    touched = [change for change in changes if change[1] == _GITLINK or change[0] in pins]
    if not touched:
        return pins
    after = dict(pins)
    for path, mode, target in touched:
        if mode == _GITLINK:
            after[path] = target
        else:
            after.pop(path, None)
    return after


def _headers(folder: Path, hashes: Sequence[str]) -> Iterator[_Header]:
    output = run_git(
        folder,
        "log",
        "--no-walk=unsorted",
        "--stdin",
        "--diff-merges=first-parent",
        "--root",
        "--raw",
        "-z",
        "--no-abbrev",
        "--no-renames",
        "--no-ext-diff",
        "--no-color",
        "--no-show-signature",
        "--encoding=none",
        "--format=%H%x00%P",
        stdin="".join(f"{name}\n" for name in hashes).encode(),
    )
    tokens = output.decode(errors="replace").split("\0")
    at = 0
    for expected, content in zip(hashes, contents(folder, hashes), strict=True):
        name, parents = tokens[at : at + 2]
        assert name == expected, "git's log left the given order"
        at += 2
        changes = []
        # A raw line starts with a colon, the next commit with a digit of its hash.
        while at < len(tokens) and tokens[at].lstrip("\n").startswith(":"):
            _, mode, _, target, _ = tokens[at].lstrip("\n").split(" ")
            changes.append((tokens[at + 1], mode, target))
            at += 2
        fields, _, message = content.partition(b"\n\n")
        author = _field(fields, b"author")
        yield _Header(
            hash=name,
            parents=tuple(parents.split()),
            author=_text(author.partition(b"<")[0].strip(), fields),
            committed_at=_moment(_field(fields, b"committer")),
            subject=_text(_subject(message), fields),
            changes=tuple(changes),
        )


def _field(fields: bytes, name: bytes) -> bytes:
    """The first header of that name in a commit; empty if it has none."""
    found = re.search(rb"^" + name + rb" (.*)$", fields, re.MULTILINE)
    return found[1] if found else b""


def _moment(committer: bytes) -> str:
    """The date of a committer's line in ISO 8601, UTC; empty where it has none that a calendar knows."""
    found = re.fullmatch(rb".*> *([0-9]{1,12}) [+-][0-9]+ *", committer)
    if not found:
        return ""
    try:
        return datetime.fromtimestamp(int(found[1]), UTC).isoformat()
    except (ValueError, OverflowError, OSError):
        return ""


def _subject(message: bytes) -> bytes:
    """The first paragraph on one line, as git's %s."""
    lines = [line.strip() for line in message.lstrip().split(b"\n")]
    return b" ".join(lines[: lines.index(b"")] if b"" in lines else lines)


def _text(raw: bytes, fields: bytes) -> str:
    """The bytes of a name or a subject in the commit's own encoding; what cannot be read is U+FFFD."""
    encoding = _field(fields, b"encoding").decode(errors="replace") or "utf-8"
    try:
        # What does not hold ASCII as ASCII (UTF-16) cannot be what a commit is written in.
        text = raw.decode(encoding if "a\n".encode(encoding) == b"a\n" else "utf-8")
    except (LookupError, ValueError):
        text = raw.decode(errors="replace")
    # Lone surrogates (of utf-7) and NUL could not be stored.
    return text.encode(errors="replace").decode().replace("\0", "\ufffd")


def _objects(folder: Path, hashes: Sequence[str], paths: Sequence[str]) -> Iterator[list[str]]:
    """For every commit the object at each path ("" is the whole tree); `_NO_OBJECT` where there is none."""
    wanted = [f"{name}:{path}\n" for name in hashes for path in paths]
    # Answers are one line each; a path in them could hold anything, so it is not asked back.
    output = run_git(
        folder,
        "cat-file",
        "--batch-check=%(objectname)",
        "--buffer",
        stdin="".join(wanted).encode(),
    )
    lines = output.decode(errors="replace").split("\n")[:-1]
    assert len(lines) == len(wanted), "git answered another number of objects than was asked"
    found = [line if len(line) == 40 and " " not in line else _NO_OBJECT for line in lines]
    for start in range(0, len(found), len(paths)):
        yield found[start : start + len(paths)]


def _first_modes(folder: Path, commit: str, names: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """The gitlinks of a commit, and the mode of each name that is a file ("000000": it is none)."""
    output = run_git(folder, "ls-tree", "-r", "-z", "--full-tree", commit)
    pins = {}
    modes = dict.fromkeys(names, _NO_FILE)
    for row in output.decode(errors="replace").split("\0")[:-1]:
        header, path = row.split("\t", 1)
        mode, _, target = header.split(" ")
        if mode == _GITLINK:
            pins[path] = target
        if path in modes:
            modes[path] = mode
    return pins, modes


def _digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
