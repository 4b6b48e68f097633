"""The files of a tree that decide an environment: what they hold, and a folder with nothing else.

An image is built from such a folder, so that what was not named cannot decide it unseen. Links are
kept as they are; the tree's export has made sure that none leaves it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from workers.requirement_lock import Unbuildable

_STEP = "reading what decides the environment"


def digests(tree: Path, paths: Iterable[str]) -> dict[str, str]:
    """What each file or link below the paths holds; a path that the tree lacks is in it as such.

    Raises Unbuildable where something cannot be read.
    """
    found: dict[str, str] = {}
    for path in sorted(set(paths)):
        place = tree / path
        if not place.is_symlink() and not place.exists():
            found[path] = "absent"
        for file in _files(place):
            found[str(file.relative_to(tree))] = _digest(file)
    return found


def copy_out(tree: Path, paths: Iterable[str], folder: Path) -> None:
    """Copies the paths into a folder that is there; those that the tree lacks are passed over."""
    for path in sorted(set(paths)):
        source, target = tree / path, folder / path
        if not source.is_symlink() and not source.exists():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir() and not source.is_symlink():
            shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
        else:
            shutil.copy2(source, target, follow_symlinks=False)


def _files(place: Path) -> Iterator[Path]:
    if place.is_dir() and not place.is_symlink():
        for name in sorted(os.listdir(place)):
            yield from _files(place / name)
    elif place.is_symlink() or place.exists():
        yield place


def _digest(file: Path) -> str:
    try:
        if file.is_symlink():
            return f"link {os.readlink(file)}"
        with file.open("rb") as opened:
            content = hashlib.file_digest(opened, "sha256").hexdigest()
        return f"{'program' if os.access(file, os.X_OK) else 'file'} {content}"
    except OSError as error:
        raise Unbuildable(_STEP, f"{file.name}: {error}") from error
