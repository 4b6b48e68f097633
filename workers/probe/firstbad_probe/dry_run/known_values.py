"""True values beside fake tensors, where they decide how large something becomes.

A fake tensor has a shape and no data. Token ids, masks, image grids and routing
maps steer sizes, so their values are carried along: the operation that is run
on fakes is run on the values too, as long as all its inputs are known and the
result is small. What nobody knows and somebody asks for is answered (a loss is
0) and counted, or refused.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_map

from firstbad_probe.dry_run.routing import Routing
from firstbad_probe.dry_run.straight import Straight

#: Values of more elements than this are not carried; what steers sizes is far smaller.
LARGEST = 1 << 24

#: Tensors without any input (arange, zeros) are known if they are whole numbers, or this small.
SMALL = 4096

_aten = torch.ops.aten
_DEVICE = torch.ops.prim.device.default
_WHOLE = frozenset({torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
_FILLED = {"zeros_like": 0, "ones_like": 1, "new_zeros": 0, "new_ones": 1}
_DATA_DEPENDENT = ("DynamicOutputShapeException", "DataDependentOutputException")
_INDEXING = frozenset({"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"})


def known(tensor: torch.Tensor) -> torch.Tensor | None:
    """The true values of a tensor: its own, if it is real; None where nobody knows."""
    if not isinstance(tensor, FakeTensor):
        return tensor
    return getattr(tensor, "_known", None)


def know(tensor: torch.Tensor, value: torch.Tensor | None) -> None:
    if isinstance(tensor, FakeTensor):
        tensor._known = value  # type: ignore[attr-defined]


class KnownValues(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs on the fakes first, then on what is known of them."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here; see storages.Storages

    def __init__(self, fakes: FakeTensorMode, routing: Routing) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._fakes = fakes
        self._straight = Straight(fakes)
        self._names: dict[Any, str] = {}
        self.routing = routing
        #: What somebody asked for and nobody knew, by kind.
        self.unknown: Counter[str] = Counter()

    def fake(self, value: torch.Tensor) -> torch.Tensor:
        """A fake of a real tensor that remembers its values: a new one at every call."""
        with _disable_current_modes():
            value = value.clone()
        tensor = self._fakes.from_tensor(value)
        know(tensor, value)
        return tensor

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is _DEVICE:
            return args[0].fake_device if type(args[0]) is FakeTensor else func(*args)
        name = self._names.get(func)
        if name is None:
            name = self._names[func] = func._schema.name.partition("::")[2]
        special = _SPECIAL.get(name)
        if special is not None:
            answer = special(self, func, args, kwargs)
            if answer is not NotImplemented:
                return answer
        if name in _INDEXING:
            args = self._with_places(args)
        try:
            out = self._straight(func, args, kwargs)
        except Exception as error:
            if type(error).__name__ not in _DATA_DEPENDENT:
                raise
            return self._by_values(func, args, kwargs, error)
        self._carry(func, name, args, kwargs, out)
        return out

    # --- operations whose answer depends on data

    def _single(self, _func: Any, args: Any, _kwargs: Any) -> Any:
        value = known(args[0])
        if value is not None:
            with _disable_current_modes():
                return value.item()
        self.unknown[f"a single value of type {args[0].dtype}"] += 1
        return 0.0 if args[0].dtype.is_floating_point else 0

    def _topk(self, func: Any, args: Any, kwargs: Any) -> Any:
        scores, chosen = args[0], args[1]
        if not self.routing.answers(scores, chosen) or known(scores) is not None:
            return NotImplemented
        out = func(*args, **kwargs)
        with _disable_current_modes():
            know(out[1], self.routing.choose(scores.shape[0]))
        return out

    def _masked_select(self, _func: Any, args: Any, _kwargs: Any) -> Any:
        tensor, mask = args
        places = known(mask)
        if places is None:
            return NotImplemented
        value = known(tensor)
        with _disable_current_modes():
            places = torch.broadcast_to(places, torch.broadcast_shapes(tensor.shape, places.shape))
            count = int(places.sum())
            chosen = None if value is None else torch.masked_select(value, places)
        out = tensor.new_empty((count,))
        know(out, chosen)
        return out

    def _nonzero(self, _func: Any, args: Any, _kwargs: Any) -> Any:
        value = known(args[0])
        if value is None:
            return NotImplemented
        with _disable_current_modes():
            places = value.nonzero()
        return self.fake(places)

    def _with_places(self, args: Any) -> Any:
        """Indexing by a mask as indexing by its places, whose number is known."""
        if not any(_is_mask(index) for index in args[1]):
            return args
        indices: list[Any] = []
        for index in args[1]:
            value = known(index) if _is_mask(index) else None
            if value is None:
                if _is_mask(index):
                    self.unknown["a mask that indexes"] += 1
                indices.append(index)
                continue
            with _disable_current_modes():
                places = value.nonzero(as_tuple=True)
            indices += [self.fake(place.contiguous()) for place in places]
        return (args[0], indices, *args[2:])

    def _by_values(self, func: Any, args: Any, kwargs: Any, error: Exception) -> Any:
        if not all(known(tensor) is not None for tensor in _tensors((args, kwargs))):
            raise error
        with _disable_current_modes():
            result = func(*tree_map(_value, args), **tree_map(_value, kwargs))
        return tree_map(lambda item: self.fake(item) if isinstance(item, torch.Tensor) else item, result)

    # --- what is known of the result

    def _carry(self, func: Any, name: str, args: Any, kwargs: Any, out: Any) -> None:
        outputs = _tensors(out)
        if not outputs:
            return
        if name in _FILLED and outputs[0].numel() <= LARGEST // 4:
            with _disable_current_modes():
                # One number that stands for all, until something writes or looks into it: an optimizer's
                # states begin like this too.
                number = torch.full((), _FILLED[name], dtype=outputs[0].dtype)
                know(outputs[0], number.expand(outputs[0].shape))
            return
        inputs = _tensors((args, kwargs))
        if self._is_known(name, inputs, outputs):
            self._compute(func, args, kwargs, outputs)
            return
        if len(inputs) > 1:
            for output in outputs:
                if any(output is tensor for tensor in inputs):  # unknown data was written into it
                    know(output, None)

    @staticmethod
    def _is_known(name: str, inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> bool:
        if any(output.numel() > LARGEST for output in outputs) or "rand" in name:
            return False
        if inputs:
            return all(known(tensor) is not None for tensor in inputs)
        return not name.startswith("empty") and all(
            output.dtype in _WHOLE or output.numel() <= SMALL for output in outputs
        )

    def _compute(self, func: Any, args: Any, kwargs: Any, outputs: list[torch.Tensor]) -> None:
        try:
            with _disable_current_modes():
                if not self._straight.makes_new(func):
                    for tensor in _tensors(args):
                        _spread(tensor)
                result = func(*tree_map(_value, args), **tree_map(_value, kwargs))
        except Exception as error:  # what fails on values is unknown from here on
            self.unknown[f"{func}: {type(error).__name__}"] += 1
            return
        for output, value in zip(outputs, _tensors(result), strict=False):
            know(output, value)


_SPECIAL = {
    "_local_scalar_dense": KnownValues._single,
    "topk": KnownValues._topk,
    "masked_select": KnownValues._masked_select,
    "nonzero": KnownValues._nonzero,
}


def _tensors(tree: Any) -> list[torch.Tensor]:
    """The tensors of a function's arguments or results, in order."""
    found: list[torch.Tensor] = []
    _collect(tree, found)
    return found


def _collect(tree: Any, found: list[torch.Tensor]) -> None:
    if isinstance(tree, torch.Tensor):
        found.append(tree)
    elif isinstance(tree, (list, tuple)):
        for item in tree:
            _collect(item, found)
    elif isinstance(tree, dict):
        for item in tree.values():
            _collect(item, found)


def _spread(tensor: torch.Tensor) -> None:
    """Give each element a place of its own: what follows writes into them, or shares them."""
    value = known(tensor)
    if value is not None and 0 in value.stride() and value.numel() > 1:
        know(tensor, value.contiguous())


def _value(item: Any) -> Any:
    return known(item) if isinstance(item, torch.Tensor) else item


def _is_mask(index: Any) -> bool:
    return isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)
