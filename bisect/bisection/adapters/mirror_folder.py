"""The folder of a mirror, and how it is kept: fetched under a lock, made anew where it is damaged.

What is read from it is `mirror`'s matter. An error names whose fault it was.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TypeVar

from bisection.adapters.git_process import GitError, MirrorError, file_lock, run_git
from bisection.adapters.ref_resolution import UnknownRef
from bisection.commits import check_hash

#: A first fetch of Megatron-LM takes minutes on a slow line; a hung one must not hold the lock for ever.
FETCH_SECONDS = 1800.0
_REFSPECS = ("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")
#: GitHub's names of the heads of pull requests; tens of thousands in a large repository.
_PULL_REQUESTS = "+refs/pull/*/head:refs/firstbad/pull/*"
_Answer = TypeVar("_Answer")


class DamagedMirror(MirrorError):
    """This host's copy of the repository is broken, and could not be made anew."""

    problem = "mirror-damaged"


class Unreachable(MirrorError):
    """The repository could not be fetched."""

    problem = "repository-unreachable"


class MirrorFolder:
    """The repository at ``url``, mirrored in ``folder``. Making the object does nothing."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = Path(folder).absolute()
        self.url = url

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
        fresh = MirrorFolder(self.folder.with_name(f".anew-{self.folder.name}"), self.url)
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
        """Makes sure that a commit is here: of a branch, by its hash, or of a pull request.

        Some servers give only what a ref names, hence the last. Raises UnknownRef.
        """
        check_hash(commit)
        self.reading(lambda: self._require(commit))

    def _require(self, commit: str) -> None:
        if self.has(commit):
            return
        self.fetch()
        if self.has(commit):
            return
        for refspec in (f"{commit}:refs/firstbad/fetched/{commit}", _PULL_REQUESTS):
            with self._locked(), suppress(GitError):
                self._fetch("--", self.url, refspec)
            if self.has(commit):
                return
        raise UnknownRef(
            f"commit {commit} is not in {self.url}, not even when asked for by its hash, nor as the head of "
            "a pull request"
        )

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
