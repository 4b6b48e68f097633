"""Bytes and seconds by component: the shape that estimates and measurements share.

Here live the words for where memory and time go, and the two breakdowns. No
formula and no measuring belongs here: this is what both sides subtract.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

GIB = 2**30
MIB = 2**20


class Component(StrEnum):
    """The part of the model, or of the machinery around it, that bytes belong to."""

    VISION = "vision"  #: the vision tower: patch and position embedding, its blocks
    PROJECTOR = "projector"  #: what maps vision to language: merger and deepstack mergers
    DECODER = "decoder"  #: attention, dense MLP, norms and residuals of the language model
    EXPERTS = "experts"  #: router, dispatch, routed and shared experts
    EMBEDDING_AND_LOSS = "embedding_and_loss"  #: token embedding, output layer, cross-entropy
    RUNTIME = "runtime"  #: what belongs to no module: communication, workspaces, the allocator


class Category(StrEnum):
    """What the bytes are for."""

    PARAMETERS = "parameters"
    GRADIENTS = "gradients"
    OPTIMIZER_STATES = "optimizer_states"  #: moments and master weights
    ACTIVATIONS = "activations"  #: kept from forward for backward
    TEMPORARY = "temporary"  #: alive within one operation, layer or phase only
    COMMUNICATION = "communication"
    FRAGMENTATION = "fragmentation"  #: reserved minus allocated
    CONTEXT = "context"  #: outside the allocator: CUDA context, NCCL


class Activity(StrEnum):
    """Where the seconds of a step go."""

    VISION = "vision"
    PROJECTOR = "projector"
    DECODER = "decoder"
    EXPERTS = "experts"
    DISPATCH = "dispatch"  #: routing, permutation and the exchange between expert ranks
    EMBEDDING_AND_LOSS = "embedding_and_loss"
    OPTIMIZER = "optimizer"
    DATA = "data"
    IDLE = "idle"  #: in a step, but in none of the above


class Phase(StrEnum):
    """The part of a training step."""

    FORWARD = "forward"
    BACKWARD = "backward"
    STEP = "step"


Cell = tuple[Component, Category]


@dataclass(frozen=True, kw_only=True)
class MemoryBreakdown:
    """Bytes alive at one instant on one rank, by component and category.

    Raises ValueError if a cell is negative. ``total_bytes`` is the sum of the
    cells by construction: there is no second total that could disagree.
    """

    cells: Mapping[Cell, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        negative = {cell: count for cell, count in self.cells.items() if count < 0}
        if negative:
            raise ValueError(f"a memory breakdown has negative bytes: {negative}")

    @property
    def total_bytes(self) -> int:
        return sum(self.cells.values())

    def by_component(self) -> dict[Component, int]:
        """Every component, zeros included, in the order of the enum."""
        sums = dict.fromkeys(Component, 0)
        for (component, _), count in self.cells.items():
            sums[component] += count
        return sums

    def by_category(self) -> dict[Category, int]:
        sums = dict.fromkeys(Category, 0)
        for (_, category), count in self.cells.items():
            sums[category] += count
        return sums

    def minus(self, other: MemoryBreakdown) -> dict[Cell, int]:
        """Signed bytes per cell, self minus other; cells that are equal are left out."""
        cells = sorted(set(self.cells) | set(other.cells))
        deltas = {cell: self.cells.get(cell, 0) - other.cells.get(cell, 0) for cell in cells}
        return {cell: delta for cell, delta in deltas.items() if delta}

    def to_json(self) -> list[dict[str, Any]]:
        return [
            {"component": component.value, "category": category.value, "bytes": count}
            for (component, category), count in sorted(self.cells.items())
            if count
        ]

    @classmethod
    def from_json(cls, rows: Iterable[Mapping[str, Any]]) -> MemoryBreakdown:
        cells: dict[Cell, int] = {}
        for row in rows:
            cell = (Component(row["component"]), Category(row["category"]))
            cells[cell] = cells.get(cell, 0) + int(row["bytes"])
        return cls(cells=cells)


TimeCell = tuple[Activity, Phase]


@dataclass(frozen=True, kw_only=True)
class TimeBreakdown:
    """Seconds of one step (the mean over the steady ones) by activity and phase."""

    cells: Mapping[TimeCell, float] = field(default_factory=dict)

    @property
    def total_seconds(self) -> float:
        return sum(self.cells.values())

    def by_activity(self) -> dict[Activity, float]:
        sums = dict.fromkeys(Activity, 0.0)
        for (activity, _), seconds in self.cells.items():
            sums[activity] += seconds
        return sums

    def to_json(self) -> list[dict[str, Any]]:
        return [
            {"component": activity.value, "phase": phase.value, "seconds": seconds}
            for (activity, phase), seconds in sorted(self.cells.items())
            if seconds
        ]

    @classmethod
    def from_json(cls, rows: Iterable[Mapping[str, Any]]) -> TimeBreakdown:
        cells: dict[TimeCell, float] = {}
        for row in rows:
            cell = (Activity(row["component"]), Phase(row["phase"]))
            cells[cell] = cells.get(cell, 0.0) + float(row["seconds"])
        return cls(cells=cells)
