"""Arithmetic of what is alive: bytes by cell, their peak, and the capacity.

Pure bookkeeping on numbers; which tensor stands behind them is the business of
`storages`. Every byte sits in exactly one cell, so that the cells sum to the
total at any instant.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

PARAMETERS = "parameters"
GRADIENTS = "gradients"
OPTIMIZER_STATES = "optimizer_states"
ACTIVATIONS = "activations"
TEMPORARY = "temporary"
COMMUNICATION = "communication"

#: The caching allocator of CUDA hands out multiples of this many bytes.
ROUNDING_BYTES = 512

Cell = tuple[str, str]  #: component and category
Parts = tuple[tuple[Cell, int], ...]


def rounded(size_bytes: int) -> int:
    return -(-size_bytes // ROUNDING_BYTES) * ROUNDING_BYTES


def shared(total_bytes: int, shares: dict[Cell, int], remainder: Cell) -> Parts:
    """Split bytes into the given exact shares; what is left over goes to the remainder's cell."""
    left = total_bytes - sum(shares.values())
    assert left >= 0, f"shares of {shares} exceed the {total_bytes} bytes that they share"
    parts = [(cell, share) for cell, share in shares.items() if share]
    if left:
        parts.append((remainder, left))
    return tuple(parts)


class Block:
    """One live allocation."""

    __slots__ = ("alive", "frames", "interval", "origin", "parts", "reference", "serial", "size_bytes")

    def __init__(self, size_bytes: int, parts: Parts, serial: int, interval: int) -> None:
        self.size_bytes = size_bytes
        self.parts = parts
        self.serial = serial  #: allocations are numbered; the peak remembers how far the count was
        self.interval = interval  #: the run of one phase in which it was made
        self.reference: Any = None
        self.alive = True
        self.frames: tuple[dict[str, Any], ...] = ()  #: of the code that made it, if asked for
        self.origin = ("", "", "")  #: path of the module, phase and operation that made it, if asked for


@dataclass
class Summit:
    """The highest total of a phase so far and what it consisted of."""

    allocated_bytes: int = 0
    cells: dict[Cell, int] = field(default_factory=dict)
    serial: int = -1
    step: int = 0
    phase: str = "build"
    instant: str = ""


_NOTHING = Summit()


class LiveBytes:
    """The running totals.

    A block that turns out to be something else (an optimizer state, a buffer
    that several components share, an activation that did not live until
    backward) is moved to its true cell, also within the remembered summits at
    which it was alive.
    """

    def __init__(self) -> None:
        self.cells: dict[Cell, int] = {}
        self.total_bytes = 0
        self.interval = 0
        self.summits: dict[str, Summit] = {}  #: by phase, the highest of the run so far
        self.step_peak_bytes = 0
        self._serial = 0

    def add(self, size_bytes: int, parts: Parts) -> Block:
        self._serial += 1
        block = Block(size_bytes, parts, self._serial, self.interval)
        _put(self.cells, parts, 1)
        self.total_bytes += size_bytes
        if self.total_bytes > self.step_peak_bytes:
            self.step_peak_bytes = self.total_bytes
        return block

    @property
    def peak(self) -> Summit:
        """The highest of the summits; the first to be reached, if several are equally high."""
        return max(self.summits.values(), key=lambda summit: summit.allocated_bytes, default=_NOTHING)

    @property
    def at_new_peak(self) -> bool:
        return self.total_bytes > self.peak.allocated_bytes

    def at_new_summit(self, phase: str) -> bool:
        return self.total_bytes > self.summits.get(phase, _NOTHING).allocated_bytes

    def remember_summit(self, *, step: int, phase: str, instant: str) -> None:
        self.summits[phase] = Summit(self.total_bytes, dict(self.cells), self._serial, step, phase, instant)

    def remove(self, block: Block) -> None:
        """Activations that die in the very phase that made them were temporary: say so in the summits."""
        if block.interval == self.interval and any(
            block.serial <= summit.serial for summit in self.summits.values()
        ):
            settled = tuple(
                ((component, TEMPORARY if category == ACTIVATIONS else category), size)
                for (component, category), size in block.parts
            )
            self.move(block, settled)
        _put(self.cells, block.parts, -1)
        self.total_bytes -= block.size_bytes
        block.alive = False

    def move(self, block: Block, parts: Parts) -> None:
        """Write the block to other cells, now and in each summit at which it was alive."""
        if parts == block.parts:
            return
        assert sum(size for _, size in parts) == block.size_bytes, f"{parts} is not {block.size_bytes} bytes"
        _put(self.cells, block.parts, -1)
        _put(self.cells, parts, 1)
        for summit in self.summits.values():
            if block.serial <= summit.serial:
                _put(summit.cells, block.parts, -1)
                _put(summit.cells, parts, 1)
        block.parts = parts

    def start_step(self) -> None:
        self.step_peak_bytes = self.total_bytes


def _put(cells: dict[Cell, int], parts: Parts, sign: int) -> None:
    for cell, size in parts:
        cells[cell] = cells.get(cell, 0) + sign * size
