"""`work`: claim one trial of the pool, run it, write what it measured.

The claim is fenced and kept by a lease; a worker that is told to leave hands its
trial back unmeasured, and another one runs it from the start.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from structlog.contextvars import bound_contextvars

from bisection.adapters.catalogue import CatalogueError, Profile
from bisection.adapters.mirror import MirrorError
from bisection.adapters.storage.bisections import BisectionRow, Kind
from bisection.adapters.storage.claims import Claim
from bisection.criteria import Criterion, CriterionKind
from bisection.ledger import Purpose, Trial
from bisection.measurement import Measurement, Outcome
from bisection.sweep import SweepSpec
from workers.context import WorkerContext
from workers.control_run import control_state, with_control
from workers.pulse import Lease
from workers.trial_run import TrialResult, run_trial
from workers.verifying import write_revert

log = structlog.get_logger(__name__)

WRITE_AGAIN_SECONDS = 2.0

#: Runs a claimed trial until it ends, its lease is lost or the worker has to leave.
Measure = Callable[[WorkerContext, Claim, Lease, threading.Event], TrialResult]


def work(context: WorkerContext, leaving: threading.Event, measure: Measure | None = None) -> bool:
    """Run at most one trial; False if there was none for this worker.

    ``measure`` stands in for running it really.
    """
    claim = context.claims.claim(context.queue, context.name)
    if claim is None:
        if context.trials.waiting(context.queue):
            # Somebody else's trial: pass the hint on to a worker that may take it, without haste,
            # since that worker may be busy and this one would get its own hint back.
            leaving.wait(1.0)
            context.hints.work(context.queue)
        return False
    with bound_contextvars(bisection=claim.bisection_id, trial=claim.trial_id, worker=context.name):
        _run(context, claim, leaving, measure or _measure)
    context.hints.advance(claim.bisection_id)
    if context.trials.waiting(context.queue):
        context.hints.work(context.queue)
    return True


def _run(context: WorkerContext, claim: Claim, leaving: threading.Event, measure: Measure) -> None:
    log.info("trial starts", claim=claim.fence)
    with Lease(context.claims, claim) as lease:
        result = measure(context, claim, lease, leaving)
    if lease.lost:
        log.warning("trial is not wanted from this worker any more", why=lease.verdict.value)
    elif leaving.is_set():
        context.claims.hand_back(claim)
        log.info("trial handed back")
    else:
        kept = context.claims.complete(claim, result.measurement, result.artifacts)
        log.info("trial ends", outcome=result.measurement.outcome.value, kept=kept)


def _write(context: WorkerContext, claim: Claim, result: TrialResult, leaving: threading.Event) -> bool:
    """False if the claim was lost. A database that is away is waited for: the trial may have taken hours.

    Raises what the database says if the worker is told to leave meanwhile; then the lease runs out.
    """
    while True:
        try:
            return context.claims.complete(claim, result.measurement, result.artifacts)
        except DBAPIError as error:
            # Where only the answer was lost, the next try finds the trial done, and writes nothing.
            away = isinstance(error, (OperationalError, InterfaceError)) or error.connection_invalidated
            if not away or leaving.wait(WRITE_AGAIN_SECONDS):
                raise
            log.warning("the measurement could not be written yet", trial=claim.trial_id, error=str(error))


def _measure(context: WorkerContext, claim: Claim, lease: Lease, leaving: threading.Event) -> TrialResult:
    row = context.bisections.get(claim.bisection_id)
    profile = Profile.model_validate(row.profile)
    try:
        repository = context.catalogue.repository(profile.repository)
        if claim.trial.purpose is Purpose.REVERT:
            write_revert(context, row, claim.trial)
    except (CatalogueError, MirrorError) as error:
        lost = Measurement(
            outcome=Outcome.LOST, state=claim.trial.state, reason=str(error), worker=context.name
        )
        return TrialResult(measurement=lost)

    def run(trial: Trial, words: str = "") -> TrialResult:
        return run_trial(
            trial,
            profile=profile,
            repository=repository,
            catalogue=context.catalogue,
            root=context.root,
            overrides={**(row.request.get("overrides") or {}), **trial.overrides},
            capacity_bytes=_capacity(row) if trial.enforce_capacity else None,
            full=_asks_for_allocations(row, trial),
            worker=context.name,
            pseudonym_key=context.keys.pseudonyms(),
            cancelled=lambda: lease.lost or leaving.is_set(),
            progress=lambda line: lease.say(f"{words}{line}"),
        )

    result = run(claim.trial)
    spec = row.specification if row.kind is Kind.BISECTION else None
    good = control_state(profile, spec) if spec else None
    if good is None:
        return result
    return with_control(result, claim.trial, good, lambda trial: run(trial, "control: "))


def _asks_for_allocations(row: BisectionRow, trial: Trial) -> bool:
    """The full mode costs time: only what confirms a culprit of memory, and its parent, is run so."""
    if row.kind is not Kind.BISECTION or row.spec is None or trial.purpose is not Purpose.CONFIRM:
        return False
    kind = Criterion.from_json(row.spec["criterion"]).kind
    return kind in (CriterionKind.OUT_OF_MEMORY, CriterionKind.PEAK_MEMORY)


def _capacity(row: BisectionRow) -> int | None:
    """The limit that the trials of a bisection or a sweep are held to."""
    assert row.spec is not None  # only what was resolved has trials
    if row.kind is Kind.SWEEP:
        return SweepSpec.from_json(row.spec).capacity_bytes
    return Criterion.from_json(row.spec["criterion"]).capacity_bytes
