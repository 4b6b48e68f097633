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

from firstbad_probe.allocations import VERSION as ALLOCATIONS_VERSION
from firstbad_probe.allocations import of_blocks, rows_of
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
GPU_NOTE = (
    "on a GPU bytes are counted by component where the allocator's counters move, and seconds by events in "
    "the stream: untested on this release, which has not run on a GPU yet"
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
    if not observer.simulated:
        notes.append(TRACKING_NOTE if observer.watch is None else GPU_NOTE)
    if observer.ownership.padding_bytes:
        notes.append(
            f"{observer.ownership.padding_bytes} bytes of flat buffers are padding and belong to no component"
        )
    imports = imported_files(str(repository))
    allocations = _allocations(settings, observer)
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
            "hardware": _hardware(observer),
            "torch": torch.__version__,
            "peak": _peak(settings, observer),
            "summits": _summits(settings, observer),
            "retained": [
                {"step": step, "breakdown": _breakdown(cells)} for step, cells in observer.retained.items()
            ],
            "steps": [{**step, "seconds": 0.0} for step in observer.steps]
            if observer.simulated
            else observer.steps,
            "time": _time(observer),
            "oom": _refusal(observer),
            "refusals": [] if observer.watch is None else observer.watch.refusals,
            "watch": None if observer.watch is None else observer.watch.to_json(),
            "unseen": observer.unseen,
            "rehearsed": observer.rehearsed,
            "data": {
                # Of a dry run's data nobody can say: it has sizes and no values.
                "real": None if observer.simulated else observer.batches.real and not observer.mock_data,
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
    if allocations is not None:
        write_json(settings.directory / f"allocations-{settings.rank}.json", allocations)
    listed = observer.storages.listed() if settings.lists_storages else None
    if listed is not None:
        write_json(
            settings.directory / f"storages-{settings.rank}.json",
            {"version": VERSION, "rank": settings.rank, **listed},
        )


def _hardware(observer: Observer) -> str:
    if observer.watch is None:
        return "none: a dry run" if observer.simulated else "cpu"
    return observer.watch.device.name() if observer.watch.device.chosen else "no device was chosen"


def _allocations(settings: Settings, observer: Observer) -> dict[str, Any] | None:
    """The full mode's rows behind the peak; a fault of the reader costs its file, not the record."""
    peak_bytes = observer.storages.live.peak.allocated_bytes
    if observer.history is not None and observer.history.started:
        try:
            return observer.history.to_json(settings.rank, torch.cuda.current_device(), peak_bytes, _relative)
        except Exception as error:
            observer.unseen.append(f"the allocator's history: {type(error).__name__}: {error}")
            return None
    behind = observer.storages.behind_peak() if settings.full else None
    if behind is None:
        return None
    return {
        "version": ALLOCATIONS_VERSION,
        "rank": settings.rank,
        "device": settings.device,
        "allocated_bytes": peak_bytes,
        "peak_bytes": peak_bytes,
        **rows_of(of_blocks(behind, _relative)),
        "notes": [],
    }


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
    if observer.simulated and type(error).__name__ == "UnknownValue":
        reasons.append(str(error))
    if error is None and len(observer.steps) < settings.minimum_steps:
        reasons.append(_too_few(len(observer.steps), settings.minimum_steps))
    for module, prefix in settings.expected_imports.items():
        file = imports.get(module) or _file_of(module)
        if file is None:
            if error is None:
                reasons.append(f"{module} was never imported, but was expected from {prefix}")
        elif not os.path.realpath(file).startswith((prefix, os.path.realpath(prefix))):
            reasons.append(f"{module} was imported from {file}, not from {prefix}")
    if (
        settings.require_real_data
        and not observer.simulated
        and (observer.batches.microbatches or error is None)
    ):
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
    """The highest instant of every phase."""
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
        "reserved_bytes": summit.allocated_bytes
        if observer.watch is None
        else observer.watch.counted.reserved.get(summit.phase, summit.allocated_bytes),
        "breakdown": breakdown,
    }


def _breakdown(cells: dict[Cell, int]) -> list[dict[str, Any]]:
    return [
        {"component": component, "category": category, "bytes": size}
        for (component, category), size in sorted(cells.items())
        if size
    ]


def _time(observer: Observer) -> list[dict[str, Any]]:
    if observer.simulated:
        return []
    clock = observer.clock if observer.watch is None else observer.watch.clock
    parts = {} if clock is None else clock.steady_mean()
    return [
        {"component": activity, "phase": phase, "seconds": seconds}
        for (activity, phase), seconds in parts.items()
    ]


def _refusal(observer: Observer) -> dict[str, Any] | None:
    refusal = observer.storages.refusal
    if observer.watch is not None and observer.watch.refusals:
        # The one that ended the job: those before it were caught.
        return observer.watch.refusals[-1]
    if refusal is None:
        return None
    return {
        "component": refusal.component,
        "path": refusal.path,
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
