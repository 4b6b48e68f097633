"""A real git repository that a test writes commit by commit."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


class RepositoryScene:
    """A working repository with fixed names and dates, so that hashes repeat from run to run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self._clock = 1_700_000_000
        self.git("init", "-q", "-b", "main")

    @property
    def url(self) -> str:
        return f"file://{self.folder}"

    def git(self, *arguments: str, stdin: bytes | None = None) -> str:
        self._clock += 60
        moment = f"{self._clock} +0200"
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_AUTHOR_NAME": "Ada",
            "GIT_AUTHOR_EMAIL": "ada@example.org",
            "GIT_AUTHOR_DATE": moment,
            "GIT_COMMITTER_NAME": "Ada",
            "GIT_COMMITTER_EMAIL": "ada@example.org",
            "GIT_COMMITTER_DATE": moment,
        }
        done = subprocess.run(
            ["git", *arguments],
            cwd=self.folder,
            env=environment,
            input=stdin,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, f"git {arguments} failed: {done.stderr.decode(errors='replace')}"
        return done.stdout.decode().strip()

    def write(self, path: str, content: str | bytes, *, executable: bool = False) -> None:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        if executable:
            file.chmod(0o755)

    def commit(self, subject: str, **files: str | bytes) -> str:
        """Commits everything in the folder, after writing ``files`` (a__py is a.py, a___b is a/b)."""
        for name, content in files.items():
            self.write(name.replace("___", "/").replace("__", "."), content)
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "--allow-empty-message", "-m", subject)
        return self.head

    def pin(self, path: str, commit: str) -> None:
        """Stages a gitlink without `git submodule`; commit it with `commit_index`."""
        self.git("update-index", "--add", "--cacheinfo", f"160000,{commit},{path}")

    def commit_index(self, subject: str) -> str:
        self.git("commit", "-q", "--allow-empty", "--allow-empty-message", "-m", subject)
        return self.head

    def commit_raw_tree(self, subject: str, tree: bytes) -> str:
        """A commit of any tree at all, such as git's own commands refuse to make."""
        made = self.git("hash-object", "-w", "-t", "tree", "--literally", "--stdin", stdin=tree)
        commit = self.git("commit-tree", made, "-p", self.head, "-m", subject)
        self.git("update-ref", "refs/heads/odd", commit)
        return commit

    def blob(self, content: bytes) -> str:
        return self.git("hash-object", "-w", "--stdin", stdin=content)

    @property
    def head(self) -> str:
        return self.git("rev-parse", "HEAD")
