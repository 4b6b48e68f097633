"""One process a pipeline stage, forked when everything is imported and nothing is built."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence


def stages_of(ranks: Sequence[int], parallel: int) -> int:
    """Answers the rank that this process is to be; returns once in each of the forked processes too.

    The first rank stays with the process that called, which waits for the others before it goes on
    itself, ``parallel`` at a time: their records are complete when this process ends. How a stage
    ended is in its record, not in an exit code.
    """
    first, *others = ranks
    running: list[int] = []
    for rank in others:
        while len(running) >= parallel:
            _wait(running)
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            return rank
        running.append(child)
    while running:
        _wait(running)
    return first


def _wait(running: list[int]) -> None:
    ended, _ = os.wait()
    if ended in running:
        running.remove(ended)
