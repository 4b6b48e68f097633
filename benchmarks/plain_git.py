"""Real `git bisect run`, driven on a repository that is generated in the shape of a history.

The repository holds one commit a row, on one line or on two that part at a merge base; each commit touches
the paths of its row, and moves the gitlink where the row does. What a commit's run comes to is decided by
the caller: its list of bad commits is what the script of `git bisect run` looks up.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

#: Git without the settings of whoever runs this, and with a fixed identity.
_ENVIRONMENT = {
    "PATH": os.environ.get("PATH", os.defpath),
    "HOME": "/nonexistent",
    "LC_ALL": "C",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
}
_WHO = "somebody <somebody@example.org>"
#: Counts its runs; a commit is bad if and only if it is listed.
_SCRIPT = 'h=$(git rev-parse BISECT_HEAD); echo $h >> "$1"; ! grep -q $h "$2"'


class GeneratedRepository:
    """A bare repository made of rows. ``hashes[i]`` is the commit of row i."""

    def __init__(
        self, folder: Path, rows: Sequence[Mapping[str, Any]], *, base: int = 0, submodule: str = ""
    ) -> None:
        """The rows from ``base`` on are one line, those before it another one, that leads back to it.

        ``submodule`` is the path that holds a row's ``gitlink``.
        """
        self.folder = folder
        self._git("init", "--quiet", "--bare", "--initial-branch=on", str(folder), at=folder.parent)
        marks = folder / "marks"
        before_it: dict[int, int | None] = {n: n + 1 if n < base else n - 1 for n in range(len(rows))}
        before_it[base] = None
        order = sorted(range(len(rows)), key=lambda n: abs(n - base))
        stream = b"".join(
            _commit("back" if n < base else "on", n, rows[n], before_it[n], submodule) for n in order
        )
        self._git("fast-import", "--quiet", "--force", f"--export-marks={marks}", stdin=stream)
        by_mark = dict(line.split() for line in marks.read_text().splitlines())
        self.hashes = [by_mark[f":{number + 1}"] for number in range(len(rows))]

    def bisect(self, good: int, bad: int, looks_bad: Sequence[int], paths: Sequence[str]) -> tuple[int, int]:
        """Runs, and the row of the commit that git names, or -1 if it names none.

        ``looks_bad`` are the rows whose run fails. ``paths`` narrow git to commits that touch them.
        """
        told, listed = self.folder / "told", self.folder / "listed"
        told.write_text("")
        listed.write_text("".join(f"{self.hashes[row]}\n" for row in looks_bad))
        narrow = ["--", *paths] if paths else []
        try:
            ends = (self.hashes[bad], self.hashes[good])
            self._git("bisect", "start", "--no-checkout", "--first-parent", *ends, *narrow)
            done = self._git(
                "bisect", "run", "sh", "-c", _SCRIPT, "sh", str(told), str(listed), accept=range(256)
            )
            words = next((line for line in done.splitlines() if line.endswith("is the first bad commit")), "")
            named = self.hashes.index(words.split()[0]) if words else -1
        finally:
            self._git("bisect", "reset", accept=range(256))
        return len(told.read_text().splitlines()), named

    def _git(
        self,
        *arguments: str,
        at: Path | None = None,
        stdin: bytes = b"",
        accept: Sequence[int] | range = (0,),
    ) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=at or self.folder, input=stdin, capture_output=True, env=_ENVIRONMENT
        )
        if done.returncode not in accept:
            raise RuntimeError(f"git {arguments[0]} failed: {done.stderr.decode(errors='replace')}")
        return done.stdout.decode(errors="replace")


def _commit(branch: str, number: int, row: Mapping[str, Any], parent: int | None, submodule: str) -> bytes:
    """One commit of a fast-import stream. A touched path gets a content that no commit before had."""
    content = f"{number}\n"
    lines = [
        f"commit refs/heads/{branch}",
        f"mark :{number + 1}",
        f"committer {_WHO} {1_700_000_000 + number} +0000",
        "data 0",
    ]
    if parent is not None:
        lines.append(f"from :{parent + 1}")
    for path in row["paths"]:
        if path == submodule and row.get("gitlink"):
            lines.append(f"M 160000 {row['gitlink']} {_quoted(path)}")
        else:
            lines += [f"M 100644 inline {_quoted(path)}", f"data {len(content)}", content.rstrip("\n")]
    return ("\n".join(lines) + "\n\n").encode()


def _quoted(path: str) -> str:
    return '"' + path.replace("\\", "\\\\").replace('"', '\\"') + '"'
