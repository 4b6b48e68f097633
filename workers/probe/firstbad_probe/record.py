"""The record of one rank: what was seen, as the JSON that outlives the process.

Here it is decided why a run is not what was asked (`invalid`); what to make of
it is decided elsewhere.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import traceback
from pathlib import Path
from typing import Any

import torch

from firstbad_probe import gpu
from firstbad_probe.files import write_json
from firstbad_probe.imports import ImportCallbacks
from firstbad_probe.live_bytes import Cell, Summit
from firstbad_probe.observer import Observer
from firstbad_probe.patches import Patches
from firstbad_probe.settings import Settings

VERSION = 1
_TEXT_LIMIT = 4000
_OWN_FOLDER = str(Path(__file__).parent)

TRACKING_NOTE = (
    "memory tracking slows each operation down: seconds are comparable between trials measured alike, "
    "not with an unobserved run"
)


def write_record(
    settings: Settings,
    observer: Observer,
    patches: Patches,
    callbacks: ImportCallbacks,
    error: BaseException | None,
    repository: Path,
) -> None:
    observer.storages.settle()
    notes = [*observer.notes, *sorted(observer.batches.notes), *callbacks.notes]
    notes.append(TRACKING_NOTE if observer.gpu is None else gpu.NOTE)
    if observer.ownership.padding_bytes:
        notes.append(
            f"{observer.ownership.padding_bytes} bytes of flat buffers are padding and belong to no component"
        )
    imports = imported_files(str(repository))
    write_json(
        settings.directory / f"rank-{settings.rank}.json",
        {
            "version": VERSION,
            "rank": settings.rank,
            "world_size": settings.world_size,
            "status": status_of(error),
            "error": None if error is None else describe_error(error),
            "invalid": invalid_reasons(settings, observer, imports, error),
            "device": settings.device,
            "hardware": "cpu" if observer.gpu is None else torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "peak": _peak(settings, observer),
            "summits": _summits(settings, observer),
            "retained": [
                {"step": step, "breakdown": _breakdown(cells)} for step, cells in observer.retained.items()
            ],
            "steps": observer.steps,
            "time": _time(observer),
            "oom": _refusal(observer),
            "data": {
                "real": observer.batches.real and observer.mock_data is None,
                "images": observer.batches.images,
            },
            "parameters": observer.ownership.parameters,
            "trainable": observer.ownership.trainable,
            "imports": imports,
            "patches": patches.to_json(),
            "notes": notes,
            "instants": observer.timeline.to_json(),
        },
    )
    listed = observer.storages.listed()
    if listed is not None:
        write_json(
            settings.directory / f"storages-{settings.rank}.json",
            {"version": VERSION, "rank": settings.rank, **listed},
        )


def status_of(error: BaseException | None) -> str:
    if error is None:
        return "completed"
    return "out_of_memory" if _out_of_memory(error) is not None else "failed"


def _out_of_memory(error: BaseException | None) -> BaseException | None:
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError):
            return error
        error = error.__cause__ or error.__context__
    return None


def describe_error(error: BaseException) -> dict[str, Any]:
    """The failure by type, message and the functions it came through, without the probe's own."""
    shown = _out_of_memory(error) or error
    frames = traceback.extract_tb(shown.__traceback__)
    return {
        "type": type(shown).__name__,
        "message": str(shown),
        "frames": [
            f"{_relative(frame.filename)}:{frame.name}"
            for frame in frames
            if not frame.filename.startswith((_OWN_FOLDER, "<frozen"))
        ],
        "text": "".join(traceback.format_exception(shown))[-_TEXT_LIMIT:],
    }


def _relative(file: str) -> str:
    """The file as an import would name it: below the longest folder of the path that holds it."""
    folders = [os.path.abspath(folder or ".") for folder in sys.path]
    folders.append(sysconfig.get_paths()["stdlib"])
    holders = [folder for folder in folders if file.startswith(folder + os.sep)]
    return os.path.relpath(file, max(holders, key=len)) if holders else os.path.basename(file)


def invalid_reasons(
    settings: Settings, observer: Observer, imports: dict[str, str], error: BaseException | None
) -> list[str]:
    """Why the trial is not what was asked, whatever it measured."""
    reasons = []
    if error is None and len(observer.steps) < settings.minimum_steps:
        reasons.append(_too_few(len(observer.steps), settings.minimum_steps))
    for module, prefix in settings.expected_imports.items():
        file = imports.get(module) or _file_of(module)
        if file is None:
            if error is None:
                reasons.append(f"{module} was never imported, but was expected from {prefix}")
        elif not os.path.realpath(file).startswith((prefix, os.path.realpath(prefix))):
            reasons.append(f"{module} was imported from {file}, not from {prefix}")
    if settings.require_real_data and (observer.batches.microbatches or error is None):
        if observer.mock_data:
            reasons.append(f"the data is not real: it comes from {observer.mock_data}")
        reasons += [f"the data is not real: {reason}" for reason in observer.batches.reasons()]
    return reasons


def imported_files(root: str) -> dict[str, str]:
    """The files behind Megatron's packages and the modules of the script's own repository."""
    files = {}
    for name in ("megatron.core", "megatron.bridge"):
        file = _file_of(name)
        if file is not None:
            files[name] = file
    for name in sorted(sys.modules):
        file = _file_of(name)
        if file is None or not file.startswith(root + os.sep) or "site-packages" in file:
            continue
        if name != "__main__" and not file.startswith(_OWN_FOLDER):
            files.setdefault(name, file)
    return files


def _file_of(module_name: str) -> str | None:
    module = sys.modules.get(module_name)
    file = getattr(module, "__file__", None)
    if file is None:
        # A module that imports its parts when asked for one (transformers) must not be asked.
        folders = list(vars(module).get("__path__", [])) if module is not None else []
        file = folders[0] if folders else None
    # Some modules made in memory claim a relative file that is not there.
    return os.path.abspath(file) if isinstance(file, str) and os.path.exists(file) else None


def repository_of(script: str) -> Path:
    """The folder that holds the script's repository.

    Its git root; in an export, which has none, the current folder if the script is below it.
    """
    folder, here = Path(script).resolve().parent, Path.cwd()
    for candidate in (folder, *folder.parents):
        if (candidate / ".git").exists():
            return candidate
    return here if folder.is_relative_to(here) else folder


def _peak(settings: Settings, observer: Observer) -> dict[str, Any] | None:
    peak = observer.storages.live.peak
    return _summit(settings, observer, peak) if peak.allocated_bytes else None


def _summits(settings: Settings, observer: Observer) -> list[dict[str, Any]]:
    """The highest instant of every phase; a GPU's allocator does not tell them apart."""
    if observer.gpu is not None:
        return []
    summits = observer.storages.live.summits
    return [_summit(settings, observer, summits[phase]) for phase in sorted(summits)]


def _summit(settings: Settings, observer: Observer, summit: Summit) -> dict[str, Any]:
    breakdown = _breakdown(summit.cells)
    assert sum(row["bytes"] for row in breakdown) == summit.allocated_bytes
    return {
        "rank": settings.rank,
        "step": summit.step,
        "phase": summit.phase,
        "instant": summit.instant,
        "allocated_bytes": summit.allocated_bytes,
        "reserved_bytes": summit.allocated_bytes if observer.gpu is None else observer.gpu.reserved_bytes,
        "breakdown": breakdown,
    }


def _breakdown(cells: dict[Cell, int]) -> list[dict[str, Any]]:
    return [
        {"component": component, "category": category, "bytes": size}
        for (component, category), size in sorted(cells.items())
        if size
    ]


def _time(observer: Observer) -> list[dict[str, Any]]:
    if observer.gpu is not None:  # kernels run later than the code that starts them
        return []
    return [
        {"component": activity, "phase": phase, "seconds": seconds}
        for (activity, phase), seconds in observer.clock.steady_mean().items()
    ]


def _refusal(observer: Observer) -> dict[str, Any] | None:
    refusal = observer.storages.refusal
    if refusal is None:
        return None
    return {
        "component": refusal.component,
        "phase": refusal.phase,
        "requested_bytes": refusal.requested_bytes,
        "allocated_bytes": refusal.allocated_bytes,
        "reserved_bytes": refusal.allocated_bytes,
    }


def _too_few(taken: int, minimum: int) -> str:
    if taken == 0:
        return (
            "no step was seen: the probe counts those of Megatron Bridge's own loop, or else the updates "
            "of Megatron Core's optimizer on a model in its DistributedDataParallel"
        )
    return f"only {taken} of at least {minimum} steps were taken"
