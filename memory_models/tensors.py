"""The words of an estimate: a named part of memory, a kept activation, a bundle of them, an instant.

No formula belongs here; every formula module returns these. A search wants sums and an answer wants
names, so a bundle knows its sum and joins its tensors only when somebody looks at them.
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
    fine-grained offloading gives it. ``spent`` is True where backward has used it up before its
    half of the layer is at its widest, ``lasting`` where it stays when that half's backward is over.
    """

    component: Component
    tensor: str
    formula: str
    bytes: int
    module: str = ""
    for_weight: bool = False
    offload: str = ""
    spent: bool = False
    lasting: bool = False

    def part(self, category: Category, count: int = 1) -> Part:
        """This tensor as part of an estimate, ``count`` micro-batches of it."""
        return Part(
            component=self.component,
            category=category,
            tensor=self.tensor,
            formula=self.formula if count == 1 else f"{count} in flight*({self.formula})",
            bytes=self.bytes * count,
        )


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


class Half:
    """What half a layer keeps, with its sum; equal halves of many layers are one object."""

    __slots__ = ("bytes", "tensors")

    def __init__(self, tensors: Iterable[Kept]) -> None:
        self.tensors = tuple(tensors)
        self.bytes = sum([tensor.bytes for tensor in self.tensors])


class Bundle:
    """Tensors that live and go together: halves of layers, with how many layers are alike."""

    def __init__(self, halves: Iterable[tuple[Half, int]] = ()) -> None:
        self.halves = tuple(halves)
        self.bytes = sum([half.bytes * count for half, count in self.halves])

    @classmethod
    def of(cls, *tensors: Kept) -> Bundle:
        return cls([(Half(tensors), 1)])

    def __add__(self, other: Bundle) -> Bundle:
        if not (self.halves and other.halves):
            return self if self.halves else other
        return Bundle(self.halves + other.halves)

    @cached_property
    def tensors(self) -> tuple[Kept, ...]:
        """One entry for each kind of tensor that has bytes, those of all the halves summed."""
        sums: dict[tuple[Component, str], list[int]] = {}
        formulas: dict[tuple[Component, str], str] = {}
        for half, count in self.halves:
            for tensor in half.tensors:
                key = (tensor.component, tensor.tensor)
                entry = sums.setdefault(key, [0, 0])
                entry[0] += tensor.bytes * count
                entry[1] += count
                formulas.setdefault(key, tensor.formula)
        return tuple(
            Kept(*key, formulas[key] if times == 1 else f"{times}*({formulas[key]})", total)
            for key, (total, times) in sums.items()
            if total
        )


NOTHING = Bundle()


def cells(parts: Iterable[Part]) -> dict[Cell, int]:
    """The parts summed by component and category."""
    sums: dict[Cell, int] = {}
    for part in parts:
        cell = (part.component, part.category)
        sums[cell] = sums.get(cell, 0) + part.bytes
    return sums
