"""A CUDA device for a machine that has none: live tensors stand for allocations, the host's clock for events.

What the cheap mode finds on it can be held against `storages`, which follows every operation of the same
run. It has no fragmentation and no kernels that run later; a figure made with it is a simulated one.
"""

from __future__ import annotations

from time import perf_counter

from firstbad_probe.activities import Clock
from firstbad_probe.components import Scope
from firstbad_probe.device import OutOfMemoryCallback, Reading, Statistics
from firstbad_probe.scopes import FORWARD, Scopes
from firstbad_probe.storages import Storages
from firstbad_probe.timeline import Timeline

_SEGMENT_BYTES = 2 * 2**20  #: the caching allocator's smallest request to CUDA


class HostEvent:
    """An event that has passed as soon as it is recorded."""

    seconds = 0.0

    def record(self) -> None:
        self.seconds = perf_counter()

    def query(self) -> bool:
        return True

    def elapsed_time(self, later: HostEvent) -> float:
        return (later.seconds - self.seconds) * 1e3


class _Refusing(Storages):
    callback: OutOfMemoryCallback | None = None

    def _refuse(self, scope: Scope, size_bytes: int) -> None:
        if self.callback is not None and self.capacity_bytes is not None:
            self.callback(size_bytes, self.capacity_bytes - self.live.total_bytes)
        super()._refuse(scope, size_bytes)


class SimulatedDevice:
    """Counts the tensors that are made on the host from `choose` on."""

    kind = "simulated"

    def __init__(self) -> None:
        self.chosen = False
        self.captures = False  #: say that a CUDA graph is being captured
        scopes = Scopes(Clock())
        scopes.phase = FORWARD  # under construction, each storage would be asked for its constructors
        self._storages = _Refusing(scopes, Timeline())
        self._reserved_bytes = 0

    def choose(self, capacity_bytes: int | None) -> str:
        self.chosen = True
        self._storages.capacity_bytes = capacity_bytes
        self._storages.start()
        return ""

    def stop(self) -> None:
        self._storages.stop()

    def read(self) -> Reading:
        self._storages.settle()
        live = self._storages.live
        peak = max(live.step_peak_bytes, live.total_bytes)
        segments = -(-peak // _SEGMENT_BYTES) * _SEGMENT_BYTES
        self._reserved_bytes = max(self._reserved_bytes, segments)
        live.start_step()
        return Reading(live.total_bytes, peak, self._reserved_bytes, self._reserved_bytes)

    def statistics(self, _index: int = 0) -> Statistics:
        """As torch's allocator gives them, without setting anything back."""
        self._storages.settle()
        live = self._storages.live
        current = live.total_bytes
        allocated = {"current": current, "peak": max(live.step_peak_bytes, current)}
        return {
            "allocated_bytes": {"all": dict(allocated)},
            "reserved_bytes": {"all": dict(allocated)},
            "num_ooms": 0,
        }

    def set_back(self, _index: int = 0) -> None:
        self._storages.settle()
        self._storages.live.start_step()

    def event(self) -> HostEvent:
        return HostEvent()

    def capturing(self) -> bool:
        return self.captures

    def synchronize(self) -> None:
        """Nothing runs later."""

    def name(self) -> str:
        return "a simulated device on this CPU"

    def attach_out_of_memory(self, callback: OutOfMemoryCallback) -> bool:
        self._storages.callback = callback
        return True

    def largest_free_block(self) -> int | None:
        return None

    def used_bytes(self) -> tuple[int, str]:
        return self._reserved_bytes, "simulated"
