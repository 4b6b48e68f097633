"""Values of a configuration section, taken with their type, and a record of which were taken."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_WIDTHS = {
    "float32": 4, "fp32": 4, "float16": 2, "fp16": 2, "bfloat16": 2, "bf16": 2,
    "float8": 1, "fp8": 1, "uint8": 1, "float8_e4m3fn": 1, "float64": 8,
}  # fmt: skip


def dtype_bytes(value: object, default: int) -> int:
    """Bytes of an element of a dtype written as "torch.bfloat16", "bf16" or {"_target_": ...}."""
    if value is None:
        return default
    if isinstance(value, Mapping):
        value = value.get("_target_", "")
    name = str(value).rsplit(".", 1)[-1].lower()
    if name not in _WIDTHS:
        raise ValueError(f"{value!r} is no dtype that the memory model knows: it knows {sorted(_WIDTHS)}")
    return _WIDTHS[name]


class Section:
    """One part of a configuration; remembers which keys were asked for."""

    def __init__(self, name: str, config: Mapping[str, Any]) -> None:
        held = config.get(name) or {}
        if not isinstance(held, Mapping):
            raise ValueError(
                f"the configuration's {name} is {type(held).__name__}, where a mapping is needed"
            )
        self.name = name
        self._held = held
        self._read: set[str] = {"_target_"}

    def __contains__(self, key: str) -> bool:
        return key in self._held

    def get(self, key: str, default: Any = None) -> Any:
        """The value as it stands, and a note that it was asked for."""
        self._read.add(key)
        return self._held.get(key, default)

    @property
    def asked(self) -> frozenset[str]:
        """Keys that were asked for so far."""
        return frozenset(self._read)

    def flag(self, key: str) -> bool:
        return bool(self.get(key))

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number; ValueError names the key where it is missing or no number."""
        value = self.get(key)
        if value is None:
            value = default
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(
                f"the configuration's {self.name}.{key} is {value!r}, where a whole number is needed"
            )
        return value

    def number(self, key: str, default: float) -> float:
        value = self.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"the configuration's {self.name}.{key} is {value!r}, where a number is needed")
        return float(value)

    def unread(self) -> tuple[str, ...]:
        """Keys that were never asked for and are set to something."""
        return tuple(
            key
            for key, value in self._held.items()
            if key not in self._read and not key.startswith("_") and value not in (None, False, 0, "", [], {})
        )
