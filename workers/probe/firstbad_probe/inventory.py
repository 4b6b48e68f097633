"""The storages behind the figures, one by one: who made each, in which operation, and how large it is.

Kept only where a run asks for it (FIRSTBAD_LIST_STORAGES=1), for two moments: the peak, and the widest
of those at which forward has ended and backward begins, when all that forward keeps is there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from firstbad_probe.live_bytes import Block, LiveBytes

Origin = tuple[str, str, str]  #: path of the module, phase, operation
_Row = tuple[Origin, str, str, int]


class Inventory:
    """Remembers which blocks were alive at the two moments."""

    def __init__(self, live: LiveBytes) -> None:
        self._live = live
        self._gone: list[Block] = []  #: were alive at the peak, and are not now
        self._forward: list[Block] = []
        self._forward_bytes = 0

    def peak_moved(self) -> None:
        self._gone.clear()

    def died(self, block: Block) -> None:
        if block.serial <= self._live.peak.serial:
            self._gone.append(block)

    def forward_ended(self, alive: Iterable[Block]) -> None:
        if self._live.total_bytes > self._forward_bytes:
            self._forward_bytes = self._live.total_bytes
            self._forward = list(alive)

    def to_json(self, alive: Iterable[Block]) -> dict[str, Any]:
        """Both moments; storages that are alike share a row, and the rows of the peak sum to its cells."""
        at_peak = [block for block in alive if block.serial <= self._live.peak.serial]
        return {
            "peak": _rows([*at_peak, *self._gone]),
            "start_of_backward": _rows(self._forward),
        }


def _rows(blocks: Iterable[Block]) -> list[dict[str, Any]]:
    counts: Counter[_Row] = Counter()
    for block in blocks:
        for (component, category), size in block.parts:
            counts[block.origin, component, category, size] += 1
    return [
        {
            "path": path,
            "phase": phase,
            "operation": operation,
            "component": component,
            "category": category,
            "bytes": size,
            "count": count,
        }
        for ((path, phase, operation), component, category, size), count in sorted(
            counts.items(), key=lambda item: (-item[0][3] * item[1], item[0])
        )
    ]
