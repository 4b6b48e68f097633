"""From a profile and a workspace to a command line and its environment.

Which adapter fits a commit, and how it spells a key, is eras.py's to say. The environment is made
from nothing: a trial runs whatever a commit says, and sees no secret of the service's.
Nothing is started here.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bisection.adapters.catalogue import LaunchAdapter, Profile
from bisection.adapters.dry_runs import DRY_STEPS, DryRun
from workers import ranks
from workers.environments import PreparedEnvironment
from workers.eras import OverrideRefused, SpeltOverride, choose_adapter, spell

#: The folder that goes on the job's PYTHONPATH, so that `python -m firstbad_probe` starts the probe.
PROBE_FOLDER = Path(__file__).resolve().parent / "probe"
#: Parts begin with a letter: `_target_` and its like choose what code a configuration builds.
_KEY = re.compile(r"[+~]{0,2}[A-Za-z][A-Za-z0-9_]*(\.[A-Za-z0-9][A-Za-z0-9_]*)*")
_LONGEST_VALUE = 1000
#: A trial that resumed another's run would measure what that one left.
_OF_CHECKPOINTS = frozenset({"checkpoint.load", "checkpoint.save"})
#: A CUDA job needs the host's choice of devices and where the driver's libraries are.
_CUDA_INHERITED = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "CUDA_HOME")


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What to start, and with which environment. With an ``image``: in it."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    folder: Path  #: where it is started
    processes: int
    python: Path  #: of the environment; of the image, with one
    adapter: str  #: the name of the era whose adapter fitted
    overrides: tuple[SpeltOverride, ...]
    image: str = ""
    reads: tuple[Path, ...] = ()  #: of this host, besides the trial's folder
    world_size: int | None = None  #: where it is not the number of processes: what a dry run pretends to have


def check_overrides(overrides: Mapping[str, Any]) -> None:
    """Raises OverrideRefused for a key or value that must not reach a command line."""
    for key, value in overrides.items():
        if key.lstrip("+~") in _OF_CHECKPOINTS and (value is not None or key.startswith("~")):
            raise OverrideRefused(
                f"{key} would resume a run, or write one outside of the trial: leave it out. The weights "
                "that training starts from are checkpoint.pretrained_checkpoint"
            )
        if not _KEY.fullmatch(key):
            raise OverrideRefused(
                f"{key[:60]!r} is not a configuration key: write it like train.micro_batch_size"
            )
        text = _spelt(value)
        if len(text) > _LONGEST_VALUE or not text.isprintable() or "${" in text or "_target_" in text:
            raise OverrideRefused(
                f"the value of {key} must be plain: at most {_LONGEST_VALUE} printable characters, "
                "no ${...} and no _target_"
            )


def plan_launch(
    profile: Profile,
    workspace: Path,
    environment: PreparedEnvironment,
    trial_folder: Path,
    *,
    overrides: Mapping[str, Any],
    capacity_bytes: int | None,
    commit: str = "",
    full: bool = False,
) -> Launch:
    """The command and environment of one trial. Raises NoAdapter or OverrideRefused.

    ``full`` asks the probe for the allocations behind the peak. ``commit`` is told to a command that asks.
    ``trial_folder`` has the folders home, tmp and probe; the probe writes into the last.
    """
    check_overrides(overrides)
    adapter = choose_adapter(profile, workspace)
    words = {
        "{python}": str(environment.python),
        "{environment}": str(environment.python.parent.parent),
        "{workspace}": str(workspace),
        "{trial}": str(trial_folder),
        "{commit}": commit,
        "{steps}": str(profile.steps),
        "{data}": profile.data.path or "",
    }
    words |= {f"{{{name}}}": place for name, place in profile.places.items()}
    changes = spell(profile, workspace, overrides)
    inside = bool(environment.image)
    # Pyxis gives the first process no input to hold; the node's lease ends it there.
    held = (
        ["--end-with-input"] if inside and profile.container and profile.container.runtime != "pyxis" else []
    )
    return Launch(
        command=(
            *(str(environment.python) if inside else sys.executable, "-I", ranks.__file__),
            *("--processes", str(adapter.processes), *held, *_world(profile), "--"),
            *(filled(word, words) for word in adapter.command),
            *(
                adapter.override.replace("{key}", change.spelt).replace("{value}", _spelt(change.value))
                for change in changes
            ),
        ),
        environment=_environment(
            profile, adapter, workspace, environment, trial_folder, words, capacity_bytes, full
        ),
        folder=workspace,
        processes=adapter.processes * (profile.slurm.nodes if profile.slurm else 1),
        python=environment.python,
        world_size=profile.dry_run.world_size if profile.dry_run else None,
        adapter=adapter.name,
        overrides=changes,
        image=environment.image,
        reads=(
            Path(ranks.__file__).parent,  # with the probe
            *(overlay.folder for overlay in environment.overlays),
            *(Path(place) for place in (profile.data.path, *profile.places.values()) if place),
        ),
    )


def _world(profile: Profile) -> list[str]:
    return ["--world-size", str(profile.dry_run.world_size)] if profile.dry_run else []


def dry_run_environment(dry_run: DryRun) -> dict[str, str]:
    """What the probe is told of a dry run, besides what ranks.py says of the world."""
    return {
        "FIRSTBAD_DRY_RUN": dry_run.orders,
        "FIRSTBAD_MINIMUM_STEPS": str(DRY_STEPS),
        "OMP_NUM_THREADS": "1",  # nothing is computed
    }


def _environment(
    profile: Profile,
    adapter: LaunchAdapter,
    workspace: Path,
    environment: PreparedEnvironment,
    trial_folder: Path,
    words: Mapping[str, str],
    capacity_bytes: int | None,
    full: bool,
) -> dict[str, str]:
    folders = [
        str(PROBE_FOLDER),
        *(str(overlay.folder) for overlay in environment.overlays),
        *(str(workspace / folder) if folder != "." else str(workspace) for folder in adapter.python_path),
    ]
    programs = [str(environment.python.parent), "/usr/local/bin", "/usr/bin", "/bin"]
    threads = max(1, (os.cpu_count() or 1) // adapter.processes)
    result = {
        "PATH": os.pathsep.join(programs),
        "HOME": str(trial_folder / "home"),
        "TMPDIR": str(trial_folder / "tmp"),
        "LANG": "C.UTF-8",
        "PYTHONPATH": os.pathsep.join(folders),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONNOUSERSITE": "1",
        "PYTHONHASHSEED": "0",
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "FIRSTBAD_PROBE_DIRECTORY": str(trial_folder / "probe"),
        "FIRSTBAD_DEVICE": profile.device,
        "FIRSTBAD_REQUIRE_REAL_DATA": "1" if profile.data.kind == "real" else "0",
        "FIRSTBAD_MINIMUM_STEPS": str(profile.steps),
    }
    if profile.slurm is None or profile.slurm.nodes == 1:
        # All ranks are on one host: its name need not resolve.
        result |= {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
    if profile.dry_run:
        result |= dry_run_environment(profile.dry_run)
    if full:
        result["FIRSTBAD_PROBE_MODE"] = "full"
    if capacity_bytes is not None:
        result["FIRSTBAD_CAPACITY_BYTES"] = str(capacity_bytes)
    if profile.expected_imports:
        imports = {module: filled(place, words) for module, place in profile.expected_imports.items()}
        result["FIRSTBAD_EXPECTED_IMPORTS"] = json.dumps(imports)
    if environment.image:
        del result["PATH"]  # the image knows where its programs are
    if profile.device == "cuda":
        inherited = _CUDA_INHERITED[:1] if environment.image else _CUDA_INHERITED
        result |= {name: os.environ[name] for name in inherited if name in os.environ}
        result["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    else:
        result["CUDA_VISIBLE_DEVICES"] = ""
    return result | {name: filled(value, words) for name, value in adapter.env.items()}


def filled(text: str, words: Mapping[str, str]) -> str:
    """Plain replacement: braces that are no word of ours (JSON in a command) stay."""
    for word, value in words.items():
        text = text.replace(word, value)
    return text


def _spelt(value: Any) -> str:
    """A configuration value as Hydra and OmegaConf read it: true, null, [1,2]; strings as they are."""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
