"""Fakes of results made straight away, past the bookkeeping of torch's fake mode for each operation.

The fake mode prepares every call for what a compiler may ask of it, and its own memory of results
leaves out views of new places (a flat buffer cut into thousands of parameters) and composite operations.
Here a view asks the shape kernel directly, as the fake mode does in the end; what only makes new tensors
is asked once for each set of shapes; what writes into its first argument gives it back. Everything else,
and everything the first time, goes the fake mode's own way.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager

_aten = torch.ops.aten

#: Views of their first argument. Those of a whole list of tensors are made anew each.
_VIEWS = frozenset(
    {
        _aten.alias.default,
        _aten.as_strided.default,
        _aten.detach.default,
        _aten.expand.default,
        _aten.permute.default,
        _aten.select.int,
        _aten.slice.Tensor,
        _aten.split.Tensor,
        _aten.split_with_sizes.default,
        _aten.squeeze.dim,
        _aten.t.default,
        _aten.transpose.int,
        _aten.unbind.int,
        _aten.unsqueeze.default,
        _aten.view.default,
        _aten._unsafe_view.default,
    }
)
#: What a function does with tensors, by its schema.
_NEW, _IN_PLACE, _OTHER = "makes new tensors", "writes into its first argument", "other"
_MISSING = object()
_UNSUITED_TAGS = frozenset({torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output})


class _Unsuited(Exception):
    """An argument that does not tell all in its shape, or that nothing is remembered by."""


class Straight:
    """The fake of each operation on the fakes of one mode."""

    def __init__(self, fakes: FakeTensorMode) -> None:
        self._fakes = fakes
        self._kinds: dict[Any, str] = {}
        #: Shapes, strides and types of the new tensors by function and arguments; None: the first argument.
        self._results: dict[Any, Any] = {}

    def __call__(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func in _VIEWS:
            first = args[0]
            if type(first) is FakeTensor and first.constant is None:
                return self._view(func, args, kwargs)
            return func(*args, **kwargs)
        kind = self._kind(func)
        if kind is _OTHER:
            return func(*args, **kwargs)
        try:
            key = (func, _key(args), _key(tuple(kwargs.items())) if kwargs else None)
            found = self._results.get(key, _MISSING)
        except (_Unsuited, TypeError):
            return func(*args, **kwargs)
        if found is not _MISSING:
            return args[0] if kind is _IN_PLACE else self._made(found)
        before = args[0].shape if kind is _IN_PLACE else None
        out = func(*args, **kwargs)
        if kind is _IN_PLACE:
            if out is args[0] and out.shape == before:
                self._results[key] = None
        else:
            self._remember(key, out)
        return out

    def makes_new(self, func: Any) -> bool:
        """Whether its results share nothing with its arguments, and it writes into none."""
        return self._kind(func) is _NEW

    def _kind(self, func: Any) -> str:
        kind = self._kinds.get(func)
        if kind is None:
            kind = self._kinds[func] = _kind_of(func)
        return kind

    def _view(self, func: Any, args: Any, kwargs: Any) -> Any:
        with in_kernel_invocation_manager(self._fakes):
            out = func(*args, **kwargs)
        device = args[0].fake_device
        if isinstance(out, torch.Tensor):
            return FakeTensor(self._fakes, out, device)
        return [FakeTensor(self._fakes, item, device) for item in out]

    def _remember(self, key: Any, out: Any) -> None:
        try:
            self._results[key] = _described(out)
        except _Unsuited:
            return

    def _made(self, result: Any) -> Any:
        kind, rest = result
        if kind is FakeTensor:
            shape, stride, dtype, device = rest
            with in_kernel_invocation_manager(self._fakes):
                elem = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
            return FakeTensor(self._fakes, elem, device)
        if kind is None:
            return None
        return kind(self._made(item) for item in rest)


def _kind_of(func: Any) -> str:
    if not isinstance(func, torch._ops.OpOverload) or not _UNSUITED_TAGS.isdisjoint(func.tags):
        return _OTHER
    if func.namespace != "aten" or torch.Tag.inplace_view in func.tags:
        return _OTHER
    schema = func._schema
    if not all(str(out.type) in ("Tensor", "Tensor[]") for out in schema.returns) or not schema.returns:
        return _OTHER
    written = [place for place, argument in enumerate(schema.arguments) if argument.alias_info is not None]
    if not written and all(out.alias_info is None for out in schema.returns):
        return _NEW
    if written == [0] and len(schema.returns) == 1 and schema.arguments[0].alias_info.is_write:
        return (
            _IN_PLACE if "resize" not in schema.name and schema.returns[0].alias_info is not None else _OTHER
        )
    return _OTHER


def _key(items: Any) -> tuple[Any, ...]:
    return tuple([_key_of(item) for item in items])


def _key_of(item: Any) -> Any:
    kind = type(item)
    if kind is FakeTensor:
        if item.constant is not None:
            raise _Unsuited
        return item.shape, item.stride(), item.dtype, item.fake_device
    if kind in (list, tuple, torch.Size):
        return _key(item)
    if isinstance(item, torch.Tensor):
        raise _Unsuited
    return kind, item  # 1, 1.0 and True are alike to a dictionary, not to a type of numbers


def _described(out: Any) -> Any:
    if type(out) is FakeTensor:
        if out.constant is not None:
            raise _Unsuited
        return FakeTensor, (out.shape, out.stride(), out.dtype, out.fake_device)
    if out is None:
        return None, ()
    if type(out) in (list, tuple):
        return type(out), [_described(item) for item in out]
    raise _Unsuited
