"""The course of allocated bytes over a run, thinned so that it stays small and keeps its heights.

One point is the highest total while one scope ran. When there are too many,
neighbours merge and the higher one stays.
"""

from __future__ import annotations

from typing import Any

LIMIT = 400

Point = tuple[int, str, str, int]  #: step, phase, instant, allocated bytes


class Timeline:
    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._points: list[Point] = []
        self._open: Point | None = None

    def see(self, step: int, phase: str, path: str, allocated_bytes: int) -> None:
        last = self._open
        if last is None or last[2] != path or last[1] != phase or last[0] != step:
            if last is not None:
                self._append(last)
            self._open = (step, phase, path, allocated_bytes)
        elif allocated_bytes > last[3]:
            self._open = (step, phase, path, allocated_bytes)

    def _append(self, point: Point) -> None:
        self._points.append(point)
        # Twice the limit, so that merging is rare.
        if len(self._points) >= 2 * self._limit:
            self._points = _merged(self._points)

    def to_json(self) -> list[dict[str, Any]]:
        points = [*self._points, self._open] if self._open else list(self._points)
        while len(points) > self._limit:
            points = _merged(points)
        return [
            {"step": step, "phase": phase, "instant": f"{path} {phase}", "allocated_bytes": size}
            for step, phase, path, size in points
        ]


def _merged(points: list[Point]) -> list[Point]:
    return [max(points[i : i + 2], key=lambda point: point[3]) for i in range(0, len(points), 2)]
