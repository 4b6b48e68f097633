"""What differs between two resolved configurations, key by key.

Pure comparison of two nested JSON values. Reading the files, and judging what a
difference means for memory, belong elsewhere (`workers`, `memory_models.comparison`).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

Json = Any


class ValueType(StrEnum):
    """The JSON type of a value: 1, 1.0, true and "1" are four different settings."""

    ABSENT = "absent"  #: the key does not exist on this side
    NULL = "null"
    BOOLEAN = "boolean"
    INTEGER = "integer"
    NUMBER = "number"
    STRING = "string"
    LIST = "list"
    OBJECT = "object"  #: only an empty one: others are flattened


@dataclass(frozen=True, kw_only=True)
class KeyChange:
    """One key of the resolved configuration that differs. A side that is ABSENT has the value None."""

    key: str  #: dotted, as an override names it, e.g. "model.recompute_granularity"
    before: Json
    after: Json
    before_type: ValueType
    after_type: ValueType


#: Keys that differ between two runs of one and the same code: where it writes and listens, and
#: who it is. By the last part of the key. Data paths are not among them: they are compared.
_RUN_SPECIFIC = re.compile(
    r"(?:.*_)?(?:port|hostname|pid|timestamp|uuid|run_id)"
    r"|(?:master|rendezvous)_(?:addr|address|endpoint)"
    r"|(?:tensorboard|wandb|log|logging|save|cache|profile|profiler|output|results?|checkpoints?)_(?:dir|path|folder)"
    r"|wandb_(?:exp_name|save_dir)|local_rank|save|load"
)

#: A path segment that a run invented: it holds a temporary name or at least 8 hex digits.
_INVENTED_SEGMENT = re.compile(r"tmp[\w.-]*|[\w.-]*[0-9a-f]{8,}[\w.-]*", re.IGNORECASE)
_OBJECT_ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}\b")


def flatten(configuration: Mapping[str, Json], prefix: str = "") -> dict[str, Json]:
    """Dotted keys to leaves. A list without objects is one leaf; one with objects is indexed."""
    flat: dict[str, Json] = {}
    for name, value in configuration.items():
        key = f"{prefix}.{name}" if prefix else str(name)
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, key))
        elif _is_list(value) and any(isinstance(item, Mapping) for item in value):
            flat.update(flatten({str(index): item for index, item in enumerate(value)}, key))
        else:
            flat[key] = list(value) if _is_list(value) else value
    return flat


def configuration_delta(
    before: Mapping[str, Json],
    after: Mapping[str, Json],
    *,
    folders_before: Sequence[str] = (),
    folders_after: Sequence[str] = (),
) -> tuple[KeyChange, ...]:
    """The keys that differ for real, in order of their names.

    ``folders_*`` are the run's own folders (workspace, environment), whose prefix is the same
    place on both sides. Left out are the keys that say where a run writes and listens, paths
    that differ only in a segment that the run invented, and object addresses in texts. A seed
    is compared like any other value: two different seeds are a difference.
    """
    flat_before, flat_after = flatten(before), flatten(after)
    changes = []
    for key in sorted(flat_before.keys() | flat_after.keys()):
        if _RUN_SPECIFIC.fullmatch(key.rpartition(".")[2].lower()):
            continue
        change = KeyChange(
            key=key,
            before=flat_before.get(key),
            after=flat_after.get(key),
            before_type=value_type(flat_before[key]) if key in flat_before else ValueType.ABSENT,
            after_type=value_type(flat_after[key]) if key in flat_after else ValueType.ABSENT,
        )
        if not _is_same(change, folders_before, folders_after):
            changes.append(change)
    return tuple(changes)


def value_type(value: Json) -> ValueType:
    """The type tag of a leaf; ValueError for what JSON cannot hold."""
    if value is None:
        return ValueType.NULL
    if isinstance(value, bool):  # before int: True is an int to Python, and no number to a reader
        return ValueType.BOOLEAN
    for python_type, tag in (
        (int, ValueType.INTEGER),
        (float, ValueType.NUMBER),
        (str, ValueType.STRING),
        ((list, tuple), ValueType.LIST),
        (Mapping, ValueType.OBJECT),
    ):
        if isinstance(value, python_type):
            return tag
    raise ValueError(f"a configuration value of type {type(value).__name__} is not JSON")


def show_value(value: Json, tag: ValueType) -> str:
    """A leaf for people: JSON, and a word where the key does not exist."""
    return "(absent)" if tag is ValueType.ABSENT else json.dumps(value, ensure_ascii=False)


def _is_list(value: Json) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _is_same(change: KeyChange, folders_before: Sequence[str], folders_after: Sequence[str]) -> bool:
    if change.before_type is not change.after_type:
        return False
    if change.before_type is ValueType.NUMBER and math.isnan(change.before):
        return math.isnan(float(change.after))  # NaN on both sides is the same setting
    if change.before == change.after:
        same: bool = _typed(change.before) == _typed(change.after)
        return same
    return bool(
        _without_folders(change.before, folders_before) == _without_folders(change.after, folders_after)
    )


def _typed(value: Json) -> Json:
    """Lists compare by value and type too: [1] is not [true]."""
    return [(value_type(item), _typed(item)) for item in value] if _is_list(value) else value


def _without_folders(value: Json, folders: Sequence[str]) -> Json:
    if _is_list(value):
        return [(value_type(item), _without_folders(item, folders)) for item in value]
    if not isinstance(value, str):
        return value
    for folder in sorted(folders, key=len, reverse=True):
        value = re.sub(re.escape(folder.rstrip("/")) + r"(?=/|$)", "{folder}", value)
    value = _OBJECT_ADDRESS.sub("0x…", value)
    if "/" not in value:
        return value
    return "/".join("…" if _INVENTED_SEGMENT.fullmatch(part) else part for part in value.split("/"))
