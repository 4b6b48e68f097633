"""The storages that are alive, seen below autograd, and the simulated capacity.

A dispatch mode sees every tensor that an operation gives back; a storage counts
once, however many views it has, from the operation that made it until Python's
weak reference says that it is gone. What a storage is for is decided by the
scope at that moment and corrected by `ownership`.

Not seen: memory inside one operation (a fused kernel's workspace), the
allocator's fragmentation, the CUDA context and communication buffers.
"""

from __future__ import annotations

import sys
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from firstbad_probe import live_bytes
from firstbad_probe.allocations import FRAMES, is_own
from firstbad_probe.components import IDLE, MESSAGES, Scope, component_of_classes
from firstbad_probe.inventory import Inventory
from firstbad_probe.live_bytes import Block, LiveBytes, Parts
from firstbad_probe.scopes import BACKWARD, BUILD, FORWARD, Scopes
from firstbad_probe.timeline import Timeline

_CATEGORY_OF_PHASE = {BUILD: live_bytes.TEMPORARY, FORWARD: live_bytes.ACTIVATIONS}
_RESIZING = frozenset({torch.ops.aten.resize_.default, torch.ops.aten.resize_as_.default})


class _Reference(weakref.ref):  # type: ignore[type-arg]
    __slots__ = ("key",)
    key: int


class Refusal:
    """The allocation that the simulated capacity refused."""

    def __init__(self, scope: Scope, phase: str, requested_bytes: int, allocated_bytes: int) -> None:
        self.component = scope.component
        self.path = scope.path
        self.phase = phase
        self.requested_bytes = requested_bytes
        self.allocated_bytes = allocated_bytes


class Storages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts live storages while entered; raises torch.OutOfMemoryError beyond the capacity."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # torch would wrap the dispatch in a guard against torch.compile, and import
        # its compiler for it, at a cost for each operation. Nothing is compiled here.
        return False

    def __init__(
        self,
        scopes: Scopes,
        timeline: Timeline,
        capacity_bytes: int | None = None,
        *,
        labels_only: str = "",
        lists: bool = False,
        locates: bool = False,
        live: LiveBytes | None = None,
    ) -> None:
        """`labels_only` names the kind of device whose labelled tensors alone are kept; "": all are.
        `lists` remembers which storages stood behind the summits, `locates` also by which lines of code."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.scopes = scopes
        self.timeline = timeline
        self.capacity_bytes = capacity_bytes
        self._labels_only = labels_only
        self.live = LiveBytes() if live is None else live
        self.inventory = Inventory(self.live) if lists else None
        self._locates = locates
        self.refusal: Refusal | None = None
        self._blocks: dict[int, Block] = {}
        # Storages may die on any thread; the books are kept by the training thread alone.
        self._dead: deque[_Reference] = deque()
        self._resize = torch.UntypedStorage.resize_
        #: Labelled storages without memory now (sharding gives it back and takes it again), and their cells.
        self._emptied: dict[int, tuple[_Reference, live_bytes.Cell]] = {}
        self._active = False
        self._replaying = False
        self._within_one = False  #: a function runs that counts as one operation
        self._operation = ""  #: that runs now, where storages are listed

    def start(self) -> None:
        """From now on, on this thread, until the process ends or `stop`.

        On a GPU operations are not followed: its backward runs on another thread,
        and its allocator knows the total. Then only labelled storages are counted.
        """
        if not self._active:
            self._active = True
            if not self._labels_only:
                self.__enter__()  # type: ignore[no-untyped-call]
            self._watch_resizes()

    def stop(self) -> None:
        if self._active:
            self._active = False
            torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]
            if not self._labels_only:
                self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        scope = self.scopes.here()
        if self.scopes.replaying is not self._replaying:
            self._turn_replay()
        if self.inventory is not None:
            self._operation = str(func)
        out = func(*args, **kwargs) if kwargs else func(*args)
        if self.scopes.host_depth == 0 and not self._within_one:
            if func in _RESIZING:
                self._resized(out.untyped_storage())
            self._see(out, scope)
        return out

    def as_one_operation(self, function: Callable[[], Any]) -> Any:
        """Call the function as if it were one operation: only its result is seen."""
        if self._within_one:
            return function()
        self._within_one = True
        try:
            out = function()
        finally:
            self._within_one = False
        self._see(out, self.scopes.here())
        return out

    def _see(self, out: Any, scope: Scope) -> None:
        if isinstance(out, torch.Tensor):
            self._see_storage(out, scope)
        elif isinstance(out, (list, tuple)):
            for item in out:
                self._see(item, scope)

    def _see_storage(self, tensor: torch.Tensor, scope: Scope) -> None:
        storage = _storage_of(tensor)
        if storage is None or (self._labels_only and not is_on(storage, self._labels_only)):
            return
        if self._dead:
            self.settle()
        if storage._cdata not in self._blocks:
            size_bytes = storage.nbytes()
            if size_bytes:
                self._add(storage, live_bytes.rounded(size_bytes), scope)

    def _turn_replay(self) -> None:
        """What a replay made and its backward still needs has been kept, as forward keeps it."""
        self.settle()
        self.live.interval += 1
        self._replaying = not self._replaying
        if self._replaying:
            self.scopes.note_replay()

    def adopt(self, tensor: torch.Tensor) -> None:
        """Count a tensor that comes to the device without an operation (a batch, a parameter)."""
        self._operation = ""
        self._see_storage(tensor, self.scopes.here())

    def to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of the host as a GPU would hold it: a copy of its own, which is then counted."""
        if not self._active or self.scopes.host_depth or tensor.requires_grad:
            return tensor
        return tensor if self.block_of(tensor) is not None else tensor.clone()

    def _add(
        self, storage: torch.UntypedStorage, size_bytes: int, scope: Scope, parts: Parts | None = None
    ) -> None:
        phase = self.scopes.phase
        if parts is None:
            if phase == BUILD:
                scope, category = self._under_construction(scope)
            elif scope is MESSAGES:
                category = live_bytes.COMMUNICATION
            elif self._replaying:
                category = live_bytes.ACTIVATIONS
            else:
                category = _CATEGORY_OF_PHASE.get(phase, live_bytes.TEMPORARY)
            parts = (((scope.component, category), size_bytes),)
        live = self.live
        if self.capacity_bytes is not None and live.total_bytes + size_bytes > self.capacity_bytes:
            self._refuse(scope, size_bytes)
        block = live.add(size_bytes, parts)
        reference = _Reference(storage, self._dead.append)
        reference.key = storage._cdata
        block.reference = reference
        self._blocks[storage._cdata] = block
        if self._labels_only:
            return
        if self.inventory is not None:
            block.origin = (scope.path, phase, self._operation)
            if self._locates:
                block.frames = _frames()
        if live.at_new_summit(phase):
            if self.inventory is not None:
                self.inventory.at_summit(phase)
            live.remember_summit(step=self.scopes.step, phase=phase, instant=instant(scope, phase))
        self.timeline.see(self.scopes.step, phase, scope.path, live.total_bytes)

    def _refuse(self, scope: Scope, size_bytes: int) -> None:
        assert self.capacity_bytes is not None
        phase, allocated = self.scopes.phase, self.live.total_bytes
        if self.refusal is None:
            self.refusal = Refusal(scope, phase, size_bytes, allocated)
        raise torch.OutOfMemoryError(
            f"CUDA out of memory. Tried to allocate {_mib(size_bytes)}. The simulated capacity is "
            f"{_mib(self.capacity_bytes)}, of which {_mib(self.capacity_bytes - allocated)} is free. "
            f"Component {scope.component}, {instant(scope, phase)}."
        )

    def settle(self) -> None:
        """Take the storages that died since the last look off the books."""
        while self._dead:
            reference = self._dead.popleft()
            block = self._blocks.get(reference.key)
            if block is not None and block.reference is reference:
                self._forget(reference.key, block)

    def _forget(self, key: int, block: Block) -> None:
        del self._blocks[key]
        self.live.remove(block)
        if self.inventory is not None:
            self.inventory.died(block)

    def begin_phase(self, phase: str, ground: Scope) -> None:
        """What dies from here on has lived into another phase."""
        self.settle()
        self.live.interval += 1
        if self.inventory is not None and phase == BACKWARD:
            self.inventory.forward_ended(self._blocks.values())
        self.scopes.begin_phase(phase, ground)

    def listed(self) -> dict[str, Any] | None:
        """The storages one by one, where they were asked for."""
        self.settle()
        return None if self.inventory is None else self.inventory.to_json(self._blocks.values())

    def behind_peak(self) -> list[Block] | None:
        """The blocks behind the highest instant, where they were asked for and there is one."""
        self.settle()
        if self.inventory is None or not self.live.summits:
            return None
        return self.inventory.behind(self.live.peak.phase, list(self._blocks.values()))

    def block_of(self, tensor: torch.Tensor) -> Block | None:
        storage = _storage_of(tensor)
        return None if storage is None else self._blocks.get(storage._cdata)

    def send_to_host(self, tensor: torch.Tensor) -> None:
        """Take a tensor off the books that a GPU machine keeps in host memory."""
        self.settle()
        block = self.block_of(tensor)
        if block is not None:
            self._forget(tensor.untyped_storage()._cdata, block)

    def label(self, tensor: torch.Tensor, component: str, category: str) -> None:
        """Write the tensor's whole storage to one cell, counting it if it was not yet."""
        self.adopt(tensor)
        block = self.block_of(tensor)
        if block is not None:
            self.live.move(block, (((component, category), block.size_bytes),))

    def _watch_resizes(self) -> None:
        resize = self._resize = torch.UntypedStorage.resize_

        def resize_(storage: torch.UntypedStorage, size: int) -> Any:
            result = resize(storage, size)
            self._operation = "resize"
            self._resized(storage)
            return result

        torch.UntypedStorage.resize_ = resize_  # type: ignore[method-assign, assignment]

    def _resized(self, storage: torch.UntypedStorage) -> None:
        self.settle()
        block = self._blocks.get(storage._cdata)
        size_bytes = live_bytes.rounded(storage.nbytes())
        if block is not None and block.size_bytes != size_bytes:
            self._forget(storage._cdata, block)
            if self._labels_only:
                self._emptied[storage._cdata] = (block.reference, block.parts[0][0])
            block = None
        if block is not None or not size_bytes:
            return
        if self._labels_only:
            reference, cell = self._emptied.pop(storage._cdata, (None, None))
            if reference is not None and cell is not None and reference() is storage:
                self._add(storage, size_bytes, self.scopes.here(), ((cell, size_bytes),))
        elif self.scopes.host_depth == 0:
            self._add(storage, size_bytes, self.scopes.here())

    def measure_again(self) -> None:
        """For labelled storages that were resized by code that Python does not see."""
        for block in list(self._blocks.values()):
            storage = block.reference() if block.reference is not None else None
            if storage is not None and live_bytes.rounded(storage.nbytes()) != block.size_bytes:
                self._resized(storage)

    def _under_construction(self, scope: Scope) -> tuple[Scope, str]:
        """While the model is built there are no paths yet: ask the constructors on the stack."""
        if scope.path != "outside the model":
            return scope, live_bytes.TEMPORARY
        names: list[str] = []
        frame = sys._getframe(1)
        while frame is not None:
            if frame.f_code.co_name == "__init__":
                built = frame.f_locals.get("self")
                if isinstance(built, torch.nn.Module):
                    names.append(type(built).__name__)
            frame = frame.f_back  # type: ignore[assignment]
        if not names:
            return scope, live_bytes.TEMPORARY
        names.reverse()
        return Scope(component_of_classes(names), IDLE, names[-1]), live_bytes.PARAMETERS


def _frames() -> tuple[dict[str, Any], ...]:
    """The Python code that runs, innermost first, as torch's allocator history tells it."""
    found = []
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if is_own(code.co_filename):
            found.append({"filename": code.co_filename, "line": frame.f_lineno, "name": code.co_name})
            if len(found) == FRAMES:
                break
        frame = frame.f_back  # type: ignore[assignment]
    return tuple(found)


def instant(scope: Scope, phase: str) -> str:
    """For people: what was running."""
    return f"{scope.path} {phase}"


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:.2f} MiB"


def is_on(storage: torch.UntypedStorage, device_type: str) -> bool:
    """Whether it has memory of such a device; a wrapper (a quantized or distributed tensor) has none."""
    try:
        return storage.device.type == device_type and storage.data_ptr() != 0
    except RuntimeError:
        return False


def _storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):  # sparse tensors and wrappers have none of their own
        return None
