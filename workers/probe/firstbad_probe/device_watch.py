"""The cheap mode on a GPU: looks at the allocator's counters, events in the stream, refusals, and its price.

A look is a read of counters on the host; nothing waits for the device. What the looks cost is measured, and
once they take more than `HOST_SHARE` of the steps, only every so many-th step is watched by component.
Peaks by step and phase are exact in every step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from time import perf_counter
from typing import Any, Protocol

from firstbad_probe.components import OUTSIDE, Scope
from firstbad_probe.counted_bytes import CountedBytes
from firstbad_probe.device import OutOfMemoryCallback, Reading
from firstbad_probe.event_clock import EventClock, EventMaker
from firstbad_probe.handovers import Handovers
from firstbad_probe.live_bytes import LiveBytes
from firstbad_probe.timeline import Timeline

#: Of a step's time on the host; half of the 2 % that the cheap mode may cost, since module hooks cost too.
HOST_SHARE = 0.01
#: The first warms up, the second is the first with optimizer states.
ALWAYS_WATCHED = 2
_MOST_REFUSALS = 20


class Device(EventMaker, Protocol):
    """A CUDA device, or what stands for one where there is none."""

    kind: str
    chosen: bool

    def choose(self, capacity_bytes: int | None) -> str: ...
    def read(self) -> Reading: ...
    def synchronize(self) -> None: ...
    def name(self) -> str: ...
    def attach_out_of_memory(self, callback: OutOfMemoryCallback) -> bool: ...
    def largest_free_block(self) -> int | None: ...
    def used_bytes(self) -> tuple[int, str]: ...


class DeviceWatch:
    """What one rank's device does, step by step."""

    def __init__(
        self, device: Device, owned: LiveBytes, timeline: Timeline, settle: Callable[[], None]
    ) -> None:
        self.device = device
        self.clock = EventClock(device)
        self.counted = CountedBytes(owned, timeline)
        self._settle = settle
        self.handovers: Handovers | None = None
        self.watched = True  #: this step by component
        self.step = 0
        self.looks = 0
        self.watched_steps = 0
        self.host_share = 0.0  #: of the last watched step
        self.refusals: list[dict[str, Any]] = []
        self.outside_bytes: int | None = None  #: in use on the device beyond the allocator, the most
        self.outside_source = ""
        self.unseen: list[str] = []
        self._own_seconds = 0.0
        self._period = 1
        self._where: Callable[[], tuple[Scope, str]] = lambda: (OUTSIDE, "build")
        self._capacity_bytes: int | None = None

    def choose(self, capacity_bytes: int | None, where: Callable[[], tuple[Scope, str]]) -> None:
        """Once the job has chosen its device. `where` tells the scope and phase that run."""
        if self.device.chosen:
            return
        self._where, self._capacity_bytes = where, capacity_bytes
        note = self.device.choose(capacity_bytes)
        if note:
            self.unseen.append(note)
        if not self.device.attach_out_of_memory(self._refused):
            self.unseen.append("this torch has no observer for refused allocations")
        self._settle()
        self.counted.start(self.device.read())

    def look(self, scope: Scope, phase: str) -> None:
        """This scope ran until now."""
        if not self.device.chosen:
            return
        started = perf_counter()
        self._settle()
        died = self.handovers.take_dead() if self.handovers is not None else None
        self.counted.close(self.device.read(), scope, phase, self.step, died=died, attributed=self.watched)
        self.looks += 1
        self._own_seconds += perf_counter() - started

    def start_step(self) -> None:
        self.watched = self.step < ALWAYS_WATCHED or self.step % self._period == 0
        self.watched_steps += self.watched
        self._own_seconds = 0.0
        self.counted.take_phases()
        if self.device.chosen:
            self.clock.start_step(watched=self.watched)

    def end_step(self, told: Callable[[float], None]) -> dict[str, Any]:
        """The step's peaks; `told` is called with its seconds when they are known."""
        host_seconds = self.clock.end_step(told)
        if self.watched and self.step and host_seconds:
            self.host_share = self._own_seconds / host_seconds
            self._period = max(1, math.ceil(self.host_share / HOST_SHARE))
        phases = self.counted.take_phases()
        self.counted.settle_step()
        row: dict[str, Any] = {
            "peak_bytes": max((phase["peak_bytes"] for phase in phases), default=0),
            "reserved_bytes": max((phase["reserved_bytes"] for phase in phases), default=0),
            "retained_bytes": self.counted.allocated_bytes,
            "phases": phases,
        }
        self._look_outside()
        self.step += 1
        return row

    def _look_outside(self) -> None:
        try:
            used, source = self.device.used_bytes()
        except Exception as error:
            if not self.outside_source:
                self.unseen.append(f"memory outside the allocator: {type(error).__name__}: {error}")
                self.outside_source = "not known"
            return
        outside = max(0, used - self.counted.reserved_bytes)
        self.outside_bytes = max(outside, self.outside_bytes or 0)
        self.outside_source = source

    def _refused(self, requested_bytes: int, free_bytes: int) -> None:
        """The allocator will raise after this: an error from here would take the place of its own."""
        if len(self.refusals) >= _MOST_REFUSALS:
            return
        try:
            self._record_refusal(requested_bytes, free_bytes)
        except Exception as error:
            self.unseen.append(f"a refused allocation: {type(error).__name__}: {error}")

    def _record_refusal(self, requested_bytes: int, free_bytes: int) -> None:
        scope, phase = self._where()
        self._settle()
        reading = self.device.read()
        self.counted.close(reading, scope, phase, self.step, attributed=self.watched)
        self.refusals.append(
            {
                "component": scope.component,
                "path": scope.path,
                "phase": phase,
                "step": self.step,
                "requested_bytes": requested_bytes,
                "allocated_bytes": reading.allocated_bytes,
                "reserved_bytes": reading.reserved_bytes,
                "largest_free_block_bytes": self.device.largest_free_block(),
                "device_free_bytes": free_bytes,
                "capacity_bytes": self._capacity_bytes,
            }
        )

    def finish(self) -> None:
        """The job has ended: wait for the device, once, and read what is left."""
        if not self.device.chosen:
            self.unseen.append("the job chose no device that the probe could see")
            return
        try:
            self.device.synchronize()
            self.clock.collect()
        except Exception as error:  # after an error of the device nothing on it answers
            self.unseen.append(f"the device did not answer at the end: {type(error).__name__}")
        self.clock.give_up()
        if self.clock.unread_steps:
            self.unseen.append(
                f"the seconds of {self.clock.unread_steps} steps are the host's: their events were not read"
            )
        if self.clock.captured_marks:
            self.unseen.append(
                "CUDA graphs were captured: inside of them time is not told by component, and a replay "
                "allocates nothing that the counters see"
            )
        if self.counted.misplaced_bytes:
            self.unseen.append(
                f"{self.counted.misplaced_bytes} bytes of the peak were freed by another component than the "
                "one that made them: so much may be in a wrong row"
            )

    def to_json(self) -> dict[str, Any]:
        return {
            "steps_watched": self.watched_steps,
            "looks": self.looks,
            "host_share": round(self.host_share, 5),
            "misplaced_bytes": self.counted.misplaced_bytes,
            "outside_bytes": self.outside_bytes,
            "outside_source": self.outside_source,
        }
