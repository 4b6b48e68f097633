"""What a search has spent of its budget: trials, the hours of GPUs, time.

Pure arithmetic over a ledger; a caller with a clock of its own uses `search.Search.answer_now`.
"""

from __future__ import annotations

from collections.abc import Sequence

from bisection.ledger import LedgerEntry
from bisection.specification import BisectionSpec


def paid(ledger: Sequence[LedgerEntry]) -> list[LedgerEntry]:
    """The entries that cost a run here: not those that another bisection measured."""
    return [entry for entry in ledger if not entry.trial.taken_from]


def trials_left(spec: BisectionSpec, ledger: Sequence[LedgerEntry], pending: int) -> int:
    """How many trials may still be started beside those that run (``pending``)."""
    return spec.budget.trials - len(paid(ledger)) - pending


def spent(spec: BisectionSpec, ledger: Sequence[LedgerEntry], pending: int) -> str:
    """Why the budget is used up, or "" while it is not.

    Trials that run (``pending`` of them) count as spent, and their results are waited for. Wall time is
    estimated as the trials' own time over the trials that run at once.
    """
    budget, counted = spec.budget, paid(ledger)
    seconds = sum(entry.measurement.seconds for entry in counted)
    if len(counted) >= budget.trials and not pending:
        return f"The budget of {budget.trials} trials is spent."
    gpu_hours = seconds * spec.gpus_per_trial / 3600
    if budget.gpu_hours is not None and gpu_hours >= budget.gpu_hours:
        return f"The budget of {budget.gpu_hours:g} GPU hours is spent ({gpu_hours:.2f} were used)."
    if budget.seconds is not None and seconds / spec.parallel >= budget.seconds:
        return f"The budget of {budget.seconds:g} seconds is spent."
    return ""
