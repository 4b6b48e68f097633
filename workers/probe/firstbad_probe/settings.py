"""What the launcher asks of the probe: the environment is read here and nowhere else."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Settings:
    """One rank's orders."""

    directory: Path  #: where rank-<R>.json and config.json go
    device: str  #: cpu, cuda or dry_run
    rank: int
    world_size: int
    local_world_size: int
    capacity_bytes: int | None = None  #: simulated capacity of this rank; None: only observe
    require_real_data: bool = False
    minimum_steps: int = 3
    full: bool = False  #: the full mode: also write down the allocations behind the peak, by line of code
    lists_storages: bool = False  #: whether the storages of the peak are written down one by one
    expected_imports: Mapping[str, str] = field(default_factory=dict)  #: module to path prefix


def read_settings(environment: Mapping[str, str] = os.environ) -> Settings:
    """Raises ValueError, naming the variable, for an order that cannot be followed."""
    directory = environment.get("FIRSTBAD_PROBE_DIRECTORY")
    if not directory:
        raise ValueError("FIRSTBAD_PROBE_DIRECTORY is not set: name a folder for the probe's files")
    device = environment.get("FIRSTBAD_DEVICE", "cuda")
    if device not in ("cpu", "cuda", "dry_run"):
        raise ValueError(f"FIRSTBAD_DEVICE is {device!r}: it must be cpu, cuda or dry_run")
    mode = environment.get("FIRSTBAD_PROBE_MODE") or "cheap"
    if mode not in ("cheap", "full"):
        raise ValueError(f"FIRSTBAD_PROBE_MODE is {mode!r}: it must be cheap or full")
    world_size = _integer(environment, "WORLD_SIZE", 1)
    return Settings(
        directory=Path(directory),
        device=device,
        rank=_integer(environment, "RANK", 0),
        world_size=world_size,
        local_world_size=_integer(environment, "LOCAL_WORLD_SIZE", world_size),
        capacity_bytes=_integer(environment, "FIRSTBAD_CAPACITY_BYTES", 0) or None,
        require_real_data=environment.get("FIRSTBAD_REQUIRE_REAL_DATA", "0") == "1",
        minimum_steps=_integer(environment, "FIRSTBAD_MINIMUM_STEPS", 3),
        full=mode == "full",
        lists_storages=environment.get("FIRSTBAD_LIST_STORAGES", "0") == "1",
        expected_imports=_imports(environment.get("FIRSTBAD_EXPECTED_IMPORTS", "")),
    )


def _integer(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, "")
    try:
        return int(text) if text else default
    except ValueError:
        raise ValueError(f"{name} is {text!r}: it must be a whole number") from None


def _imports(text: str) -> dict[str, str]:
    try:
        value = json.loads(text) if text else {}
    except ValueError as error:
        raise ValueError(f"FIRSTBAD_EXPECTED_IMPORTS is not JSON: {error}") from None
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise ValueError('FIRSTBAD_EXPECTED_IMPORTS must be a JSON object {"module": "path prefix"}')
    return value
