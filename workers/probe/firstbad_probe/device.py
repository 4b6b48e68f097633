"""What the probe asks of a CUDA device: the allocator's counters, events, the limit, memory outside.

The highest allocation between two looks is known only if the counters of peaks are set back at each look.
The job reads the same counters and logs them; so what was set back is kept (`KeptPeaks`) and shown to
whoever asks torch, until the job itself sets the peaks back. Nothing here waits for the device, but
`synchronize`, which is called once, when the job has ended.

Written against torch's documented interfaces; no release of this project has run on a GPU yet.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

Statistics = dict[str, Any]
OutOfMemoryCallback = Callable[[int, int], None]  #: requested bytes, bytes that the device has free

#: The functions of torch._C through which Python reads peaks, and sets them back.
_GATES = (
    ("_cuda_memoryStats", "_cuda_resetPeakMemoryStats"),
    ("_accelerator_getDeviceStats", "_accelerator_resetPeakStats"),
)


class Reading(NamedTuple):
    """The allocator's counters now, and their highest since the look before."""

    allocated_bytes: int
    allocated_peak_bytes: int
    reserved_bytes: int
    reserved_peak_bytes: int


class KeptPeaks:
    """The peaks as the job knows them: the highest since it set them back, whoever else did meanwhile."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], int] = {}

    def keep(self, statistics: Statistics) -> None:
        """Before the counters are set back."""
        kept = self._kept
        for place, pool in _pools(statistics):
            if pool["peak"] > kept.get(place, 0):
                kept[place] = pool["peak"]

    def show(self, statistics: Statistics) -> Statistics:
        """The statistics with the peaks that were kept."""
        for place, pool in _pools(statistics):
            pool["peak"] = max(pool["peak"], self._kept.get(place, 0))
        return statistics

    def forget(self) -> None:
        """The job has set its peaks back."""
        self._kept.clear()


def _pools(statistics: Statistics) -> Iterator[tuple[tuple[str, str], dict[str, int]]]:
    for name, pools in statistics.items():
        if isinstance(pools, dict):
            for pool, values in pools.items():
                if isinstance(values, dict) and "peak" in values:
                    yield (name, pool), values


class CudaDevice:
    """The one device of this rank, from the moment at which the job has chosen it."""

    kind = "cuda"

    def __init__(self) -> None:
        self.index = -1
        self.chosen = False
        self._name = ""  # known before anything fails: a device in error answers nothing
        self._peaks = KeptPeaks()
        self._statistics: Callable[[int], Statistics]
        self._set_back: Callable[[int], None]
        self._highest_since_look = (0, 0)  #: seen where the job set the peaks back between two looks

    def choose(self, capacity_bytes: int | None) -> str:
        """Start on the current device; answers what a reader must know of the capacity, or "".

        Not before the job has chosen: asking any earlier would make a context on the first device.
        """
        self.index = torch.cuda.current_device()
        self._name = torch.cuda.get_device_name(self.index)
        self.chosen = True
        self._statistics = torch._C._cuda_memoryStats
        self._set_back = torch._C._cuda_resetPeakMemoryStats
        for read, set_back in _GATES:
            if hasattr(torch._C, read) and hasattr(torch._C, set_back):
                self._guard(read, set_back)
        if capacity_bytes is None:
            return ""
        total = torch.cuda.get_device_properties(self.index).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, capacity_bytes / total), self.index)
        if capacity_bytes > total:
            return (
                f"the capacity of {capacity_bytes} bytes is more than this device has ({total}): "
                "the device itself is the limit"
            )
        return ""

    def _guard(self, read_name: str, set_back_name: str) -> None:
        read, set_back = getattr(torch._C, read_name), getattr(torch._C, set_back_name)

        @functools.wraps(read)
        def shown(device: int, *rest: Any) -> Statistics:
            statistics: Statistics = read(device, *rest)
            return self._peaks.show(statistics) if device == self.index else statistics

        @functools.wraps(set_back)
        def asked(device: int, *rest: Any) -> None:
            if device == self.index:
                seen = self._look()
                self._highest_since_look = (seen.allocated_peak_bytes, seen.reserved_peak_bytes)
                self._peaks.forget()
            set_back(device, *rest)

        setattr(torch._C, read_name, shown)
        setattr(torch._C, set_back_name, asked)

    def read(self) -> Reading:
        """The counters; their peaks begin anew. Costs some microseconds of the host, none of the device."""
        statistics = self._statistics(self.index)
        self._peaks.keep(statistics)
        reading = self._reading(statistics)
        self._set_back(self.index)
        self._highest_since_look = (0, 0)
        return reading

    def _look(self) -> Reading:
        return self._reading(self._statistics(self.index))

    def _reading(self, statistics: Statistics) -> Reading:
        allocated, reserved = statistics["allocated_bytes"]["all"], statistics["reserved_bytes"]["all"]
        before = self._highest_since_look
        return Reading(
            allocated["current"],
            max(allocated["peak"], before[0]),
            reserved["current"],
            max(reserved["peak"], before[1]),
        )

    def event(self) -> torch.cuda.Event:
        return torch.cuda.Event(enable_timing=True)

    def capturing(self) -> bool:
        """Whether a CUDA graph is being captured: then no event may be recorded, and nothing asked for."""
        return bool(torch.cuda.is_current_stream_capturing())

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.index)

    def name(self) -> str:
        return self._name

    def attach_out_of_memory(self, callback: OutOfMemoryCallback) -> bool:
        """Call back when the allocator refuses, before it raises; False where torch has no such place."""
        attach = getattr(torch._C, "_cuda_attach_out_of_memory_observer", None)
        if attach is None:
            return False

        def refused(device: int, requested: int, _limit: int, free: int) -> None:
            if device == self.index:
                callback(requested, free)

        attach(refused)
        return True

    def largest_free_block(self) -> int | None:
        """Of the memory that the allocator holds; None where it cannot be asked."""
        try:
            segments = torch.cuda.memory_snapshot()
        except Exception:
            return None
        free = [
            block["size"]
            for segment in segments
            if segment.get("device", self.index) == self.index
            for block in segment["blocks"]
            if block["state"] == "inactive"
        ]
        return max(free, default=0)

    def used_bytes(self) -> tuple[int, str]:
        """In use on the device and who says so: this process alone where NVML knows it, else everything."""
        own = _of_this_process(self.index)
        if own is not None:
            return own, "nvml, this process"
        free, total = torch.cuda.mem_get_info(self.index)
        return total - free, "driver, all processes on the device"


def _of_this_process(index: int) -> int | None:
    """NVML's figure for this process; None without its Python package, or in a container that hides it."""
    try:
        import os

        import pynvml  # type: ignore[import-untyped,unused-ignore]

        handle = torch.cuda._get_pynvml_handler(index)  # type: ignore[attr-defined,unused-ignore]
        for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
            if process.pid == os.getpid() and process.usedGpuMemory:
                return int(process.usedGpuMemory)
    except Exception:  # whatever NVML lacks, the driver is asked instead
        return None
    return None
