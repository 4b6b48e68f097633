"""Seconds by activity and phase on the device itself: events in its stream, read when they have passed.

An event is recorded where the activity changes, and never waited for: the events of a step are read at a
later step, when the last of them has passed. What other streams do meanwhile (communication that overlaps)
is not told apart. A step's parts sum to the step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Any, Protocol

from firstbad_probe.activities import Part
from firstbad_probe.components import IDLE

#: More changes than a step of the largest models has; beyond, the last part takes the rest.
MOST_MARKS = 50_000


class EventMaker(Protocol):
    def event(self) -> Any: ...
    def capturing(self) -> bool: ...


class _Step:
    def __init__(self, watched: bool) -> None:
        self.watched = watched
        self.marks: list[tuple[Part, Any]] = []
        self.end: Any = None
        self.host_seconds = 0.0
        self.told: Callable[[float], None] = lambda _: None


class EventClock:
    """The same interface as `activities.Clock`; seconds come later, by callback."""

    def __init__(self, device: EventMaker) -> None:
        self._device = device
        self._free: list[Any] = []
        self._running: Part = (IDLE, "step")
        self._step: _Step | None = None
        self._began = 0.0
        self._waiting: deque[_Step] = deque()
        self.steps: list[dict[Part, float]] = []  #: of the steps that were watched and have been read
        self.unread_steps = 0
        self.captured_marks = 0

    def switch(self, activity: str, phase: str) -> None:
        part = (activity, phase)
        if part == self._running:
            return
        self._running = part
        if self._step is not None and len(self._step.marks) < MOST_MARKS:
            self._mark(self._step)

    def _mark(self, step: _Step) -> None:
        event = self._record()
        if event is not None:
            step.marks.append((self._running, event))

    def _record(self) -> Any:
        if self._device.capturing():
            self.captured_marks += 1
            return None
        event = self._free.pop() if self._free else self._device.event()
        event.record()
        return event

    def start_step(self, *, watched: bool = True) -> None:
        self._began = perf_counter()
        self._step = _Step(watched)
        self._mark(self._step)

    def end_step(self, told: Callable[[float], None]) -> float:
        """Ends the step; `told` is called with its seconds on the device once they are known.

        Answers the host's seconds.
        """
        step, self._step = self._step, None
        if step is None:  # there is no device: nothing was started
            told(0.0)
            return 0.0
        step.host_seconds, step.told = perf_counter() - self._began, told
        step.end = self._record()
        self._waiting.append(step)
        self.collect()
        return step.host_seconds

    def collect(self) -> None:
        """Read the steps whose last event has passed."""
        while self._waiting and (self._waiting[0].end is None or self._waiting[0].end.query()):
            self._read(self._waiting.popleft())

    def give_up(self) -> None:
        """The device does not answer any more: what waits is told by the host's clock."""
        while self._waiting:
            step = self._waiting.popleft()
            self.unread_steps += 1
            step.told(step.host_seconds)

    def _read(self, step: _Step) -> None:
        if step.end is None or not step.marks:
            self.unread_steps += 1
            step.told(step.host_seconds)
            return
        parts: dict[Part, float] = {}
        following = [event for _, event in step.marks[1:]] + [step.end]
        for (part, event), after in zip(step.marks, following, strict=True):
            parts[part] = parts.get(part, 0.0) + event.elapsed_time(after) / 1e3
        self._free += [event for _, event in step.marks] + [step.end]
        if step.watched:
            self.steps.append(parts)
        step.told(sum(parts.values()))

    def steady_mean(self) -> dict[Part, float]:
        """Mean seconds of a watched step by part, without the first, which warms up."""
        steady = self.steps[1:]
        parts = sorted({part for seconds in steady for part in seconds})
        return {part: sum(seconds.get(part, 0.0) for seconds in steady) / len(steady) for part in parts}
