"""Tells people what is known of a running bisection: once for every change of its ledger.

Nothing depends on it: it is an event, which the API, the pages and the terminal show.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from bisection.adapters.storage.bisections import BisectionRow
from bisection.ledger import LedgerEntry, Trial
from bisection.progress import ANSWER_SO_FAR, progress
from bisection.specification import BisectionSpec
from workers.context import WorkerContext

log = structlog.get_logger(__name__)


def note_answer_so_far(
    context: WorkerContext,
    row: BisectionRow,
    spec: BisectionSpec,
    ledger: Sequence[LedgerEntry],
    pending: Sequence[Trial],
) -> None:
    """Two workers at once may tell the same twice; that does no harm."""
    known = context.bisections.last_event(row.id, ANSWER_SO_FAR)
    here = (len(spec.levels) - 1, len(ledger))
    if known is not None and (known.payload["level"], known.payload["after"]) == here:
        return
    try:
        told = progress(spec, ledger, pending).to_json()
    except Exception:
        # Faults of an advance end a bisection; what only tells of it must not.
        log.exception("the answer so far could not be told", bisection=row.id)
        return
    context.bisections.note(row.id, ANSWER_SO_FAR, told)
