"""A bare mirror of one repository: the only way from a ref to a commit, and from a commit to files.

One folder a repository and host, fetched under a lock, read by full hash. Never a
work tree, a shared index or `git submodule`. A mirror in which git meets broken files
is made anew once, under the lock, and the broken one put aside. GitPython is opened
and closed around single reads: it is not made for processes that live long.

Errors::

    MirrorError         git could not answer
    +- GitError         a command failed on this host: a broken mirror, a full disk, no git
    +- DamagedMirror    this host's fault: the mirror is broken and could not be made anew
    +- Unreachable      the repository could not be fetched; the operator's or the network's fault
    +- UnknownRef       the requester's fault: nothing of that name; says which names are near
    +- AmbiguousRef     the requester's fault: it names several commits; says which, and what to give
    +- BadRange         the requester's fault: good and bad do not span a range; says how to mend it
    +- MissingPath      the commit has no such file
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from git import Repo, Tree

from bisection.adapters import line_reading, reverting, tree_export
from bisection.adapters.git_process import GitError, MirrorError, git_environment, run_git
from bisection.adapters.mirror_folder import DamagedMirror, MirrorFolder, Unreachable
from bisection.adapters.range_reading import read_commits
from bisection.adapters.ref_resolution import AmbiguousRef, UnknownRef, resolve_ref
from bisection.adapters.reverting import Revert
from bisection.commits import Commit, CommitRange, check_hash

__all__ = [
    "AmbiguousRef",
    "BadRange",
    "DamagedMirror",
    "FileChange",
    "GitError",
    "Mirror",
    "MirrorError",
    "MissingPath",
    "Revert",
    "UnknownRef",
    "Unreachable",
]

#: A lock file or a launch script is kilobytes; what is larger is not read into memory.
READ_LIMIT_BYTES = 16 * 2**20


class BadRange(MirrorError):
    """Good and bad do not span a range."""

    problem = "bad-range"


class MissingPath(MirrorError):
    """The commit has no such file."""

    problem = "missing-path"


@dataclass(frozen=True, kw_only=True)
class FileChange:
    """Lines added and removed in one file; None where git sees no lines (a binary file)."""

    path: str
    added: int | None
    removed: int | None


class Mirror(MirrorFolder):
    """What a mirrored repository says: names and ranges, files and trees, and what a revert would give."""

    # -- names and ranges -------------------------------------------------------

    def resolve(self, ref: str) -> str:
        """The full hash of the commit that ``ref`` names here as it is. Raises UnknownRef, AmbiguousRef."""
        return self.reading(lambda: resolve_ref(self.folder, self.url, ref))

    def read_range(
        self,
        good: str,
        bad: str,
        relevant_paths: Sequence[str] = (),
        environment_paths: Sequence[str] = (),
    ) -> CommitRange:
        """The first-parent line from good to bad, both included. Full hashes. Raises BadRange."""
        check_hash(good)
        check_hash(bad)
        if good == bad:
            raise BadRange(f"good and bad are the same commit, {good[:10]}: there is nothing between them")
        return self.reading(lambda: self._read_range(good, bad, relevant_paths, environment_paths))

    def _read_range(
        self, good: str, bad: str, relevant_paths: Sequence[str], environment_paths: Sequence[str]
    ) -> CommitRange:
        if not self.is_ancestor(good, bad):
            raise BadRange(self._not_an_ancestor(good, bad))
        line = (
            run_git(self.folder, "rev-list", "--first-parent", "--reverse", f"{good}..{bad}").decode().split()
        )
        parents = line_reading.parents_of(self.folder, line[0])
        if parents[:1] != [good]:
            raise BadRange(
                f"good {good[:10]} is not on the first-parent line of bad {bad[:10]}: it came in "
                f"by the merge {line[0][:10]}. Give as good that merge, or its first parent "
                f"{parents[0][:10] if parents else '(none)'}, whichever is known to be good"
            )
        return CommitRange(
            commits=read_commits(self.folder, [good, *line], relevant_paths, environment_paths)
        )

    def read_path(
        self,
        start: str,
        end: str,
        relevant_paths: Sequence[str] = (),
        environment_paths: Sequence[str] = (),
    ) -> tuple[CommitRange, int]:
        """The steps between any two commits, and how many of them lead backwards. Raises BadRange.

        Back along first parents to where the two part (their merge base), then on along first parents.
        Every step but the base contains the base. From an ancestor no step leads backwards.

            start -> o -> base -> o -> end        two steps back
        """
        ends = check_hash(start), check_hash(end)
        if start == end:
            raise BadRange(f"{start[:10]} is both ends: there is nothing between them")
        found = self.reading(
            lambda: line_reading.read_path(self.folder, *ends, relevant_paths, environment_paths)
        )
        if found is None:
            raise BadRange(f"{start[:10]} and {end[:10]} have no common history")
        return CommitRange(commits=found[0]), found[1]

    def read_merge(
        self,
        merge: str,
        trunk: str,
        relevant_paths: Sequence[str] = (),
        environment_paths: Sequence[str] = (),
    ) -> CommitRange:
        """A merge as a line: ``trunk``, where the branch left, the branch, the merge itself.

        ``trunk`` is one of its two parents, the branch leads to the other and is followed along first
        parents. Only the two ends if it brings nothing.
        """
        ends = check_hash(merge), check_hash(trunk)
        return CommitRange(
            commits=self.reading(
                lambda: line_reading.read_merge(self.folder, *ends, relevant_paths, environment_paths)
            )
        )

    def read_back(
        self,
        commit: str,
        steps: int,
        relevant_paths: Sequence[str] = (),
        environment_paths: Sequence[str] = (),
    ) -> tuple[Commit, ...]:
        """A commit after so many before it, oldest first; fewer where history begins. First parents."""
        check_hash(commit)
        return self.reading(
            lambda: line_reading.read_back(self.folder, commit, steps, relevant_paths, environment_paths)
        )

    def gitlinks(self, commit: str, paths: Sequence[str]) -> dict[str, str]:
        """Those of the paths that are gitlinks at a full hash, and where they point."""
        if not paths:
            return {}
        wanted = set(paths)
        return {
            entry.path: entry.hash
            for entry in self.tree(commit, paths)
            if entry.mode == "160000" and entry.path in wanted
        }

    def is_ancestor(self, older: str, newer: str) -> bool:
        check_hash(older)
        check_hash(newer)
        # Of an ancestor and its descendant the ancestor is the only best merge base.
        return run_git(self.folder, "merge-base", older, newer, accept=(0, 1)).decode().strip() == older

    def _not_an_ancestor(self, good: str, bad: str) -> str:
        if self.is_ancestor(bad, good):
            return (
                f"good {good[:10]} comes after bad {bad[:10]}: swap them, or, if a fix is looked for, "
                "bisect for the commit that mended it with good and bad exchanged"
            )
        bases = run_git(self.folder, "merge-base", good, bad, accept=(0, 1)).decode().split()
        if not bases:
            return f"good {good[:10]} and bad {bad[:10]} have no common history"
        return (
            f"good {good[:10]} is not an ancestor of bad {bad[:10]}: they are on two branches since "
            f"{bases[0][:10]}. Give that merge base as good if it is known to be good; if not, good holds "
            "a fix that bad lacks"
        )

    # -- content ----------------------------------------------------------------

    def read_file(self, commit: str, path: str) -> bytes:
        """The content of a file at a full hash. Raises MissingPath, also for what is no plain file."""
        check_hash(commit)
        return self.reading(lambda: self._read_file(commit, path))

    def _read_file(self, commit: str, path: str) -> bytes:
        # By the tree, since GitPython cannot read every commit that git keeps.
        wanted = f"{commit}^{{tree}}"
        tree = bytes.fromhex(run_git(self.folder, "rev-parse", "--verify", wanted).decode())
        with Repo(self.folder) as repository:
            _confine(repository, self.folder)
            try:
                item = Tree(repository, tree, path="") / path
            except ValueError as error:
                raise GitError("cat-file", f"corrupt or missing object: {error}") from error
            except KeyError as error:
                raise MissingPath(f"{path} is not in the tree of {commit[:10]}") from error
            if item.type != "blob" or item.mode not in (0o100644, 0o100755, 0o100664):
                raise MissingPath(f"{path} is not a plain file in the tree of {commit[:10]}")
            if item.size > READ_LIMIT_BYTES:
                raise MissingPath(f"{path} has {item.size} bytes in {commit[:10]}: more than can be read")
            return bytes(item.data_stream.read())

    def has_path(self, commit: str, path: str) -> bool:
        """Whether a full hash has a file, link, gitlink or folder there."""
        wanted = ("ls-tree", "-z", "--full-tree", check_hash(commit), "--", path)
        return bool(self.reading(lambda: run_git(self.folder, *wanted)))

    def export(self, commit: str, paths: Sequence[str], destination: Path) -> None:
        """Writes the files below ``paths`` (none: all) into an existing folder. Raises UnsafeTreeError."""
        tree_export.write_tree(self.folder, self.tree(commit, paths), destination)

    def tree(self, commit: str, paths: Sequence[str] = ()) -> tuple[tree_export.TreeEntry, ...]:
        """Everything below the paths at a full hash, with sizes. Raises UnsafeTreeError."""
        check_hash(commit)
        return self.reading(lambda: tree_export.read_tree(self.folder, commit, paths))

    def diff_summary(self, parent: str, commit: str) -> tuple[FileChange, ...]:
        """What changed from parent to commit, file by file."""
        options = ("-r", "-z", "--numstat", "--no-renames", "--no-ext-diff")
        ends = check_hash(parent), check_hash(commit)
        output = self.reading(lambda: run_git(self.folder, "diff-tree", *options, *ends))
        changes = []
        for row in output.decode(errors="replace").split("\0")[:-1]:
            added, removed, path = row.split("\t", 2)
            changes.append(
                FileChange(
                    path=path,
                    added=None if added == "-" else int(added),
                    removed=None if removed == "-" else int(removed),
                )
            )
        return tuple(changes)

    # -- the way back -----------------------------------------------------------

    def revert(self, commit: str, onto: str) -> Revert:
        """The tree of ``onto`` without the commit's change (against its first parent)."""
        check_hash(commit)
        parents = self.reading(lambda: line_reading.parents_of(self.folder, commit))
        if not parents:
            raise BadRange(f"{commit[:10]} is the first commit of all: there is nothing to go back to")
        return reverting.revert(self.folder, commit, parents[0], check_hash(onto))

    def commit_tree(self, tree: str, parent: str, message: str) -> str:
        """A commit of a tree (a revert's), kept by a ref; equal arguments give an equal hash on any host."""
        written = reverting.write_commit(self.folder, check_hash(tree), (check_hash(parent),), message)
        run_git(self.folder, "update-ref", f"refs/firstbad/written/{written}", written)
        return written


def _confine(repository: Repo, folder: Path) -> None:
    """GitPython's commands run with our environment too; what only the process has is overridden."""
    repository.git.update_environment(**git_environment(folder))
