"""What torch itself cannot do with fake tensors, done otherwise. Each way around is counted."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

from firstbad_probe.dry_run.known_values import KnownValues, known
from firstbad_probe.patches import Patches


class UnknownValue(RuntimeError):
    """The code under test asked for values that a dry run does not have."""


def install(patches: Patches, values: KnownValues) -> None:
    _undisturbed()
    _reading(values)
    _apply(patches)
    _storage(patches)
    _tensor(patches)
    _random(patches)


def _undisturbed() -> None:
    """torch guards the dispatch of its fake mode against its own compiler, at a cost for each operation."""
    dispatch = getattr(FakeTensorMode.__torch_dispatch__, "__wrapped__", None)
    if dispatch is not None:
        FakeTensorMode.__torch_dispatch__ = dispatch  # type: ignore[method-assign]


def _reading(values: KnownValues) -> None:
    """`tolist` and `numpy` read memory that fakes do not have."""

    def reader(name: str, read: Any) -> Any:

        def of_values(tensor: torch.Tensor, *args: Any, **keywords: Any) -> Any:
            value = known(tensor)
            if value is None:
                values.unknown[name] += 1
                raise UnknownValue(
                    f"dry run: {name}() of a {list(tensor.shape)} tensor whose values nobody knows"
                )
            with _disable_current_modes():
                return read(value, *args, **keywords)

        return of_values

    for name in ("tolist", "numpy"):
        read = reader(name, getattr(torch.Tensor, name))
        setattr(torch.Tensor, name, read)
        if name in vars(FakeTensor):  # its own goes value by value
            setattr(FakeTensor, name, read)


def _apply(patches: Patches) -> None:
    """Module._apply swaps the data of parameters in place, which fakes refuse: make new ones."""

    def apply(module: Any, function: Any, recurse: bool = True) -> Any:
        patches.use("dry run: Module._apply makes new parameters")
        if recurse:
            for child in module.children():
                child._apply(function)
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            with torch.no_grad():
                changed = function(parameter)
            if changed is parameter or _alike(changed, parameter):
                continue
            renewed = torch.nn.Parameter(changed, parameter.requires_grad)
            for key, value in vars(parameter).items():
                vars(renewed).setdefault(key, value)
            module._parameters[name] = renewed
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = function(buffer)
        return module

    torch.nn.Module._apply = apply  # type: ignore[method-assign]


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and one.device == other.device


def _storage(patches: Patches) -> None:
    """A storage copied into another goes past the fakes, and torch's fake mode then keeps both for ever."""

    def copy_(storage: torch.UntypedStorage, *_: Any, **__: Any) -> torch.UntypedStorage:
        patches.use("dry run: storages are not copied")
        return storage

    torch.UntypedStorage.copy_ = copy_  # type: ignore[method-assign, assignment]


def _tensor(patches: Patches) -> None:
    """torch.tensor reads the values of a list of tensors itself."""
    make = torch.tensor

    def tensor(data: Any, *args: Any, **keywords: Any) -> torch.Tensor:
        return make(plain(data), *args, **keywords)

    def plain(data: Any) -> Any:
        if isinstance(data, (list, tuple)):
            return [plain(item) for item in data]
        if isinstance(data, FakeTensor):
            patches.use("dry run: torch.tensor of tensors")
            return data.item() if data.dim() == 0 else data.tolist()
        return data

    torch.tensor = tensor


def _random(patches: Patches) -> None:
    """No random number is ever drawn; the states that Megatron keeps and restores stay as they are."""
    state = torch.get_rng_state()
    torch.cuda.get_rng_state = torch.cuda.random.get_rng_state = patches.counted(
        "dry run: no random numbers", lambda *_, **__: state
    )
    torch.cuda.set_rng_state = torch.cuda.random.set_rng_state = lambda *_, **__: None
    torch.get_rng_state = torch.random.get_rng_state = torch.cuda.get_rng_state
    torch.set_rng_state = torch.random.set_rng_state = torch.cuda.set_rng_state
