"""Whose the long-lived storages are: parameters, gradient buffers, optimizer states.

Flat buffers hold the parameters of many components in one storage; they are
split exactly by the elements of each parameter, and padding is nobody's. All
of it is read from attributes that Megatron Core has had over many releases.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from firstbad_probe import live_bytes
from firstbad_probe.components import COMPONENTS, RUNTIME, Scope, scope_of_path
from firstbad_probe.live_bytes import Cell
from firstbad_probe.scopes import Scopes
from firstbad_probe.storages import Storages

_WRAPPER_ATTRIBUTE = "module"


class Ownership:
    """Knows the component of every parameter, and through it of what is made from parameters."""

    def __init__(self, storages: Storages, scopes: Scopes) -> None:
        self._storages = storages
        self._scopes = scopes
        self._component: dict[int, str] = {}  #: id of a parameter, or of its master, to component
        self._known: list[torch.nn.Parameter] = []
        self._flat: dict[int, list[tuple[int, int, str]]] = {}  #: storage to element ranges
        self.parameters = dict.fromkeys(COMPONENTS, 0)  #: elements, frozen ones included
        self.trainable = dict.fromkeys(COMPONENTS, 0)
        self.padding_bytes = 0

    def take_model(self, model: torch.nn.Module, prefix: str = "") -> list[tuple[torch.nn.Module, Scope]]:
        """Label the model's tensors; answers every module with its scope, the root first."""
        root = unwrapped(model)
        routed = [path for path, module in root.named_modules() if hasattr(module, "router") and path]
        scopes = []
        for path, module in root.named_modules():
            scope = scope_of_path(path, routed=routed)
            if prefix:
                scope = Scope(scope.component, scope.activity, f"{prefix}.{scope.path}")
            scopes.append((module, scope))
            for parameter in module._parameters.values():
                if parameter is not None and id(parameter) not in self._component:
                    self._take_parameter(parameter, scope)
            for tensor in module._buffers.values():
                if tensor is not None:
                    self._storages.label(tensor, scope.component, live_bytes.PARAMETERS)
        return scopes

    def take_again(self, model: torch.nn.Module) -> None:
        """What stands for the model's parameters now, by the same paths."""
        root = unwrapped(model)
        routed = [path for path, module in root.named_modules() if hasattr(module, "router") and path]
        for path, module in root.named_modules():
            scope = scope_of_path(path, routed=routed)
            for parameter in module._parameters.values():
                if parameter is None or id(parameter) in self._component:
                    continue
                self._component[id(parameter)] = scope.component
                self._known.append(parameter)
                local = getattr(parameter, "_local_tensor", parameter)
                self._storages.label(local, scope.component, live_bytes.PARAMETERS)

    def _take_parameter(self, parameter: torch.nn.Parameter, scope: Scope) -> None:
        self._known.append(parameter)
        self.parameters[scope.component] += parameter.numel()
        self._component[id(parameter)] = scope.component
        self._scopes.parameters[id(parameter)] = scope
        self._storages.label(parameter, scope.component, live_bytes.PARAMETERS)
        if parameter.requires_grad:
            self.trainable[scope.component] += parameter.numel()
            parameter.register_post_accumulate_grad_hook(self._take_gradient)  # type: ignore[no-untyped-call]

    def _take_gradient(self, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            component = self._component[id(parameter)]
            self._storages.label(parameter.grad, component, live_bytes.GRADIENTS)

    def take_wrapper(self, wrapper: Any) -> None:
        """Split the flat buffers of a distributed data parallel wrapper."""
        for name in ("buffers", "expert_parallel_buffers"):
            buffers = getattr(wrapper, name, None)
            for buffer in buffers if isinstance(buffers, list) else []:
                self._take_buffer(buffer)

    def _take_buffer(self, buffer: Any) -> None:
        ranges = [
            (where[0], where[1], self._component.get(id(parameter), RUNTIME))
            for parameter, where in buffer.param_index_map.items()
        ]
        for tensor, category in (
            (getattr(buffer, "param_data", None), live_bytes.PARAMETERS),
            (getattr(buffer, "grad_data", None), live_bytes.GRADIENTS),
        ):
            if tensor is not None and tensor.numel():
                self._storages.adopt(tensor)
                self._split(tensor, ranges, category)
                self._flat[tensor.untyped_storage()._cdata] = ranges

    def _split(self, tensor: torch.Tensor, ranges: list[tuple[int, int, str]], category: str) -> None:
        block = self._storages.block_of(tensor)
        if block is None:
            return
        shares: dict[Cell, int] = {}
        for start, end, component in ranges:
            cell = (component, category)
            shares[cell] = shares.get(cell, 0) + (end - start) * tensor.element_size()
        self.padding_bytes += block.size_bytes - sum(shares.values())
        parts = live_bytes.shared(block.size_bytes, shares, (RUNTIME, category))
        self._storages.live.move(block, parts)

    def take_masters(self) -> None:
        """Full-precision copies that mixed-precision optimizers keep of each parameter."""
        for parameter in self._known:
            master = getattr(parameter, "main_param", None)
            if isinstance(master, torch.Tensor):
                component = self._component[id(parameter)]
                self._component[id(master)] = component
                self._take_state(master, component)

    def take_states(self, optimizer: torch.optim.Optimizer) -> None:
        """What the optimizer remembers of each parameter."""
        for parameter, states in optimizer.state.items():
            if not isinstance(states, dict):
                continue
            component = self.component_of(parameter)
            for tensor in _tensors(states.values()):
                if tensor.dim() == 0:  # torch's optimizers count their steps in host memory
                    self._storages.send_to_host(tensor)
                else:
                    self._take_state(tensor, component)

    def _take_state(self, tensor: torch.Tensor, component: str) -> None:
        block = self._storages.block_of(tensor)
        settled = (live_bytes.PARAMETERS, live_bytes.OPTIMIZER_STATES)
        if block is None or block.parts[0][0][1] not in settled:
            self._storages.label(tensor, component, live_bytes.OPTIMIZER_STATES)

    def component_of(self, tensor: torch.Tensor) -> str:
        """Of a parameter, its master, or a shard of a flat buffer."""
        component = self._component.get(id(tensor))
        if component is not None:
            return component
        offset = tensor.storage_offset()
        for start, end, owner in self._flat.get(tensor.untyped_storage()._cdata, ()):
            if start <= offset < end:
                return owner
        return RUNTIME

    def dominant(self, parameters: Iterable[torch.Tensor]) -> str:
        """The component with the most elements among these parameters."""
        sums: dict[str, int] = {}
        for parameter in parameters:
            component = self.component_of(parameter)
            sums[component] = sums.get(component, 0) + parameter.numel()
        return max(sums, key=lambda component: sums[component]) if sums else RUNTIME


def unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    """The model inside wrappers (data parallel, half precision) that hold it as `module`."""
    while isinstance(getattr(model, _WRAPPER_ATTRIBUTE, None), torch.nn.Module):
        model = getattr(model, _WRAPPER_ATTRIBUTE)
    return model


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    return (value for value in values if isinstance(value, torch.Tensor))
