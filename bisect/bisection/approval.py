"""When a bisection needs somebody's approval: above the GPU hours that its profile allows without one.

The limit holds twice: of what a bisection is expected to take, before its first trial, and of what it has
taken, while it runs. So the first bisection of a profile, whose trials nobody has timed yet, starts, and
waits once it has used what it may. Trials that run by then end; none is started beyond them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bisection.ledger import LedgerEntry
from bisection.specification import BisectionSpec


def expected_above(
    limit: float | None, plan: Mapping[str, Any], budget_gpu_hours: float | None
) -> float | None:
    """The GPU hours that a plan expects, at most its budget, where they are above the limit; else None."""
    hours = plan.get("gpu_hours")
    if limit is None or hours is None:
        return None
    expected = float(hours) if budget_gpu_hours is None else min(float(hours), budget_gpu_hours)
    return expected if expected > limit else None


def used_up(limit: float | None, spec: BisectionSpec, ledger: Sequence[LedgerEntry]) -> float | None:
    """The GPU hours that this bisection's own trials took, where they reach the limit; else None.

    A job without GPUs never reaches it.
    """
    if limit is None or not spec.gpus_per_trial:
        return None
    used = gpu_hours(spec, ledger)
    return used if used >= limit else None


def gpu_hours(spec: BisectionSpec, ledger: Sequence[LedgerEntry]) -> float:
    """GPU hours of the trials that were run for it, without those that were taken over."""
    seconds = sum(entry.measurement.seconds for entry in ledger if not entry.trial.taken_from)
    return seconds * spec.gpus_per_trial / 3600
