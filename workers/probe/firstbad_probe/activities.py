"""Seconds by activity and phase: one clock that is always running for exactly one of them.

What an activity is, is told by the scope; the clock only adds up. The parts of
a step sum to the step, because no instant is outside every part.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from time import perf_counter

from firstbad_probe.components import IDLE

Part = tuple[str, str]  #: activity and phase


def undisturbed() -> Callable[[], float]:
    """A clock in seconds that stands still while the main thread waits for a processor that others use.

    Time asleep (for data, for another rank) counts. The kernel tells the waiting in its scheduler
    statistics of the process, of which the second number is nanoseconds on the run queue; where it
    does not, this is the plain clock. For training on a shared CPU only: on a GPU's host, waiting for
    a processor is part of the step.
    """
    try:
        statistics = os.open("/proc/self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        int(os.pread(statistics, 100, 0).split()[1])
    except (OSError, ValueError, IndexError):
        return perf_counter

    latest = 0.0

    def now() -> float:
        nonlocal latest
        # The two are not read at one instant: between them the thread may have waited.
        latest = max(latest, perf_counter() - int(os.pread(statistics, 100, 0).split()[1]) / 1e9)
        return latest

    return now


class Clock:
    """Adds the time since the last switch to whatever ran until now."""

    def __init__(self, now: Callable[[], float] = perf_counter) -> None:
        self._now = now
        self._running: Part = (IDLE, "step")
        self._since = now()
        self._seconds: dict[Part, float] = {}
        self.steps: list[dict[Part, float]] = []

    def switch(self, activity: str, phase: str) -> None:
        part = (activity, phase)
        if part != self._running:
            self._close()
            self._running = part

    def _close(self) -> None:
        now = self._now()
        self._seconds[self._running] = self._seconds.get(self._running, 0.0) + now - self._since
        self._since = now

    def start_step(self) -> None:
        self._since = self._now()
        self._seconds = {}

    def end_step(self) -> float:
        """The seconds of the step, which are the sum of its parts."""
        self._close()
        self.steps.append(self._seconds)
        return sum(self._seconds.values())

    def steady_mean(self) -> dict[Part, float]:
        """Mean seconds of a step by part, without the first step, which warms up."""
        steady = self.steps[1:]
        parts = sorted({part for seconds in steady for part in seconds})
        return {part: sum(seconds.get(part, 0.0) for seconds in steady) / len(steady) for part in parts}
