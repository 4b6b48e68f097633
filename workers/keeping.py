"""The round that removes what the operator's settings do not keep any longer: bounded, and often enough."""

from __future__ import annotations

from datetime import UTC, datetime

import structlog

from bisection.adapters.storage.removals import Removals
from workers.context import WorkerContext

log = structlog.get_logger(__name__)

SECONDS = 60.0
#: Bisections of one round: a round holds the database's write lock for each of them, one after the other.
AT_MOST = 20


def remove_what_is_due(context: WorkerContext) -> None:
    """Idempotent: any number of control workers may do it at once."""
    moment = datetime.now(UTC)
    for removal in Removals(context.database).apply(context.keeping, moment=moment, at_most=AT_MOST):
        log.info("removed by policy", bisection=removal.bisection_id, what=removal.what, **removal.counts)
