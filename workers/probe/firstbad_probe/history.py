"""The full mode on a GPU: torch's allocator history, with the module that runs written to each allocation.

Newer releases of torch attach words to every allocation; for older ones the times of the changes are kept.
Recording costs microseconds an allocation and host memory, never device memory. Read in this very process
when the job has ended; what leaves it is `allocations`' JSON.

Written against torch's documented interfaces; no release of this project has run on a GPU yet.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from firstbad_probe.allocations import VERSION, Marks, at_peak, rows_of, words_of
from firstbad_probe.components import Scope

#: As many as two steps of a large model have; each takes some hundred bytes of the host, more when read.
MOST_ENTRIES = 200_000
_SLACK = 0.01  #: of the peak, by which rounding inside the allocator may hide it from the history


class AllocationHistory:
    """Recorded from `start` until `to_json`."""

    def __init__(self) -> None:
        self._marks = Marks()
        self._attach: Callable[[str], None] | None = None
        self.started = False

    def start(self) -> None:
        """Once the job has chosen its device."""
        if self.started:
            return
        torch.cuda.memory._record_memory_history(
            "all", context="alloc", stacks="python", max_entries=MOST_ENTRIES
        )
        if hasattr(torch._C, "_cuda_setMemoryMetadata"):
            self._attach = torch.cuda.memory._set_memory_metadata
        self.started = True

    def mark(self, scope: Scope, phase: str) -> None:
        """This scope runs from now on."""
        place = (scope.component, phase, scope.path)
        if self._attach is not None:
            self._attach(words_of(place))
        elif self.started:
            self._marks.add(time.time_ns() // 1000, place)

    def stop(self) -> None:
        torch.cuda.memory._record_memory_history(None)
        self.started = False
        if self._attach is not None:
            self._attach("")

    def to_json(self, rank: int, device: int, peak_bytes: int, named: Callable[[str], str]) -> dict[str, Any]:
        """Reads the history and ends it. `peak_bytes` is what the counters saw."""
        snapshot = torch.cuda.memory._snapshot()
        self.stop()
        return read(snapshot, self._marks, rank, device, peak_bytes, named)


def read(
    snapshot: dict[str, Any],
    marks: Marks,
    rank: int,
    device: int,
    peak_bytes: int,
    named: Callable[[str], str],
) -> dict[str, Any]:
    allocations, highest = at_peak(snapshot, device, marks, named)
    notes = ["this reader has not run on a GPU yet"]
    if highest < peak_bytes * (1 - _SLACK):
        notes.append(
            f"the history kept its last {MOST_ENTRIES} entries: it covers an instant of {highest} bytes, "
            f"the peak of {peak_bytes} bytes came before"
        )
    return {
        "version": VERSION,
        "rank": rank,
        "device": "cuda",
        "allocated_bytes": highest,
        "peak_bytes": peak_bytes,
        **rows_of(allocations),
        "notes": notes,
    }
