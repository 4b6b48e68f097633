"""Cards by name: their memory as the driver reports it, and their generation."""

from __future__ import annotations

from dataclasses import dataclass

from memory_models.breakdown import GIB
from memory_models.job import Card


@dataclass(frozen=True, kw_only=True)
class CardType:
    """A card that can be bought; ``capacity_bytes`` is rounded down, for drivers differ a little."""

    capacity_bytes: int
    generation: Card


#: Certainty: A100, H100 and H200 as reported by drivers; the others are their makers' decimal figures.
CARDS = {
    "a100-40gb": CardType(capacity_bytes=39 * GIB, generation=Card.AMPERE),
    "a100": CardType(capacity_bytes=79 * GIB, generation=Card.AMPERE),
    "h100": CardType(capacity_bytes=79 * GIB, generation=Card.HOPPER),
    "h200": CardType(capacity_bytes=139 * GIB, generation=Card.HOPPER),
    "b200": CardType(capacity_bytes=180 * 10**9, generation=Card.BLACKWELL),
    "gb200": CardType(capacity_bytes=186 * 10**9, generation=Card.BLACKWELL),
    "b300": CardType(capacity_bytes=288 * 10**9, generation=Card.BLACKWELL),
    "gb300": CardType(capacity_bytes=288 * 10**9, generation=Card.BLACKWELL),
}


def card_named(name: str) -> CardType:
    """Raises ValueError that lists the names that are known."""
    card = CARDS.get(name.lower())
    if card is None:
        raise ValueError(f"no card {name!r} is known here: choose one of {', '.join(CARDS)}")
    return card
