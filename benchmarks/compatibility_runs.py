"""Runs trials through one profile at commits that lock other versions, and enters what came of them.

    python -m benchmarks.compatibility_runs --python PYTHON --home FOLDER [--enter]

PYTHON has torch and all that the demo's lock names (`make test` makes one). A repository is generated with
one commit a combination: its lock names the versions, and the profile's adapters ask what a commit contains:
with Megatron Bridge in the lock it trains the demo's Qwen3-VL-MoE, without it a small LLaVA on Megatron
Core alone. Which releases of Core there are, the index says. --enter writes benchmarks/compatibility.json.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from benchmarks.compatibility import RUNS
from bisection.adapters.catalogue import Catalogue
from bisection.commits import State
from bisection.ledger import Purpose, Trial
from bisection.measurement import Measurement, Outcome
from firstbad.demo import DEFAULT_SCENARIO, plan
from firstbad.demo.photographs import wheels
from workers.environments import describe_python
from workers.trial_run import run_trial

NAME = "versions"
_LOCK = "requirements.lock"
_BRIDGE = "megatron-bridge"
_JOB = Path(__file__).parent / "compatibility_job" / "train_core.py"
_JOBS = {
    True: "the demo's Qwen3-VL-MoE on photographs",
    False: "a small LLaVA-MoE on photographs, on Megatron Core alone",
}


@dataclass(frozen=True, kw_only=True)
class Combination:
    """What a commit's lock names."""

    core: str
    bridge: str = ""  #: none: Core alone


COMBINATIONS = (
    *(Combination(core=core) for core in ("0.12.0", "0.13.0", "0.14.0", "0.15.0", "0.16.1")),
    Combination(core="0.16.1", bridge="0.3.1"),
)


@dataclass(frozen=True, kw_only=True)
class Versions:
    """The generated repository, and the catalogue that names it."""

    catalogue: Path
    commits: dict[Combination, str]


def generate(combinations: Sequence[Combination], home: Path, python: Path) -> Versions:
    """One commit a combination, and the one profile for all of them."""
    repository, catalogue = home / "repository", home / "catalogue"
    tree = plan(DEFAULT_SCENARIO, 0).trees()[0]
    for path, text in {**tree, _JOB.name: _JOB.read_text(encoding="utf-8")}.items():
        (repository / path).parent.mkdir(parents=True, exist_ok=True)
        (repository / path).write_text(text, encoding="utf-8")
    _git(repository, "init", "--quiet", "--initial-branch=main", "--template=")
    commits = {}
    for combination in combinations:
        (repository / _LOCK).write_text(_lock(tree[_LOCK], combination), encoding="utf-8")
        _git(repository, "add", "--all")
        who = ["-c", "user.name=firstbad", "-c", "user.email=firstbad@example.invalid"]
        _git(repository, *who, "commit", "--quiet", "--message", str(combination))
        commits[combination] = _git(repository, "rev-parse", "HEAD")
    wheels(catalogue / "wheels")
    _write(
        catalogue / "repositories" / f"{NAME}.yaml",
        {"name": NAME, "url": str(repository.resolve()), "default_branch": "main"},
    )
    _write(catalogue / "profiles" / f"{NAME}.yaml", _profile(python, catalogue / "wheels"))
    return Versions(catalogue=catalogue, commits=commits)


def run(versions: Versions, combination: Combination, home: Path) -> Measurement:
    """One trial, as a worker runs it."""
    catalogue = Catalogue(versions.catalogue)
    profile = catalogue.profile(NAME)
    return run_trial(
        Trial(state=State(commit=versions.commits[combination]), attempt=1, purpose=Purpose.SEARCH),
        profile=profile,
        repository=catalogue.repository(profile.repository),
        catalogue=catalogue,
        root=home,
        overrides={},
        capacity_bytes=None,
        worker="benchmark",
        pseudonym_key=b"benchmark",
        cancelled=lambda: False,
        progress=lambda _: None,
    ).measurement


def row(combination: Combination, measured: Measurement, python: Path) -> dict[str, Any]:
    """The run as compatibility.json holds it."""
    described = describe_python(python)
    installed = described["installed"]
    assert isinstance(installed, list)
    versions = dict(line.split("==", 1) for line in installed)
    ran = measured.outcome is Outcome.COMPLETED and measured.peak is not None
    result = "runs" if ran else f"{measured.outcome.value}: {measured.reason.strip()[-300:]}"
    if ran and measured.peak:
        result += f"; peak {measured.peak.allocated_bytes / 2**20:.1f} MiB of live tensors"
    return {
        "bridge": combination.bridge or "none",
        "core": combination.core,
        "torch": versions["torch"].partition("+")[0],
        "python": ".".join(str(described["version"]).split(".")[:2]),
        "transformers": versions["transformers"],
        "device": "cpu",
        "job": _JOBS[bool(combination.bridge)],
        "command": "benchmarks/compatibility_runs.py, one profile for all its rows",
        "date": datetime.now(UTC).date().isoformat(),
        "result": result,
    }


def enter(rows: Sequence[dict[str, Any]]) -> None:
    """Replaces the rows of this benchmark, and leaves those that others entered."""
    document = json.loads(RUNS.read_text(encoding="utf-8"))
    kept = [one for one in document["runs"] if one.get("command") != rows[0]["command"]]
    document["runs"] = [*rows, *kept]
    parts = []
    for name, value in document.items():
        lines = ",\n".join(f"    {json.dumps(one, ensure_ascii=False)}" for one in value)
        shown = json.dumps(value, ensure_ascii=False) if isinstance(value, str) else f"[\n{lines}\n  ]"
        parts.append(f"  {json.dumps(name)}: {shown}")
    RUNS.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


def _git(folder: Path, *words: str) -> str:
    """As nobody in particular, without this machine's configuration."""
    plain = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    done = subprocess.run(
        ["git", *words], cwd=folder, env={**os.environ, **plain}, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def _lock(text: str, combination: Combination) -> str:
    lines = []
    for line in text.splitlines():
        if line.startswith("megatron-core=="):
            lines.append(f"megatron-core=={combination.core}")
        elif line.startswith(f"{_BRIDGE}=="):
            lines += [f"{_BRIDGE}=={combination.bridge}"] if combination.bridge else []
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


def _profile(python: Path, wheel_folder: Path) -> dict[str, Any]:
    with_bridge = {_LOCK: f"{_BRIDGE}=="}
    probe = ["{python}", "-m", "firstbad_probe"]
    return {
        "name": NAME,
        "repository": NAME,
        "environment": {
            "kind": "interpreter",
            "python": str(python),
            "lock": _LOCK,
            "overlay": ["megatron-core", "nightly-photos"],
            "find_links": [str(wheel_folder.resolve())],
        },
        "launch": [
            {
                "name": "Megatron Core alone",
                "when": {"path_exists": _JOB.name, "file_lacks": with_bridge},
                "command": [*probe, _JOB.name, "--steps", "{steps}"],
                "override": "--{key}={value}",
            },
            {
                "name": "Megatron Bridge",
                "when": {"path_exists": "train.py", "file_contains": with_bridge},
                "command": [*probe, "train.py", "--recipe", "nightly", "train.train_iters={steps}"],
            },
        ],
        "data": {"kind": "real"},
        "steps": 3,
        "device": "cpu",
        "limits": {"trial_seconds": 900},
    }


def _write(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--python", type=Path, required=True)
    parser.add_argument("--home", type=Path, required=True, help="is emptied, and holds the trials")
    parser.add_argument("--enter", action="store_true")
    arguments = parser.parse_args()
    shutil.rmtree(arguments.home, ignore_errors=True)
    versions = generate(COMBINATIONS, arguments.home, arguments.python)
    rows = []
    for combination in COMBINATIONS:
        measured = run(versions, combination, arguments.home)
        rows.append(row(combination, measured, arguments.python))
        print(f"{measured.seconds:6.1f} s  {json.dumps(rows[-1])}", flush=True)
    if arguments.enter:
        enter(rows)


if __name__ == "__main__":
    main()
