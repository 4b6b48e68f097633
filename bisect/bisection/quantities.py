"""Numbers for people: binary units by name, counted nouns, confidences that never round up to certainty."""

from __future__ import annotations

from memory_models.breakdown import GIB, MIB

KIB = 2**10


def show_bytes(count: int, *, signed: bool = False) -> str:
    """Binary units by name: MiB below 1 GiB, GiB from there on.

    What would read as 0.0 MiB, and is not nothing, is told in KiB or bytes.
    """
    sign = "+" if signed and count >= 0 else ""
    if 0 < abs(count) < KIB:
        return f"{sign}{count} B"
    if 0 < abs(count) < MIB / 20:
        return f"{sign}{count / KIB:,.1f} KiB"
    if abs(count) < GIB:
        return f"{sign}{count / MIB:,.1f} MiB"
    return f"{sign}{count / GIB:,.2f} GiB"


def counted(count: int, noun: str) -> str:
    """E.g. "1 trial", "2 trials", "1,024 uses": for nouns whose plural is made by an s."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def show_confidence(confidence: float) -> str:
    """Rounded down, so that less than certain never reads as 100 %."""
    if confidence >= 1:
        return "100 %"
    if confidence > 0.9999:
        return "over 99.99 %"
    digits = 2 if confidence > 0.999 else 1
    scale = 10 ** (digits + 2)
    return f"{int(confidence * scale) / 10**digits:.{digits}f} %"
