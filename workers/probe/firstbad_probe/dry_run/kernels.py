"""Functions that a GPU run compiles into one kernel: what they hold meanwhile is nobody's to see.

That is so where no gradient is recorded, inside of a custom function's forward and backward, which is
where Megatron compiles. Where autograd records, the operations are followed one by one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from firstbad_probe.patches import Patches
from firstbad_probe.storages import Storages


def install(patches: Patches, storages: Storages) -> None:
    def compile_(model: Any = None, *_: Any, **__: Any) -> Any:
        if model is None:
            return lambda function: compile_(function)
        if isinstance(model, torch.nn.Module):
            return model
        return _as_one(model, patches, storages)

    torch.compile = compile_


def _as_one(function: Callable[..., Any], patches: Patches, storages: Storages) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*args: Any, **keywords: Any) -> Any:
        if torch.is_grad_enabled():
            return function(*args, **keywords)
        patches.use("dry run: a compiled function as one kernel")
        return storages.as_one_operation(lambda: function(*args, **keywords))

    return run
