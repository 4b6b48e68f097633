"""Holds a bisection whose GPU hours need somebody's approval, and carries out what was decided.

When one is needed is `bisection.approval`'s matter, who may decide the service's.
"""

from __future__ import annotations

from collections.abc import Sequence

from bisection.adapters.catalogue import Profile
from bisection.adapters.storage.bisections import BisectionRow, Status
from bisection.adapters.storage.decisions import REFUSED
from bisection.approval import used_up
from bisection.ledger import LedgerEntry
from bisection.specification import BisectionSpec
from workers.context import WorkerContext

#: The event of a bisection that waits for approval, with ``text``.
HELD = "held"


def hold_if_spent(
    context: WorkerContext, row: BisectionRow, spec: BisectionSpec, ledger: Sequence[LedgerEntry]
) -> bool:
    """Whether it was stopped here, since its profile allows no more GPU hours and nobody approved them."""
    limit = Profile.model_validate(row.profile).limits.gpu_hours_without_approval
    used = used_up(limit, spec, ledger)
    if used is None or row.approval is not None:
        return False
    text = f"It has used {used:.2f} GPU hours, and its profile allows {limit:g} without approval."
    return context.bisections.move(row.id, [Status.RUNNING], HELD, {"text": text}, status=Status.HELD.value)


def resume(context: WorkerContext, row: BisectionRow) -> bool:
    """An approval that came while another worker held it: it goes on."""
    return context.bisections.move(row.id, [Status.HELD], "resumed", {}, status=Status.RUNNING.value)


def refusal_words(row: BisectionRow) -> str:
    """Who refused the GPU hours and why; "" where nobody did."""
    if row.approval is None or row.approval["decision"] != REFUSED:
        return ""
    reason = row.approval["reason"]
    return f"{row.approval['by']} refused its GPU hours" + (f": {reason}" if reason else ".")
