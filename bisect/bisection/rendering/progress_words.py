"""The answer so far in words, for the page and the terminal, from the event that tells it.

Plain text, not yet escaped for any format.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bisection.quantities import counted, show_confidence
from bisection.rendering.wording import duration


def answer_words(told: Mapping[str, Any]) -> str:
    """What is believed now, in one or two sentences."""
    inside = "Inside the culprit: " if told["level"] else ""
    return f"{inside}{told['why']}"


def cost_words(told: Mapping[str, Any]) -> str:
    """What it cost, and what is expected still."""
    spent = f"{_amount(told['spent'])} spent"
    if told["remaining"] is None:
        return spent
    return f"{spent}, about {_amount(told['remaining'])} to come"


def suspect_words(told: Mapping[str, Any], names: Mapping[str, str]) -> list[tuple[str, str]]:
    """Share and name of each suspect, likeliest first; none before anything failed."""
    if not told["failed"]:
        return []
    return [
        (show_confidence(one["probability"]), names.get(one["hash"], one["hash"][:10]))
        for one in told["suspects"]
    ]


def _amount(cost: Mapping[str, Any]) -> str:
    parts = [counted(round(cost["trials"]), "trial")]
    if cost["seconds"] is not None:
        parts.append(duration(cost["seconds"]))
    if cost["gpu_hours"]:
        parts.append(f"{cost['gpu_hours']:.1f} GPU h")
    return ", ".join(parts)
