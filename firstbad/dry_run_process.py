"""One dry run of the shipped job, started here: its process, its progress, its records.

The environment is made from nothing, as a trial's is. What comes back is read by the workers' own reader
of rank files, which believes nothing unchecked.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bisection.adapters.dry_runs import DryRun
from workers.launching import PROBE_FOLDER, dry_run_environment
from workers.rank_files import RankFile, parse_strictly, read_plain_file, read_rank_files

JOB = PROBE_FOLDER / "firstbad_probe" / "dry_run" / "job.py"
_LOOK_SECONDS = 0.5
_FIND_SECONDS = 120
_FILE_LIMIT_BYTES = 64 * 2**20
_LAST_LINES = 5
#: Prints the releases of what upstream's two repositories make; fails where Bridge is not there.
_FIND = (
    "import importlib.util as u, importlib.metadata as m, json, torch\n"
    "assert u.find_spec('megatron.bridge')\n"
    "def of(name):\n"
    "    try: return m.version(name)\n"
    "    except m.PackageNotFoundError: return None\n"
    "print(json.dumps({'megatron-bridge': of('megatron-bridge'), 'megatron-lm': of('megatron-core')}))"
)


@dataclass(frozen=True, kw_only=True)
class Rehearsed:
    """What a dry run left: a file a pipeline stage, and the configuration that the job resolved to."""

    ranks: Mapping[int, RankFile]
    configuration: Mapping[str, Any]
    storages: Mapping[int, Mapping[str, Any]]  #: by rank, the tensors behind the peak one by one
    versions: Mapping[str, str]  #: upstream repository to the release in the interpreter
    seconds: float

    @property
    def worst(self) -> RankFile:
        """The rank that needs most; where one failed, that one."""
        return max(
            self.ranks.values(),
            key=lambda file: (file.status != "completed", file.peak.allocated_bytes if file.peak else 0),
        )


def rehearse(
    python: Path,
    config: Path,
    settings: Sequence[str],
    asked: DryRun,
    capacity_bytes: int | None,
    say: Callable[[str], None],
) -> Rehearsed:
    """Runs it to its end. Raises ValueError that says why there is nothing to read."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="firstbad-dry-run-") as name:
        folder = Path(name)
        for part in ("home", "tmp", "probe"):
            (folder / part).mkdir()
        environment = _environment(python, folder, asked, capacity_bytes)
        say("looking for Megatron Bridge")
        versions = _versions(python, environment)
        command = [str(python), "-m", "firstbad_probe", str(JOB), str(config.resolve()), *settings]
        say("importing Megatron Bridge")
        with (folder / "log.txt").open("wb") as log:
            process = subprocess.Popen(
                command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
            try:
                _follow(process, folder / "probe" / "progress.txt", say)
            finally:
                if process.poll() is None:
                    process.terminate()
                    process.wait()
        ranks = read_rank_files(folder / "probe", 1, asked.world_size)
        if not ranks:
            raise ValueError(
                f"the dry run left no record; the last it said: {_last_words(folder / 'log.txt')}"
            )
        missing = [rank for rank in ranks[min(ranks)].rehearsed if rank not in ranks]
        if missing:
            raise ValueError(
                f"the process of rank {missing[0]} ended without a record: mostly that is the host's memory; "
                "ask for fewer stages at once (--parallel 1)"
            )
        storages = {rank: _read(folder / "probe" / f"storages-{rank}.json") for rank in ranks}
        return Rehearsed(
            ranks=ranks,
            configuration=_read(folder / "probe" / "config.json"),
            storages=storages,
            versions=versions,
            seconds=time.monotonic() - started,
        )


def _environment(python: Path, folder: Path, asked: DryRun, capacity_bytes: int | None) -> dict[str, str]:
    environment = {
        "PATH": os.pathsep.join((str(python.parent), "/usr/local/bin", "/usr/bin", "/bin")),
        "HOME": str(folder / "home"),
        "TMPDIR": str(folder / "tmp"),
        "LANG": "C.UTF-8",
        "PYTHONPATH": str(PROBE_FOLDER),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONNOUSERSITE": "1",
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": str(asked.world_size),
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",  # nothing listens, nothing connects
        "FIRSTBAD_DEVICE": "dry_run",
        "FIRSTBAD_LIST_STORAGES": "1",
        "FIRSTBAD_PROBE_DIRECTORY": str(folder / "probe"),
        **dry_run_environment(asked),
    }
    if capacity_bytes is not None:
        environment["FIRSTBAD_CAPACITY_BYTES"] = str(capacity_bytes)
    return environment


def _versions(python: Path, environment: Mapping[str, str]) -> dict[str, str]:
    try:
        done = subprocess.run(
            [str(python), "-c", _FIND],
            env=dict(environment),
            capture_output=True,
            text=True,
            timeout=_FIND_SECONDS,
            check=False,
        )
    except OSError as error:
        raise ValueError(f"{python} cannot be started: {error.strerror}") from None
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise ValueError(
            f"{python} has no torch and Megatron Bridge together ({said}): give --python the interpreter of "
            "an environment where both are installed; the docs say how to make one for CPUs"
        )
    found = json.loads(done.stdout.strip().rpartition("\n")[2])
    return {name: version for name, version in found.items() if version}


def _follow(process: subprocess.Popen[bytes], progress: Path, say: Callable[[str], None]) -> None:
    told = ""
    while process.poll() is None:
        time.sleep(_LOOK_SECONDS)
        content = read_plain_file(progress, 500)
        now = content.decode(errors="replace").strip() if content else ""
        if now and now != told:
            told = now
            say(now)


def _read(path: Path) -> dict[str, Any]:
    content = read_plain_file(path, _FILE_LIMIT_BYTES)
    row = parse_strictly(content) if content is not None else {}
    return row if isinstance(row, dict) else {}


def _last_words(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return " | ".join(lines[-_LAST_LINES:])[-1000:] or "nothing"
