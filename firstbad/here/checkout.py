"""The repository that somebody stands in: its folders, its commits by name, its submodules.

Read only: neither its index nor its work tree nor its refs are touched.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from bisection.adapters.git_process import GitError, run_git
from bisection.adapters.ref_resolution import resolve_ref


class NoRepository(ValueError):
    """There is nothing here that could be bisected."""


@dataclass(frozen=True, kw_only=True)
class Checkout:
    """A work tree of a git repository."""

    top: Path
    git: Path  #: of this work tree: where its HEAD is
    common: Path  #: of the repository, shared by all its work trees
    inside: str  #: where one stands, below ``top``; "." at it

    @classmethod
    def at(cls, folder: Path) -> Checkout:
        """Raises NoRepository, GitError."""
        folder = folder.resolve()
        for top in (folder, *folder.parents):
            git = git_folder(top)
            if git is not None:
                told = run_git(git, "rev-parse", "--git-common-dir").decode().strip()
                common = (git / told).resolve()
                if (common / "shallow").exists():
                    raise NoRepository(
                        f"{top} is a shallow clone, whose older commits are not here: "
                        "`git fetch --unshallow` brings them"
                    )
                return cls(top=top, git=git, common=common, inside=str(folder.relative_to(top)))
        raise NoRepository(f"{folder} is in no work tree of a git repository: change into one")

    @property
    def name(self) -> str:
        """A name that the catalogue takes."""
        return _name(self.top.name)

    @property
    def key(self) -> str:
        """Equal for all work trees of one repository, and for no other."""
        return f"{self.name}-{hashlib.sha256(os.fsencode(self.common)).hexdigest()[:10]}"

    def commit(self, ref: str) -> str:
        """The full hash. Raises UnknownRef, AmbiguousRef."""
        return resolve_ref(self.git, str(self.top), ref)

    def holds(self, commit: str, path: str) -> bool:
        """Whether a file or folder is in the commit."""
        try:
            run_git(self.git, "cat-file", "-e", f"{commit}:{path}")
        except GitError:
            return False
        return True

    def submodules(self) -> dict[str, Path]:
        """Path of each submodule that is checked out here, and the folder of its repository."""
        file = self.top / ".gitmodules"
        if not file.is_file():
            return {}
        try:
            rows = run_git(self.git, "config", "--file", str(file), "--get-regexp", r"^submodule\..*\.path$")
        except GitError:
            return {}
        paths = [row.partition(" ")[2] for row in rows.decode(errors="replace").splitlines()]
        found = {path: git_folder(self.top / path) for path in paths}
        return {path: git for path, git in found.items() if git is not None}


def git_folder(top: Path) -> Path | None:
    """The git directory of a work tree's top folder; None if it is none."""
    entry = top / ".git"
    if entry.is_dir():
        return entry if (entry / "HEAD").is_file() else None
    if entry.is_file():
        told = entry.read_text(encoding="utf-8", errors="replace").removeprefix("gitdir:").strip()
        folder = (top / told).resolve()
        return folder if (folder / "HEAD").is_file() else None
    return None


def _name(words: str) -> str:
    return (re.sub(r"[^a-z0-9._-]+", "-", words.lower()).lstrip("._-") or "repository")[:50]


def pin_name(repository: str, path: str) -> str:
    """The catalogue's name of a submodule."""
    digest = hashlib.sha256(path.encode()).hexdigest()[:6]
    return f"{_name(f'{repository}-{Path(path).name}')[:50]}-{digest}"
