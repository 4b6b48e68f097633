"""Numbers for people: binary units by their names, and confidences that never round up to certainty."""

from __future__ import annotations

from memory_models.breakdown import GIB, MIB


def show_bytes(count: int, *, signed: bool = False) -> str:
    """Binary units by name: MiB below 1 GiB, GiB from there on."""
    sign = "+" if signed and count >= 0 else ""
    if abs(count) < GIB:
        return f"{sign}{count / MIB:,.1f} MiB"
    return f"{sign}{count / GIB:,.2f} GiB"


def show_confidence(confidence: float) -> str:
    """Rounded down, so that less than certain never reads as 100 %."""
    if confidence >= 1:
        return "100 %"
    if confidence > 0.9999:
        return "over 99.99 %"
    digits = 2 if confidence > 0.999 else 1
    scale = 10 ** (digits + 2)
    return f"{int(confidence * scale) / 10**digits:.{digits}f} %"
