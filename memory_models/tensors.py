"""The words of an estimate: a named part of memory, a kept activation, an instant.

No formula belongs here; every formula module returns these.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from memory_models.breakdown import Category, Cell, Component, MemoryBreakdown


@dataclass(frozen=True, kw_only=True)
class Part:
    """Bytes of one kind of tensor on one rank, and the formula that they follow from."""

    component: Component
    category: Category
    tensor: str
    formula: str
    bytes: int

    def to_json(self) -> dict[str, Any]:
        return {
            "component": self.component.value,
            "category": self.category.value,
            "tensor": self.tensor,
            "formula": self.formula,
            "bytes": self.bytes,
        }


@dataclass(frozen=True, slots=True)
class Kept:
    """A tensor that the forward pass keeps for backward, once per micro-batch in flight.

    ``module`` is the selective-recompute module that drops it, if any. ``for_weight`` is True
    where only the gradient of a weight of its own component needs it, so that it goes when
    that component is frozen. ``offload`` is the module whose input it is, by the name that
    fine-grained offloading gives it.
    """

    component: Component
    tensor: str
    formula: str
    bytes: int
    module: str = ""
    for_weight: bool = False
    offload: str = ""


@dataclass(frozen=True, kw_only=True)
class Instant:
    """What is alive on one rank at one moment of the step."""

    name: str  #: e.g. "loss forward", "layer backward", "optimizer step"
    first_step: bool  #: before the optimizer made its moments
    parts: tuple[Part, ...]

    @cached_property
    def total_bytes(self) -> int:
        return sum(part.bytes for part in self.parts)

    @property
    def breakdown(self) -> MemoryBreakdown:
        return MemoryBreakdown(cells=cells(self.parts))

    def to_json(self) -> dict[str, Any]:
        return {
            "instant": self.name,
            "first_step": self.first_step,
            "total_bytes": self.total_bytes,
            "breakdown": self.breakdown.to_json(),
        }


def cells(parts: Iterable[Part]) -> dict[Cell, int]:
    """The parts summed by component and category."""
    sums: dict[Cell, int] = {}
    for part in parts:
        cell = (part.component, part.category)
        sums[cell] = sums.get(cell, 0) + part.bytes
    return sums
