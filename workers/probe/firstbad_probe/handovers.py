"""Tensors that go from one module to another: made here, freed there.

Counters tell who runs while memory comes and goes, not whose it is. For what a module is given and gives
back, a weak reference tells when it dies, so that it leaves the account of the component that made it.
"""

from __future__ import annotations

import weakref
from collections import deque

import torch

from firstbad_probe.live_bytes import rounded
from firstbad_probe.storages import Storages, is_on


class _Reference(weakref.ref):  # type: ignore[type-arg]
    __slots__ = ("component", "key", "size_bytes")
    component: str
    key: int
    size_bytes: int


class Handovers:
    """The storages that were handed over and are alive."""

    def __init__(self, owned: Storages, device_type: str) -> None:
        self._owned = owned
        self._device_type = device_type
        self._alive: dict[int, _Reference] = {}
        # Storages may die on any thread; the books are kept by the one that looks.
        self._dead: deque[_Reference] = deque()

    def track(self, tensor: torch.Tensor, component: str) -> None:
        """This component made it, unless another one is known to have."""
        if tensor.device.type != self._device_type or self._owned.block_of(tensor) is not None:
            return  # what has an owner leaves the owner's account when it dies
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):  # a wrapper has none of its own
            return
        if not is_on(storage, self._device_type):
            return
        known = self._alive.get(storage._cdata)
        if known is not None and known() is not None:
            return
        reference = _Reference(storage, self._dead.append)
        reference.component, reference.key = component, storage._cdata
        reference.size_bytes = rounded(storage.nbytes())
        self._alive[storage._cdata] = reference

    def take_dead(self) -> dict[str, int]:
        """Bytes by the component that made them, of what died since the last time."""
        died: dict[str, int] = {}
        while self._dead:
            reference = self._dead.popleft()
            if self._alive.get(reference.key) is reference:
                del self._alive[reference.key]
            died[reference.component] = died.get(reference.component, 0) + reference.size_bytes
        return died
