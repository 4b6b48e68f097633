"""Writes a plan as a real git repository.

git is told nothing by this machine: no configuration of the user or the system,
no hooks, fixed authors and times. The same plan gives the same hashes anywhere.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from firstbad.demo.scenarios import DemoPlan

BRANCH = "main"
_AUTHORS = ("Mara Lindqvist", "Tomasz Wolny", "Priya Raman", "Jonas Okafor", "Yuki Tanabe")
_BEGINNING = datetime(2026, 3, 2, 9, 14, tzinfo=UTC)
_BETWEEN_COMMITS = timedelta(hours=7, minutes=23)
_FIRST_MESSAGE = "Train a small Qwen3-VL-MoE every night\n"


@dataclass(frozen=True, kw_only=True)
class Nightly:
    """The written repository. Hashes are of 40 digits, ``commits`` those of the plan, oldest first."""

    folder: Path
    plan: DemoPlan
    root: str  #: the first commit, before those of the plan
    commits: tuple[str, ...]

    @property
    def good(self) -> str:
        return self.commits[self.plan.good]

    @property
    def bad(self) -> str:
        return self.commits[self.plan.bad]

    @property
    def culprit(self) -> str | None:
        return None if self.plan.culprit is None else self.commits[self.plan.culprit]


def generate(plan: DemoPlan, folder: Path) -> Nightly:
    """Make the repository in a folder that is empty or not there yet.

    Raises ValueError if the folder holds something, or if git is not installed.
    """
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty: name another folder, or remove it first")
    folder.mkdir(parents=True, exist_ok=True)
    _git(folder, "init", "--quiet", f"--initial-branch={BRANCH}", "--template=", "--object-format=sha1")
    before: dict[str, str] = {}
    hashes = []
    messages = [_FIRST_MESSAGE, *(_message(edit.subject, edit.why) for edit in plan.commits)]
    for number, (tree, message) in enumerate(zip(plan.trees(), messages, strict=True)):
        _write(folder, before, tree)
        _git(folder, "add", "--all")
        _git(folder, "commit", "--quiet", "--message", message, number=number)
        hashes.append(_git(folder, "rev-parse", "HEAD").strip())
        before = tree
    return Nightly(folder=folder, plan=plan, root=hashes[0], commits=tuple(hashes[1:]))


def _message(subject: str, why: str) -> str:
    return f"{subject}\n\n{why}\n" if why else f"{subject}\n"


def _write(folder: Path, before: dict[str, str], after: dict[str, str]) -> None:
    for path in before.keys() - after.keys():
        (folder / path).unlink()
    for path, text in after.items():
        if before.get(path) != text:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8", newline="\n")


def _git(folder: Path, *arguments: str, number: int = 0) -> str:
    author = _AUTHORS[number * 7 % len(_AUTHORS)]
    moment = (_BEGINNING + number * _BETWEEN_COMMITS).isoformat()
    mail = f"{author.split()[0].lower()}@nightly.example"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment |= {
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_SYSTEM": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": author,
        "GIT_AUTHOR_EMAIL": mail,
        "GIT_AUTHOR_DATE": moment,
        "GIT_COMMITTER_NAME": author,
        "GIT_COMMITTER_EMAIL": mail,
        "GIT_COMMITTER_DATE": moment,
    }
    settings = (
        "core.hooksPath=/dev/null",
        "core.autocrlf=false",
        "core.fileMode=false",
        "commit.gpgSign=false",
        "gc.auto=0",
    )
    options = [part for setting in settings for part in ("-c", setting)]
    try:
        finished = subprocess.run(
            ["git", *options, *arguments],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        raise ValueError("git is not installed: install it, e.g. `apt-get install git`") from None
    if finished.returncode:
        raise RuntimeError(f"git {arguments[0]} failed in {folder}: {finished.stderr.strip()}")
    return finished.stdout
