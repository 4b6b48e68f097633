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

import shutil
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from git import Repo, Tree

from bisection.adapters import line_reading, reverting, tree_export
from bisection.adapters.git_process import GitError, MirrorError, file_lock, git_environment, run_git
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

#: A first fetch of Megatron-LM takes minutes on a slow line; a hung one must not hold the lock for ever.
FETCH_SECONDS = 1800.0
#: A lock file or a launch script is kilobytes; what is larger is not read into memory.
READ_LIMIT_BYTES = 16 * 2**20
_Answer = TypeVar("_Answer")


class DamagedMirror(MirrorError):
    """This host's copy of the repository is broken, and could not be made anew."""

    problem = "mirror-damaged"


class Unreachable(MirrorError):
    """The repository could not be fetched."""

    problem = "repository-unreachable"


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


class Mirror:
    """The repository at ``url``, mirrored in ``folder``. Making the object does nothing."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = Path(folder).absolute()
        self.url = url

    # -- bringing it up to date -------------------------------------------------

    def fetch(self) -> None:
        """Brings branches and tags up to date; one process at a time. Raises Unreachable, DamagedMirror."""
        with self._locked():
            try:
                self._update()
            except GitError as error:
                if not error.shows_damage:
                    raise self._unreachable(error) from error
                self._make_anew(error)

    def reading(self, read: Callable[[], _Answer]) -> _Answer:
        """What ``read`` gives; if it meets a damaged mirror, that is made anew and read once more.

        Raises DamagedMirror if it cannot be made anew or is damaged still. What a forced push
        dropped is in no new mirror: a commit may be gone then.
        """
        seen = self._identity()
        try:
            return read()
        except GitError as error:
            if not error.shows_damage or seen is None:
                raise
            with self._locked():
                if self._identity() == seen:  # else another process has made it anew meanwhile
                    self._make_anew(error)
        try:
            return read()
        except GitError as error:
            if not error.shows_damage:
                raise
            raise self._damaged(error, "it was made anew, and is damaged again") from error

    def _update(self) -> None:
        self._make()
        self._fetch("--prune", "--force", "--", self.url, *_REFSPECS)
        self._point_head()

    def _make_anew(self, damage: GitError) -> None:
        """Replaces the mirror by a fresh one, which is made first: a failure leaves all as it was."""
        fresh = Mirror(self.folder.with_name(f".anew-{self.folder.name}"), self.url)
        aside = self.folder.with_name(f".damaged-{self.folder.name}")
        try:
            shutil.rmtree(fresh.folder, ignore_errors=True)
            fresh._update()
            with suppress(GitError):  # what only this mirror has: reverts, commits asked for by their hash
                fresh._fetch("--", str(self.folder), "refs/firstbad/*:refs/firstbad/*")
            shutil.rmtree(aside, ignore_errors=True)
            self.folder.rename(aside)
            fresh.folder.rename(self.folder)
        except GitError as error:
            if error.shows_damage:  # in a new folder: so it is the repository that is broken
                raise self._unreachable(error) from error
            raise self._damaged(damage, f"making it anew failed: {error}") from error
        except OSError as error:
            raise self._damaged(damage, f"making it anew failed: {error}") from error
        finally:
            shutil.rmtree(fresh.folder, ignore_errors=True)

    def _identity(self) -> tuple[int, int] | None:
        """Which folder the mirror is: another one after it was made anew; None if there is none."""
        try:
            facts = self.folder.stat()
        except OSError:
            return None
        return facts.st_dev, facts.st_ino

    def _unreachable(self, error: GitError) -> Unreachable:
        return Unreachable(
            f"{self.url} could not be fetched: check the repository's url, the network and the "
            f"worker's rights. git says: {error.stderr.strip()[-1000:]}"
        )

    def _damaged(self, damage: GitError, why: str) -> DamagedMirror:
        return DamagedMirror(
            f"this host's mirror of {self.url} is damaged, and {why}. The host is to blame, neither the "
            f"commit nor the request: check its disk, delete the folder {self.folder}, and it is fetched "
            f"anew. git says: {damage.stderr.strip()[-500:]}"
        )

    def require(self, commit: str) -> None:
        """Makes sure that a commit is here, fetching it by hash if no branch has it. Raises UnknownRef."""
        check_hash(commit)
        self.reading(lambda: self._require(commit))

    def _require(self, commit: str) -> None:
        if self.has(commit):
            return
        self.fetch()
        if self.has(commit):
            return
        with self._locked(), suppress(GitError):
            self._fetch("--", self.url, f"{commit}:refs/firstbad/fetched/{commit}")
        if not self.has(commit):
            raise UnknownRef(f"commit {commit} is not in {self.url}, not even when asked for by its hash")

    def has(self, commit: str) -> bool:
        """Whether the commit is in the mirror; nothing is fetched. Raises GitError if git meets damage."""
        check_hash(commit)
        if not (self.folder / "HEAD").exists():
            return False
        try:
            run_git(self.folder, "cat-file", "-e", f"{commit}^{{commit}}")
        except GitError as error:
            if error.shows_damage:
                raise
            return False
        return True

    def _locked(self) -> AbstractContextManager[None]:
        return file_lock(self.folder.with_name(self.folder.name + ".lock"))

    def _make(self) -> None:
        if not (self.folder / "HEAD").exists() or not (self.folder / "config").exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            run_git(self.folder, "init", "--quiet", "--bare", "--template=")
        # We hold the lock, so a lock file of git's is of a process that was killed.
        for stale in (*self.folder.glob("*.lock"), *(self.folder / "refs").rglob("*.lock")):
            stale.unlink(missing_ok=True)

    def _fetch(self, *arguments: str) -> None:
        run_git(
            self.folder,
            "fetch",
            "--quiet",
            "--no-tags",
            "--no-write-fetch-head",
            "--no-recurse-submodules",
            *arguments,
            timeout_seconds=FETCH_SECONDS,
        )

    def _point_head(self) -> None:
        """HEAD names the branch that it names over there, so that a request may say HEAD."""
        answer = run_git(self.folder, "ls-remote", "--symref", "--", self.url, "HEAD").decode(
            errors="replace"
        )
        first = answer.split("\n", 1)[0]
        if first.startswith("ref: refs/heads/"):
            run_git(self.folder, "symbolic-ref", "HEAD", first.split("\t")[0].removeprefix("ref: "))

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


_REFSPECS = ("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")


def _confine(repository: Repo, folder: Path) -> None:
    """GitPython's commands run with our environment too; what only the process has is overridden."""
    repository.git.update_environment(**git_environment(folder))
