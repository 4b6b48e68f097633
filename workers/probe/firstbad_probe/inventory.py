"""The storages behind the figures, one by one: who made each, in which operation, and how large it is.

Kept only where a run asks for it (FIRSTBAD_LIST_STORAGES=1): of the highest instant of every phase, and of
the widest moment at which forward has ended and backward begins, when all that forward keeps is there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from firstbad_probe.live_bytes import Block, LiveBytes

Origin = tuple[str, str, str]  #: path of the module, phase, operation
_Row = tuple[Origin, str, str, int]


class Inventory:
    """Remembers which blocks were alive at these moments."""

    def __init__(self, live: LiveBytes) -> None:
        self._live = live
        self._gone: dict[str, list[Block]] = {}  #: by phase: were alive at its summit, and are not now
        self._handed_over: list[Block] = []
        self._handed_over_bytes = 0

    def at_summit(self, phase: str) -> None:
        self._gone[phase] = []

    def died(self, block: Block) -> None:
        for phase, gone in self._gone.items():
            if block.serial <= self._live.summits[phase].serial:
                gone.append(block)

    def forward_ended(self, alive: Iterable[Block]) -> None:
        if self._live.total_bytes > self._handed_over_bytes:
            self._handed_over_bytes = self._live.total_bytes
            self._handed_over = list(alive)

    def behind(self, phase: str, alive: Iterable[Block]) -> list[Block]:
        """The blocks behind the summit of a phase; `alive` holds those that are there now."""
        serial = self._live.summits[phase].serial
        return [*(block for block in alive if block.serial <= serial), *self._gone[phase]]

    def to_json(self, alive: Iterable[Block]) -> dict[str, Any]:
        """Storages that are alike share a row; the rows of a phase sum to the cells of its summit."""
        present = list(alive)
        listed = {phase: _rows(self.behind(phase, present)) for phase in self._gone}
        return {"summits": listed, "start_of_backward": _rows(self._handed_over)}


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
