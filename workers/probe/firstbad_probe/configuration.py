"""The resolved configuration of Megatron Bridge as plain JSON.

dtypes as "torch.bfloat16", enums by name, callables by qualified name; an
object that is neither data nor a dataclass is told by its class alone.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import torch

_DEPTH = 12


def to_plain(value: Any, depth: int = 0) -> Any:
    """JSON-ready data; a dataclass keeps its class under `_target_`, as in Bridge's own files."""
    if value is None or isinstance(value, (bool, int, str)):
        return value.name if isinstance(value, enum.Enum) else value
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else str(value)
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, (torch.dtype, torch.device, PurePath)):
        return str(value)
    if depth > _DEPTH:
        return _name(type(value))
    if isinstance(value, Mapping):
        return {str(key): to_plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item, depth + 1) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((to_plain(item, depth + 1) for item in value), key=str)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        plain = {"_target_": _name(type(value))}
        for field in dataclasses.fields(value):
            if not field.name.startswith("_") and hasattr(value, field.name):
                plain[field.name] = to_plain(getattr(value, field.name), depth + 1)
        return plain
    if callable(value):
        return _name(value)
    to_dict = getattr(value, "to_dict", None)
    if callable(to_dict):
        return to_plain(to_dict(), depth + 1)
    return _name(type(value))


def _name(value: Any) -> str:
    function = getattr(value, "func", value)  # functools.partial is told by what it calls
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', '?')}.{name}"
