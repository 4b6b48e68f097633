"""Runs of the demo's nightly training, on real Megatron Bridge, under the probe.

Every run trains in a process of its own for each rank, through Bridge's `pretrain`. Nothing is judged here.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.probe_grid import Case
from firstbad.demo import wheels
from firstbad.demo.scenarios import templates

PROBE = Path(__file__).parents[1] / "workers" / "probe"
RECIPES = Path(__file__).parent / "probe_recipes"
#: A run takes half a minute alone on two cores, and several under load.
SECONDS = 1200


@dataclass(frozen=True, kw_only=True)
class Run:
    """What one run left behind."""

    case: Case
    configuration: Mapping[str, Any]  #: as Bridge resolved it
    records: tuple[Mapping[str, Any], ...]  #: the probe's, by rank
    rows: tuple[Mapping[str, list[int]], ...]  #: by rank: rows of each forward pass of each layer's experts
    storages: tuple[Mapping[str, Any], ...]  #: by rank, where the case asks for them


class RunFailed(Exception):
    """The training did not end well; the message holds the end of its log."""


def prepare(folder: Path) -> None:
    """Write the nightly repository and its photographs, once."""
    tree = folder / "repository"
    for path, text in templates().items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text(text)
    for recipe in RECIPES.glob("*.py"):
        (tree / "recipes" / recipe.name).write_text(recipe.read_text())
    newest = max(wheels(folder / "wheels"))
    with zipfile.ZipFile(newest) as archive:
        archive.extractall(folder / "photographs")


def train(python: Path, folder: Path, case: Case, output: Path) -> Run:
    """Run one case in a prepared folder, its files below ``output``. Raises RunFailed."""
    output.mkdir(parents=True)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    arguments = [f"{key}={_yaml(value)}" for key, value in case.overrides.items()]
    processes = []
    for rank in range(case.ranks):
        with (output / f"log-{rank}.txt").open("w") as log:
            processes.append(
                subprocess.Popen(
                    [python, "-m", "firstbad_probe", "train.py", "--recipe", case.recipe, *arguments],
                    cwd=folder / "repository",
                    env=_environment(folder, case, output, rank, port),
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            )
    try:
        codes = [process.wait(timeout=SECONDS) for process in processes]
    finally:
        for process in processes:
            process.kill()
    if any(codes):
        ends = "\n".join((output / f"log-{rank}.txt").read_text()[-1500:] for rank in range(case.ranks))
        raise RunFailed(f"{case.name} ended with {codes}:\n{ends}")
    return read(case, output)


def read(case: Case, output: Path) -> Run:
    """What a finished run wrote."""

    def each(name: str) -> tuple[Any, ...]:
        return tuple(json.loads((output / f"{name}-{rank}.json").read_text()) for rank in range(case.ranks))

    return Run(
        case=case,
        configuration=json.loads((output / "config.json").read_text()),
        records=each("rank"),
        rows=each("rows"),
        storages=each("storages") if case.listed else (),
    )


def _yaml(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _environment(folder: Path, case: Case, output: Path, rank: int, port: int) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(PROBE), str((folder / "photographs").resolve())]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(case.ranks),
        "LOCAL_WORLD_SIZE": str(case.ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "FIRSTBAD_DEVICE": "cpu",
        "FIRSTBAD_PROBE_DIRECTORY": str(output.resolve()),
        "FIRSTBAD_LIST_STORAGES": str(int(case.listed)),
    }
