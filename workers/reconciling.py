"""`reconcile`: make good whatever a crash or a lost message left undone.

Looks only at the database. Everything it does is idempotent, so it may run on any
number of control workers at once.
"""

from __future__ import annotations

import structlog

from bisection.adapters.storage.claims import Claim
from bisection.adapters.storage.deliveries import Deliveries
from bisection.measurement import Measurement, Outcome
from workers.announcing import announce_due
from workers.context import WorkerContext

log = structlog.get_logger(__name__)

SECONDS = 3.0
#: A hint that led to nothing for so long is sent again.
REPUBLISH_SECONDS = 15.0
#: After so many lost claims a trial is recorded as LOST instead of tried once more.
MOST_CLAIMS = 3


def reconcile(context: WorkerContext) -> None:
    """Free what dead workers hold, send lost hints again, wake unfinished bisections."""
    for claim in context.claims.expired():
        if claim.fence >= MOST_CLAIMS:
            _record_lost(context, claim)
        else:
            context.claims.hand_back(claim)
            log.warning(
                "lease ran out", bisection=claim.bisection_id, trial=claim.trial_id, claim=claim.fence
            )
    queued = context.trials.unpublished(older_than=REPUBLISH_SECONDS)
    sent = [trial_id for trial_id, queue in queued if context.hints.work(queue)]
    context.trials.mark_published(sent)
    for bisection_id in context.bisections.unfinished():
        context.hints.advance(bisection_id)
    for repository in Deliveries(context.database).waiting():
        context.hints.settle(repository)
    announce_due(context)


def _record_lost(context: WorkerContext, claim: Claim) -> None:
    lost = Measurement(
        outcome=Outcome.LOST,
        state=claim.trial.state,
        reason=f"{claim.fence} workers in a row went away while they ran this trial",
    )
    context.claims.complete(claim, lost, {})
