"""One training of the demo's nightly recipe with edits in it, as a worker runs a trial.

Real Megatron Bridge under the probe, launched, supervised and gathered by the worker's own code; what
is left out is git, since the edits also go where no commit of the demo's repository reaches.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

from benchmarks.injected.injection import Edit
from benchmarks.injected.overlay import edited_packages, edited_training
from bisection.adapters.catalogue import Profile
from bisection.commits import State
from bisection.measurement import Measurement, Outcome
from firstbad.demo import wheels
from firstbad.demo.profile import OVERLAY, PIP_FIRST, TRIAL_SECONDS
from firstbad.demo.scenarios import templates
from workers.environments import Environments, PreparedEnvironment
from workers.gathering import gather
from workers.launching import PROBE_FOLDER, plan_launch
from workers.outcomes import Remains
from workers.redaction import Redaction
from workers.supervision import read_bounded, run_supervised

_LOG_BYTES = 2**20
#: What one rank is one of: a world holds the larger of the dense and the expert layout.
_DENSE = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
_EXPERT = ("expert_tensor_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size")


class TrainingFailed(RuntimeError):
    """A training that should have completed did not."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """What one training measured, and the configuration that it resolved."""

    measurement: Measurement
    config: Mapping[str, Any]
    processes: int


def processes_of(overrides: Mapping[str, Any]) -> int:
    """The smallest number of ranks that the parallel sizes among the overrides fill."""
    return max(prod(int(overrides.get(f"model.{key}") or 1) for key in keys) for keys in (_DENSE, _EXPERT))


class Trainer:
    """Trains, and keeps what came out under ``work``: the same edits are trained once.

    ``home`` holds the environment with Megatron Bridge.
    """

    def __init__(self, home: Path, work: Path) -> None:
        self._home = home
        self._work = work
        self._environment: PreparedEnvironment | None = None

    def run(self, edits: Sequence[Edit], overrides: Mapping[str, Any], steps: int, processes: int = 1) -> Run:
        """Raises TrainingFailed unless all steps were taken; ValueError for an edit that does not fit."""
        decides = [[vars(edit) for edit in edits], dict(overrides), steps, processes, _probe_digest()]
        key = hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:16]
        kept = self._work / "runs" / f"{key}.json"
        if not kept.exists():
            measurement, config = self._train(key, edits, overrides, steps, processes)
            if measurement.outcome is Outcome.LOST:  # as the search does: it says nothing about the code
                measurement, config = self._train(key, edits, overrides, steps, processes)
            if measurement.outcome is not Outcome.COMPLETED:
                raise TrainingFailed(f"{measurement.outcome.value}: {measurement.reason}")
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps({"measurement": measurement.to_json(), "config": config}))
        row = json.loads(kept.read_text())
        return Run(
            measurement=Measurement.from_json(row["measurement"]), config=row["config"], processes=processes
        )

    def _train(
        self, key: str, edits: Sequence[Edit], overrides: Mapping[str, Any], steps: int, processes: int
    ) -> tuple[Measurement, dict[str, Any]]:
        tree = edited_training(edits, templates())
        profile = self._profile(steps, processes)
        environment = self._prepared(profile, tree["requirements.lock"])
        folder = self._work / "trials" / key
        shutil.rmtree(folder, ignore_errors=True)
        for name in ("home", "tmp", "probe", "workspace/packages"):
            (folder / name).mkdir(parents=True)
        workspace = folder / "workspace"
        for path, text in tree.items():
            (workspace / path).parent.mkdir(parents=True, exist_ok=True)
            (workspace / path).write_text(text, encoding="utf-8")
        (site_packages,) = environment.python.parent.parent.glob("lib/python*/site-packages")
        edited_packages(edits, site_packages, workspace / "packages")
        launch = plan_launch(
            profile, workspace, environment, folder, overrides=overrides, capacity_bytes=None
        )
        result = run_supervised(
            launch.command,
            environment=launch.environment,
            folder=launch.folder,
            output=folder / "output.txt",
            output_limit_bytes=_LOG_BYTES,
            time_limit_seconds=TRIAL_SECONDS,
        )
        remains = Remains(
            result=result,
            probe_folder=folder / "probe",
            log=read_bounded(folder / "output.txt", _LOG_BYTES),
            processes=processes,
            own_folders=(workspace,),
            time_limit_seconds=TRIAL_SECONDS,
            redaction=Redaction(paths=None),
        )
        measurement = gather(remains, State(commit="0" * 40))
        config_file = folder / "probe" / "config.json"
        config = json.loads(config_file.read_text()) if config_file.exists() else {}
        if measurement.outcome is Outcome.COMPLETED:
            shutil.rmtree(folder)
        return measurement, config

    def _prepared(self, profile: Profile, lock: str) -> PreparedEnvironment:
        if self._environment is None:
            self._environment = Environments(self._home).prepare(profile.environment, lock, {})
        return self._environment

    def _profile(self, steps: int, processes: int) -> Profile:
        links = self._work / "wheels"
        wheels(links)
        command = ["{python}", "-m", "firstbad_probe", "train.py", "train.train_iters={steps}"]
        return Profile.model_validate(
            {
                "name": "injected",
                "repository": "nightly",
                "environment": {
                    "kind": "venv",
                    "lock": "requirements.lock",
                    "overlay": [OVERLAY],
                    "pip_first": list(PIP_FIRST),
                    "find_links": [str(links.resolve())],
                },
                "launch": [{"command": command, "processes": processes, "python_path": ["packages", "."]}],
                "data": {"kind": "real"},
                "steps": steps,
                "device": "cpu",
            }
        )


@cache
def _probe_digest() -> str:
    """Figures of two probes do not compare: one that changed measures everything anew."""
    files = sorted((PROBE_FOLDER / "firstbad_probe").rglob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
