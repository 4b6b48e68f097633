"""Totals of a GPU's own allocator, where operations are not followed one by one.

The long-lived storages are known by label; all the rest of the peak is one cell
of the runtime, not attributed to a component. Written against torch's
documented memory statistics and NOT RUN ON A GPU YET: every record says so.
"""

from __future__ import annotations

import torch

from firstbad_probe import live_bytes
from firstbad_probe.components import RUNTIME
from firstbad_probe.live_bytes import LiveBytes
from firstbad_probe.scopes import STEP

NOTE = (
    "on a GPU this probe attributes parameters, gradients and optimizer states only; the rest of the peak "
    "is one total, without time by component, and this path has not been run on a GPU yet"
)


class AllocatorTotals:
    """Peak and retained bytes of each step on the current CUDA device."""

    def __init__(self, capacity_bytes: int | None) -> None:
        self._capacity_bytes = capacity_bytes
        self.reserved_bytes = 0  #: at the peak of the highest step

    def start(self) -> None:
        if self._capacity_bytes is not None:
            total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, self._capacity_bytes / total))

    def start_step(self) -> None:
        torch.cuda.reset_peak_memory_stats()

    def end_step(self, live: LiveBytes, step: int) -> tuple[int, int]:
        """Peak and retained bytes of the step; the highest step is remembered as the peak."""
        torch.cuda.synchronize()
        peak_bytes = torch.cuda.max_memory_allocated()
        if peak_bytes > self._highest(live):
            self.reserved_bytes = torch.cuda.max_memory_reserved()
            cells = {cell: size for cell, size in live.cells.items() if size}
            rest = (RUNTIME, live_bytes.TEMPORARY)
            cells[rest] = cells.get(rest, 0) + max(0, peak_bytes - sum(cells.values()))
            live.summits[STEP] = live_bytes.Summit(
                allocated_bytes=sum(cells.values()),
                cells=cells,
                step=step,
                phase=STEP,
                instant="not known on a GPU",
            )
        return peak_bytes, torch.cuda.memory_allocated()

    def _highest(self, live: LiveBytes) -> int:
        return live.peak.allocated_bytes if self.reserved_bytes else 0
