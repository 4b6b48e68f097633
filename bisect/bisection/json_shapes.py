"""Frozen dataclasses to JSON and back, by their type hints.

For shapes of many parts (the report), whose JSON is their fields by name. Types that have a
``to_json`` and ``from_json`` of their own keep them. No shape is defined here.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Union, get_args, get_origin, get_type_hints


def encode(value: Any) -> Any:
    """A value as JSON: dataclasses by field, enums by value, tuples as lists."""
    if hasattr(value, "to_json"):
        return value.to_json()
    if is_dataclass(value) and not isinstance(value, type):
        return encode_fields(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(encode(key)): encode(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    return value


def encode_fields(value: Any) -> dict[str, Any]:
    """The fields of a dataclass, whether or not it has a ``to_json``."""
    return {field.name: encode(getattr(value, field.name)) for field in fields(value)}


def decode(kind: Any, row: Any) -> Any:
    """The value of type ``kind`` that ``encode`` wrote as ``row``. ValueError says what does not fit."""
    if kind is Any:
        return row
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        if row is None:
            return None
        return decode(next(part for part in get_args(kind) if part is not type(None)), row)
    if origin is tuple:
        item = get_args(kind)[0]
        return tuple(decode(item, part) for part in _expect(row, list, "a list"))
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        key, item = get_args(kind)
        return {
            decode(key, name): decode(item, part) for name, part in _expect(row, dict, "an object").items()
        }
    if hasattr(kind, "from_json"):
        return kind.from_json(row)
    if is_dataclass(kind):
        return decode_fields(kind, row)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(row)
    if kind is float and isinstance(row, int) and not isinstance(row, bool):
        return float(row)
    return _expect(row, kind, kind.__name__)


def decode_fields(kind: Any, row: Mapping[str, Any]) -> Any:
    """A dataclass from its fields by name; unknown names are left out, so newer writers can be read."""
    hints = get_type_hints(kind)
    known = _expect(row, dict, "an object")
    values = {}
    for name in hints.keys() & known.keys():
        try:
            values[name] = decode(hints[name], known[name])
        except (ValueError, KeyError) as error:
            raise ValueError(f"{name}: {error}") from error
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(f"not a {kind.__name__}: {error}") from error


def _expect(row: Any, kind: type, shown: str) -> Any:
    if not isinstance(row, kind) or (kind is int and isinstance(row, bool)):
        raise ValueError(f"expected {shown}, got {type(row).__name__}")
    return row
