"""Undoes one commit on top of another without a work tree: a tree, or the paths in conflict.

Two ways to the same answer: `merge_tree` for git 2.38 and later, `apply_reverse`
for older ones, which gives up where a merge might still find a way.
"""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bisection.adapters.git_process import GitError, git_version, run_git

#: The author and committer of what firstbad writes, fixed so that equal content has an equal hash anywhere.
_IDENTITY = {
    f"GIT_{role}_{field}": value
    for role in ("AUTHOR", "COMMITTER")
    for field, value in (("NAME", "firstbad"), ("EMAIL", "firstbad@localhost"), ("DATE", "@1700000000 +0000"))
}

#: How `git apply` names a file that its patch does not fit.
_REFUSED = re.compile(r"^error: (?:patch failed: )?(.+?)(?::\d+|: .*)$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Revert:
    """What reverting gave: a tree if it is clean, the paths in conflict if it is not."""

    tree: str | None  #: 40 hex digits
    conflicts: tuple[str, ...] = ()

    @property
    def clean(self) -> bool:
        return self.tree is not None


def revert(folder: Path, commit: str, parent: str, onto: str) -> Revert:
    """The tree of ``onto`` with the change from ``parent`` to ``commit`` taken back."""
    if git_version() >= (2, 38):
        return merge_tree(folder, commit, parent, onto)
    return apply_reverse(folder, commit, parent, onto)


def merge_tree(folder: Path, commit: str, parent: str, onto: str) -> Revert:
    """A three-way merge with ``commit`` as the base, ``onto`` as ours and ``parent`` as theirs."""
    # merge-tree finds the base in the history (choosing it came with 2.40): so give it a history.
    base = write_commit(folder, f"{commit}^{{tree}}", (), "base")
    ours = write_commit(folder, f"{onto}^{{tree}}", (base,), "ours")
    theirs = write_commit(folder, f"{parent}^{{tree}}", (base,), "theirs")
    output = run_git(
        folder,
        "merge-tree",
        "--write-tree",
        "-z",
        "--name-only",
        "--no-messages",
        ours,
        theirs,
        accept=(0, 1),
    )
    tree, *paths = output.decode(errors="replace").rstrip("\0").split("\0")
    conflicts = tuple(sorted({path for path in paths if path}))
    return Revert(tree=None if conflicts else tree, conflicts=conflicts)


def apply_reverse(folder: Path, commit: str, parent: str, onto: str) -> Revert:
    """Applies the reversed patch to a temporary index; a patch that does not fit is a conflict."""
    patch = run_git(
        folder, "diff-tree", "-p", "--binary", "--full-index", "--no-renames", "--no-color", commit, parent
    )
    with tempfile.TemporaryDirectory(prefix="firstbad-index-") as scratch:
        index = {"GIT_INDEX_FILE": str(Path(scratch) / "index")}
        run_git(folder, "read-tree", onto, environment=index)
        if patch:
            try:
                run_git(
                    folder, "apply", "--cached", "--whitespace=nowarn", "-", stdin=patch, environment=index
                )
            except GitError as error:
                found = set(_REFUSED.findall(error.stderr))
                return Revert(tree=None, conflicts=tuple(sorted(found)) or ("(unknown)",))
        return Revert(tree=run_git(folder, "write-tree", environment=index).decode().strip())


def write_commit(folder: Path, tree: str, parents: tuple[str, ...], message: str) -> str:
    """The hash of a new commit; equal arguments give an equal hash on every host."""
    arguments = [word for parent in parents for word in ("-p", parent)]
    output = run_git(folder, "commit-tree", tree, *arguments, "-m", message, environment=_IDENTITY)
    return output.decode().strip()
