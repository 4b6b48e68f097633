"""The allocations alive at the peak, one row for each place in the code: what the full mode writes down.

Pure functions on plain data: a snapshot as `torch.cuda.memory._snapshot` gives it (a dictionary of `segments`
and `device_traces`), or the storages that were followed on a CPU. The answer is small, bounded JSON; no
snapshot leaves the process that made it.

Of a snapshot, the course of the allocations is played back from its end and then forward again, so that a
history whose beginning was overwritten still gives every instant that it covers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from firstbad_probe.components import RUNTIME
from firstbad_probe.live_bytes import Block, rounded

VERSION = 1
MOST_ROWS = 300
FRAMES = 3  #: of each place, the innermost last
_LONGEST = 200

Place = tuple[str, str, str]  #: component, phase, path of the module
NOWHERE: Place = (RUNTIME, "build", "not known")

_FOREIGN = ("/torch/", "firstbad_probe/", "<frozen", "<string>", "importlib/", "runpy.py")
_SEPARATOR = "\t"


class Allocation(NamedTuple):
    """A row before it is counted."""

    place: Place
    frames: tuple[str, ...]
    size_bytes: int


class Marks:
    """Where the program was by the clock; for releases of torch that attach no words to allocations."""

    def __init__(self) -> None:
        self._times: list[int] = []
        self._places: list[Place] = []

    def add(self, time_us: int, place: Place) -> None:
        self._times.append(time_us)
        self._places.append(place)

    def at(self, time_us: int) -> Place:
        found = bisect_right(self._times, time_us)
        return self._places[found - 1] if found else NOWHERE


def words_of(place: Place) -> str:
    """The place as the words that torch attaches to each allocation."""
    return _SEPARATOR.join(place)


def place_of(entry: Mapping[str, Any], marks: Marks) -> Place:
    words = entry.get("user_metadata")
    if isinstance(words, str) and words.count(_SEPARATOR) == 2:
        component, phase, path = words.split(_SEPARATOR)
        return component, phase, path
    time_us = entry.get("time_us")
    return marks.at(time_us) if isinstance(time_us, int) else NOWHERE


def at_peak(
    snapshot: Mapping[str, Any], device: int, marks: Marks, named: Callable[[str], str]
) -> tuple[list[Allocation], int]:
    """The allocations alive at the highest instant that the history covers, and their bytes.

    `named` shortens a file's path. Sizes are as the allocator rounds them, to 512 bytes.
    """
    traces = snapshot["device_traces"]
    trace = traces[device] if device < len(traces) else []
    freeing = "free_requested" if any(entry["action"] == "free_requested" for entry in trace) else None
    freeing = freeing or "free_completed"
    alive = {
        block["address"]: (block.get("requested_size", block["size"]), block)
        for segment in snapshot["segments"]
        if segment.get("device", device) == device
        for block in _addressed(segment)
        if block["state"] == "active_allocated"
    }
    entries = [entry for entry in trace if entry["action"] in ("alloc", freeing)]
    for entry in reversed(entries):
        if entry["action"] == "alloc":
            alive.pop(entry["addr"], None)
        else:  # made before the history began, or else its making, met next, takes it off again
            alive[entry["addr"]] = (entry["size"], {})
    total = highest = sum(rounded(size) for size, _ in alive.values())
    upto, sizes = 0, {address: size for address, (size, _) in alive.items()}
    for number, entry in enumerate(entries, 1):
        if entry["action"] == "alloc":
            sizes[entry["addr"]] = entry["size"]
            total += rounded(entry["size"])
        else:
            total -= rounded(sizes.pop(entry["addr"], 0))
        if total > highest:
            highest, upto = total, number
    for entry in entries[:upto]:
        if entry["action"] == "alloc":
            alive[entry["addr"]] = (entry["size"], entry)
        else:
            alive.pop(entry["addr"], None)
    found = [
        Allocation(place_of(origin, marks), named_frames(origin.get("frames", ()), named), rounded(size))
        for size, origin in alive.values()
    ]
    return found, highest


def _addressed(segment: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    """Blocks lie one after the other; older releases do not write down where."""
    address = segment["address"]
    for block in segment["blocks"]:
        yield {"address": address, **block}
        address += block["size"]


def named_frames(frames: Iterable[Mapping[str, Any]], named: Callable[[str], str]) -> tuple[str, ...]:
    """The job's own frames, the innermost last, as file:line function. torch gives the innermost first."""
    own = [
        f"{named(str(frame['filename']))}:{frame['line']} {frame['name']}"[:_LONGEST]
        for frame in frames
        if is_own(str(frame["filename"]))
    ]
    return tuple(reversed(own[:FRAMES]))


def is_own(file: str) -> bool:
    return file.endswith(".py") and not any(word in file for word in _FOREIGN)


def of_blocks(blocks: Iterable[Block], named: Callable[[str], str]) -> list[Allocation]:
    """The storages that were followed on a CPU."""
    return [
        Allocation(
            (component, block.origin[1], block.origin[0]),
            named_frames(block.frames, named) or (block.origin[2],),
            size,
        )
        for block in blocks
        for (component, _), size in block.parts
    ]


def rows_of(allocations: Iterable[Allocation]) -> dict[str, Any]:
    """Counted by place and frames, the largest first, at most `MOST_ROWS`; the rest is told as a sum."""
    counted: dict[tuple[Place, tuple[str, ...]], list[int]] = {}
    for place, frames, size in allocations:
        row = counted.setdefault((place, frames), [0, 0])
        row[0] += size
        row[1] += 1
    ordered: Sequence[Any] = sorted(counted.items(), key=lambda item: (-item[1][0], item[0]))
    return {
        "rows": [
            {
                "component": component,
                "phase": phase,
                "path": path[:_LONGEST],
                "frames": list(frames),
                "bytes": size,
                "count": count,
            }
            for ((component, phase, path), frames), (size, count) in ordered[:MOST_ROWS]
        ],
        "left_out_bytes": sum(size for _, (size, _) in ordered[MOST_ROWS:]),
        "left_out_rows": len(ordered[MOST_ROWS:]),
    }
