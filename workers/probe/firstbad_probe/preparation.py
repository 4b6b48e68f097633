"""What a step prepares for later ones: graphs that torch compiles, and CUDA graphs that are captured.

Such a step takes longer than those that only run. Counted from torch's own counters and by a wrapper
around the end of a capture; a release without them counts nothing.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch


class Preparations:
    """Counts from step to step, on this rank."""

    def __init__(self) -> None:
        self._captured = 0
        self._taken = 0
        self._watch_captures()

    def take(self) -> int:
        """How many there were since the last time."""
        total = self._captured + _compiled()
        taken, self._taken = total - self._taken, total
        # A job may set torch's counters back.
        return max(0, taken)

    def _watch_captures(self) -> None:
        graph_class = getattr(torch.cuda, "CUDAGraph", None)
        end = getattr(graph_class, "capture_end", None)
        if end is None:
            return

        @functools.wraps(end)
        def capture_end(*args: Any, **keywords: Any) -> Any:
            self._captured += 1
            return end(*args, **keywords)

        graph_class.capture_end = capture_end


def _compiled() -> int:
    """Graphs that torch.compile has made so far; 0 where nothing has imported its compiler."""
    utilities = sys.modules.get("torch._dynamo.utils")
    counters = getattr(utilities, "counters", None)
    return int(counters["stats"]["unique_graphs"]) if counters is not None else 0
