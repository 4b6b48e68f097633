"""The memory model's answers as JSON, with what was assumed: one shape for the command line and the API."""

from __future__ import annotations

from typing import Any

from memory_models.advice import advise
from memory_models.comparison import compare
from memory_models.estimation import Estimate, estimate
from memory_models.reading import Reading
from memory_models.remedies import find_remedies

VERSION = 1


def estimate_answer(reading: Reading, capacity_bytes: int | None) -> dict[str, Any]:
    """Every rank, and against a capacity the headroom. Raises ValueError where nothing can be laid out."""
    answer = estimate(reading.job)
    return {
        **answer.to_json(),
        "version": VERSION,
        "question": "estimate",
        **_against(answer, capacity_bytes),
        **_said(reading),
    }


def comparison_answer(before: Reading, after: Reading) -> dict[str, Any]:
    """Bytes by component and category, and the keys that explain them."""
    return {
        **compare(before.job, after.job).to_json(),
        "version": VERSION,
        "question": "comparison",
        "before_notes": list(before.notes),
        **_said(after),
    }


def remedies_answer(reading: Reading, capacity_bytes: int) -> dict[str, Any]:
    """What to change, best first; illegal changes last, with the check that refuses them."""
    return {
        "version": VERSION,
        "question": "remedies",
        **_against(estimate(reading.job), capacity_bytes),
        "remedies": [remedy.to_json() for remedy in find_remedies(reading.job, capacity_bytes)],
        **_said(reading),
    }


def advice_answer(reading: Reading, capacity_bytes: int) -> dict[str, Any]:
    """How to bring the job up, a gate a step."""
    return {
        "version": VERSION,
        "question": "advice",
        **_against(estimate(reading.job), capacity_bytes),
        "steps": [step.to_json() for step in advise(reading.job, capacity_bytes)],
        **_said(reading),
    }


def _against(answer: Estimate, capacity_bytes: int | None) -> dict[str, Any]:
    worst = answer.worst
    row: dict[str, Any] = {"device_bytes": worst.device_bytes, "capacity_bytes": capacity_bytes}
    if capacity_bytes is None:
        return row
    outside = worst.device_bytes - worst.allocated_bytes
    likely = (
        "fits"
        if worst.high_bytes + outside <= capacity_bytes
        else ("does not fit" if worst.low_bytes + outside > capacity_bytes else "may fit")
    )
    return row | {"headroom_bytes": answer.headroom_bytes(capacity_bytes), "verdict": likely}


def _said(reading: Reading) -> dict[str, Any]:
    return {"notes": list(reading.notes), "ignored": list(reading.ignored)}
