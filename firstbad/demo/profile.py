"""Registers the demo's repository and job as an operator would: two YAML files of the catalogue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from firstbad.demo.photographs import wheels
from firstbad.demo.repository import BRANCH, Nightly

#: Installed apart, so that moving its pin needs no second environment with torch.
OVERLAY = "nightly-photos"
#: By pip, whose configuration says where this machine gets torch from.
PIP_FIRST = ("torch",)
#: Of one trial. Most take half a minute; with two cores and a load of fifteen, one took 141 seconds.
TRIAL_SECONDS = 600.0


def profile_name(nightly: Nightly) -> str:
    return f"nightly-{nightly.plan.scenario}-{nightly.plan.seed}"


def write_profile(nightly: Nightly, catalogue_folder: Path) -> str:
    """Write the repository's and the profile's file, and the wheels beside them; the profile's name."""
    wheel_folder = catalogue_folder / "wheels"
    wheels(wheel_folder)
    name = profile_name(nightly)
    _write(catalogue_folder / "profiles" / f"{name}.yaml", _profile(nightly, name, wheel_folder))
    repository = {
        "name": name,
        "url": str(nightly.folder.resolve()),
        "default_branch": BRANCH,
    }
    _write(catalogue_folder / "repositories" / f"{name}.yaml", repository)
    return name


def _profile(nightly: Nightly, name: str, wheel_folder: Path) -> dict[str, Any]:
    return {
        "name": name,
        "description": "The nightly run on this machine's CPU, in a simulated device memory",
        "repository": name,
        "relevant_paths": ["train.py", "recipes/", "vlm/", "requirements.lock"],
        "environment": {
            "kind": "venv",
            "lock": "requirements.lock",
            "overlay": [OVERLAY],
            "pip_first": list(PIP_FIRST),
            "find_links": [str(wheel_folder.resolve())],
        },
        "launch": [
            {
                "when": {"path_exists": "train.py"},
                "command": [
                    "{python}",
                    "-m",
                    "firstbad_probe",
                    "train.py",
                    "--recipe",
                    "nightly",
                    "train.train_iters={steps}",
                ],
                "processes": 1,
                "override": "{key}={value}",
            }
        ],
        "data": {"kind": "real"},
        # Public photographs: nobody needs to be kept from the words of an error.
        "privacy": {"samples": "leave"},
        "steps": 3,
        "device": "cpu",
        "gpus": 0,
        "queue": "local",
        "capacity_bytes": nightly.plan.capacity_bytes,
        "limits": {"trial_seconds": TRIAL_SECONDS},
        "criterion": {"kind": "out_of_memory"},
    }


def _write(path: Path, row: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(row, sort_keys=False), encoding="utf-8")
