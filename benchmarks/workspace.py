"""What the files of the next state cost, beside `git worktree` with submodules and beside a fresh clone.

    python benchmarks/workspace.py --history FOLDER --states 8 --json

FOLDER holds `megatron_bridge.jsonl` and `megatron_lm.jsonl` (see docs/how-to/develop.md). Two
repositories are generated from them: at first every path that a commit of theirs ever touched, with text
of a random length, then all their commits by the paths that they touched, each of which changes a tenth of
each file; the submodule moves as it did.
Then each of the last states is prepared in three ways, one after the other, and timed: as a trial's
workspace (the copy that the trial before gave back is brought to the state, and given back again), by
`git worktree add` and `git submodule update --init`, and by `git clone` and the same. At last 8
processes prepare all states at once, and every file is compared with git's object.

Keys of the JSON: files, states, first_seconds (the first workspace of a host), next_seconds,
worktree_seconds, clone_seconds (medians), versus_worktree and versus_clone (medians of the ratios, state
by state: how many times cheaper), workers, conflicts (of the workspaces of the 8, those that failed or
held a wrong file). Clones are of a folder on the same disk: over a network they cost more.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from bisection.adapters.catalogue import Catalogue
from bisection.commits import State
from workers.workspaces import Workspaces, mirror_of

SUBMODULE = "3rdparty/Megatron-LM"
WORKERS = 8
_STATES_A_WORKER = 3
MEAN_FILE_BYTES = 8_000
_WORDS = ("tensor", "expert", "router", "vision", "decoder", "gradient", "layout", "attention")


@dataclass(frozen=True, kw_only=True)
class Change:
    """One commit of a history: the paths that it touched, and the pin after it, if it has one."""

    hash: str
    paths: tuple[str, ...]
    pin: str | None


def read_changes(file: Path) -> list[Change]:
    rows = (json.loads(line) for line in file.read_text().splitlines())
    return [Change(hash=row["sha"], paths=tuple(row["paths"]), pin=row.get("gitlink")) for row in rows]


class Generated:
    """A repository in the shape of a history, written through `git fast-import`."""

    def __init__(self, folder: Path, changes: Sequence[Change], seed: int) -> None:
        self.folder = folder
        self._random = random.Random(seed)
        self.paths = _possible({path for change in changes for path in change.paths})
        self._changes = changes
        self._contents: dict[str, bytes] = {}

    def write(self, pins: Callable[[str | None], str | None]) -> list[str]:
        """Writes it and gives its hashes, oldest first: the first state, then one for each change.

        ``pins`` maps a history's pin to a written commit.
        """
        subprocess.run(["git", "init", "-q", "-b", "main", str(self.folder)], check=True)
        importing = subprocess.Popen(
            ["git", "fast-import", "--quiet"], cwd=self.folder, stdin=subprocess.PIPE
        )
        assert importing.stdin is not None
        steps = [(sorted(self.paths), self._changes[0].pin)]
        steps += [(sorted(self.paths.intersection(change.paths)), change.pin) for change in self._changes]
        for number, (paths, pin) in enumerate(steps):
            rows = [
                b"commit refs/heads/main\n",
                f"committer A <a@example.org> {1_700_000_000 + number} +0000\n".encode(),
                b"data 1\nx\n",
            ]
            for path in paths:
                content = self._contents[path] = self._changed(self._contents.get(path))
                rows += [
                    f"M 100644 inline {json.dumps(path)}\ndata {len(content)}\n".encode(),
                    content,
                    b"\n",
                ]
            pinned = pins(pin)
            if pinned:
                rows.append(f"M 160000 {pinned} {SUBMODULE}\n".encode())
                modules = f'[submodule "core"]\n\tpath = {SUBMODULE}\n\turl = ../core\n'.encode()
                rows += [f"M 100644 inline .gitmodules\ndata {len(modules)}\n".encode(), modules, b"\n"]
            importing.stdin.write(b"".join(rows))
        importing.stdin.close()
        if importing.wait():
            raise SystemExit("git fast-import failed")
        git(self.folder, "repack", "-q", "-a", "-d")
        return git(self.folder, "rev-list", "--reverse", "main").split()

    def _changed(self, content: bytes | None) -> bytes:
        """A new file, or an old one of which a tenth is written anew."""
        if content is None:
            return self._text(int(self._random.expovariate(1 / MEAN_FILE_BYTES)) + 1)
        length = len(content) // 10 + 1
        at = self._random.randrange(len(content))
        return content[:at] + self._text(length) + content[at + length :]

    def _text(self, length: int) -> bytes:
        return " ".join(self._random.choices(_WORDS, k=length // 8 + 1)).encode()[:length]


def _possible(paths: set[str]) -> set[str]:
    """Without the paths that were a file at one time and a folder at another."""
    folders = {path.rsplit("/", count)[0] for path in paths for count in range(1, path.count("/") + 1)}
    return {path for path in paths if path not in folders and not path.startswith(SUBMODULE)} - {
        ".gitmodules"
    }


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "protocol.file.allow=always", *arguments]
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def seconds_of(action: Callable[[], None]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


class Scene:
    """The two repositories, a host that has mirrored them, and a plain clone beside it."""

    def __init__(self, folder: Path, history: Path, states: int, seed: int) -> None:
        self.folder = folder
        changes = read_changes(history / "megatron_lm.jsonl")
        core = Generated(folder / "core", changes, seed)
        written = core.write(lambda _: None)
        moves = {change.hash: commit for change, commit in zip(changes, written[1:], strict=True)}

        def pinned(pin: str | None) -> str | None:
            # A commit of a branch, or of before the history's begin, is told by the first one of all.
            return moves.get(pin, written[0]) if pin else None

        outer = Generated(folder / "outer", read_changes(history / "megatron_bridge.jsonl"), seed + 1)
        self.commits = outer.write(pinned)[-states:]
        self.files = len(core.paths) + len(outer.paths) + 1
        rows = {"core": {}, "outer": {"pins": {SUBMODULE: "core"}}}
        (folder / "catalogue" / "repositories").mkdir(parents=True)
        for name, fields in rows.items():
            row = {"name": name, "url": f"file://{folder / name}", **fields}
            (folder / "catalogue" / "repositories" / f"{name}.yaml").write_text(yaml.safe_dump(row))
        self.catalogue = Catalogue(folder / "catalogue")
        for name in rows:
            mirror_of(folder / "root", self.catalogue.repository(name)).fetch()
        git(folder, "clone", "-q", f"file://{folder / 'outer'}", "plain")

    def workspace(self, commit: str, name: str = "workspace") -> None:
        """A trial's files, and giving them back."""
        workspaces = Workspaces(self.folder / "root", self.catalogue)
        outer = self.catalogue.repository("outer")
        workspaces.give_back(workspaces.check_out(outer, State(commit=commit), self.folder / name))

    def worktree(self, commit: str) -> None:
        target = self.folder / f"worktree-{commit[:10]}"
        git(self.folder / "plain", "worktree", "add", "-q", "--detach", str(target), commit)
        git(target, "submodule", "-q", "update", "--init")

    def clone(self, commit: str) -> None:
        target = self.folder / "fresh"
        git(self.folder, "clone", "-q", "--no-checkout", f"file://{self.folder / 'outer'}", str(target))
        git(target, "checkout", "-q", "--detach", commit)
        git(target, "submodule", "-q", "update", "--init")

    def conflicts(self) -> int:
        """Workspaces that failed or held a wrong file, of `WORKERS` processes at once."""
        fork = multiprocessing.get_context("fork")
        with fork.Pool(WORKERS) as pool:
            return sum(pool.map(self._wrong, range(WORKERS)))

    def _wrong(self, worker: int) -> int:
        workspaces = Workspaces(self.folder / "root", self.catalogue)
        outer, wrong = self.catalogue.repository("outer"), 0
        for turn, commit in enumerate((self.commits[worker:] + self.commits[:worker])[:_STATES_A_WORKER]):
            target = self.folder / f"worker-{worker}-{turn}"
            try:
                workspace = workspaces.check_out(outer, State(commit=commit), target)
                wrong += not self._right(target, commit, workspace.pins[SUBMODULE])
                workspaces.give_back(workspace)
            except Exception as error:
                sys.stderr.write(f"{error}\n")
                wrong += 1
        return wrong

    def _right(self, target: Path, commit: str, pin: str) -> bool:
        expected = _blobs(self.folder / "outer", commit, "")
        expected |= _blobs(self.folder / "core", pin, f"{SUBMODULE}/")
        found = {
            os.path.relpath(os.path.join(folder, name), target): _blob_hash(Path(folder, name))
            for folder, _, names in os.walk(target)
            for name in names
        }
        return found == expected


def _blobs(repository: Path, commit: str, prefix: str) -> dict[str, str]:
    rows = [row.split(None, 3) for row in git(repository, "ls-tree", "-r", "-z", commit).split("\0") if row]
    return {f"{prefix}{path}": target for _, kind, target, path in rows if kind == "blob"}


def _blob_hash(file: Path) -> str:
    content = file.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def measure(history: Path, states: int, seed: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="firstbad-workspace-") as scratch:
        scene = Scene(Path(scratch), history, states, seed)
        first = seconds_of(partial(scene.workspace, scene.commits[0]))
        ways: dict[str, Callable[[str], None]] = {
            "workspace": scene.workspace,
            "worktree": scene.worktree,
            "clone": scene.clone,
        }
        times: dict[str, list[float]] = {name: [] for name in ways}
        for commit in scene.commits[1:]:
            for name, prepare in ways.items():
                times[name].append(seconds_of(partial(prepare, commit)))
            shutil.rmtree(scene.folder / "fresh")
        conflicts = scene.conflicts()

        def ratio(way: str) -> float:
            pairs = zip(times[way], times["workspace"], strict=True)
            return round(statistics.median(slow / fast for slow, fast in pairs), 1)

        return {
            "files": scene.files,
            "states": len(scene.commits),
            "first_seconds": round(first, 3),
            "next_seconds": round(statistics.median(times["workspace"]), 3),
            "worktree_seconds": round(statistics.median(times["worktree"]), 3),
            "clone_seconds": round(statistics.median(times["clone"]), 3),
            "versus_worktree": ratio("worktree"),
            "versus_clone": ratio("clone"),
            "workers": WORKERS,
            "conflicts": conflicts,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--history", type=Path, required=True, help="the folder of the two histories")
    parser.add_argument("--states", type=int, default=8, help="how many of the last states (default 8)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    result = measure(arguments.history, arguments.states, arguments.seed)
    if arguments.json:
        print(json.dumps(result))
    else:
        print("\n".join(f"{name:18} {value}" for name, value in result.items()))


if __name__ == "__main__":
    main()
