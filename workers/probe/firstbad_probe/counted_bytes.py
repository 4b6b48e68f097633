"""Bytes by component from counters alone: which scope ran while the allocator's figure moved.

Pure arithmetic. Between two looks one scope runs. What the figure grew by in that time, beyond the tensors
whose owner is known, is kept by that scope's component; what it rose to and fell from again was temporary
there. Every byte sits in one cell, so that the cells of a summit sum to the allocator's own peak.

What one module hands to another is followed (`handovers`). Inexact where a component frees what another one
made and nobody saw handed over: its count falls below zero. That much is taken from those that keep most, and
is told as `misplaced_bytes`; after each step the counts are settled so, and do not drift.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from firstbad_probe import live_bytes
from firstbad_probe.components import RUNTIME, Scope
from firstbad_probe.device import Reading
from firstbad_probe.live_bytes import Cell, LiveBytes, Summit
from firstbad_probe.scopes import BUILD
from firstbad_probe.timeline import Timeline

_UNATTRIBUTED: Cell = (RUNTIME, live_bytes.TEMPORARY)


class PhasePeak:
    """The highest of one phase of one step."""

    __slots__ = ("allocated_bytes", "reserved_bytes")

    def __init__(self) -> None:
        self.allocated_bytes = 0
        self.reserved_bytes = 0


class CountedBytes:
    """The running counts. `owned` holds the tensors whose owner is known, by cell."""

    def __init__(self, owned: LiveBytes, timeline: Timeline) -> None:
        self._owned = owned
        self._timeline = timeline
        self._kept: dict[str, int] = {}  #: component to bytes beyond the owned ones
        self._unowned_bytes = 0
        self._owned_before: dict[Cell, int] = {}  #: at the look before
        self.allocated_bytes = 0
        self.reserved_bytes = 0
        self.reserved: dict[str, int] = {}  #: by phase, at its summit
        self.phases: dict[str, PhasePeak] = {}  #: of this step
        self.misplaced_bytes = 0  #: at the highest summit
        self.highest_bytes = 0
        self.reserved_peak_bytes = 0

    def start(self, reading: Reading) -> None:
        self.allocated_bytes, self.reserved_bytes = reading.allocated_bytes, reading.reserved_bytes
        self._unowned_bytes = reading.allocated_bytes - self._owned.total_bytes
        self._kept = {RUNTIME: self._unowned_bytes}
        self._owned_before = dict(self._owned.cells)

    def close(
        self,
        reading: Reading,
        scope: Scope,
        phase: str,
        step: int,
        *,
        died: Mapping[str, int] | None = None,
        attributed: bool = True,
    ) -> None:
        """The time since the look before, in which this scope ran.

        `died` tells, by the component that made them, the bytes of tensors that were handed over and are
        gone now. Not `attributed`: several scopes ran, and none of them is known.
        """
        component = RUNTIME if phase == BUILD or not attributed else scope.component
        height = reading.allocated_peak_bytes
        highest = self.phases.setdefault(phase, PhasePeak())
        highest.allocated_bytes = max(highest.allocated_bytes, height)
        highest.reserved_bytes = max(highest.reserved_bytes, reading.reserved_peak_bytes)
        self.reserved_peak_bytes = max(self.reserved_peak_bytes, reading.reserved_peak_bytes)
        summit = self._owned.summits.get(phase)
        if summit is None or height > summit.allocated_bytes:
            self._remember(reading, component, scope, phase, step, attributed)
        self._timeline.see(step, phase, scope.path, height)
        unowned = reading.allocated_bytes - self._owned.total_bytes
        self._grow(component, unowned - self._unowned_bytes)
        for maker, size in (died or {}).items():
            self._grow(maker, -size)
            self._grow(component, size)
        self._unowned_bytes = unowned
        self._owned_before = dict(self._owned.cells)
        self.allocated_bytes, self.reserved_bytes = reading.allocated_bytes, reading.reserved_bytes

    def _grow(self, component: str, size_bytes: int) -> None:
        self._kept[component] = self._kept.get(component, 0) + size_bytes

    def _remember(
        self, reading: Reading, component: str, scope: Scope, phase: str, step: int, attributed: bool
    ) -> None:
        height = reading.allocated_peak_bytes
        cells, misplaced = self._cells(component, height)
        where = scope.path if attributed else "not watched"
        self._owned.summits[phase] = Summit(
            height, cells, serial=-1, step=step, phase=phase, instant=f"{where} {phase}"
        )
        self.reserved[phase] = reading.reserved_peak_bytes
        if height > self.highest_bytes:
            self.highest_bytes, self.misplaced_bytes = height, misplaced

    def _cells(self, component: str, height: int) -> tuple[dict[Cell, int], int]:
        """Cells that sum to the height, reached while this component ran, and what was misplaced."""
        # Of tensors that came or went meanwhile, nobody knows whether before the height or after it.
        now = self._owned.cells
        cells = {
            cell: max(now.get(cell, 0), self._owned_before.get(cell, 0))
            for cell in {*now, *self._owned_before}
        }
        for name, kept in self._kept.items():
            cell = (name, live_bytes.ACTIVATIONS) if name != RUNTIME else _UNATTRIBUTED
            cells[cell] = cells.get(cell, 0) + kept
        passing: Cell = (component, live_bytes.TEMPORARY)
        cells[passing] = cells.get(passing, 0) + height - sum(cells.values())
        return _settled(cells)

    def settle_step(self) -> None:
        """What a step frees at the wrong component must not be missing there in the next."""
        missing = -sum(kept for kept in self._kept.values() if kept < 0)
        settled = {name: kept for name, kept in self._kept.items() if kept > 0}
        for name in sorted(settled, key=lambda name: (name == RUNTIME, -settled[name])):
            taken = min(missing, settled[name])
            settled[name] -= taken
            missing -= taken
        settled[RUNTIME] = settled.get(RUNTIME, 0) - missing
        self._kept = settled

    def held(self) -> dict[Cell, int]:
        """What is alive now, by cell."""
        return self._cells(RUNTIME, self.allocated_bytes)[0]

    def take_phases(self) -> list[dict[str, Any]]:
        """The peaks of the step's phases; the next step's begin."""
        taken, self.phases = self.phases, {}
        return [
            {
                "phase": phase,
                "peak_bytes": peak.allocated_bytes,
                "reserved_bytes": peak.reserved_bytes,
            }
            for phase, peak in taken.items()
        ]


def _settled(cells: Mapping[Cell, int]) -> tuple[dict[Cell, int], int]:
    """The cells without negative ones: those are taken from what is kept or passes, the largest first."""
    settled = {cell: size for cell, size in cells.items() if size > 0}
    missing = misplaced = -sum(size for size in cells.values() if size < 0)
    for cell in sorted(settled, key=lambda cell: (cell[1] in _KNOWN, cell[0] == RUNTIME, -settled[cell])):
        taken = min(missing, settled[cell])
        settled[cell] -= taken
        missing -= taken
    return {cell: size for cell, size in settled.items() if size}, misplaced


#: Categories of tensors whose owner is known: they are the last to give way.
_KNOWN = frozenset({live_bytes.PARAMETERS, live_bytes.GRADIENTS, live_bytes.OPTIMIZER_STATES})
