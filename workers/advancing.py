"""`advance`: move one bisection as far as it can go now. Short, idempotent, safe to repeat.

Replay the ledger, write the next trials, publish their hints. Every write is
conditional on what was read, so two workers that advance the same bisection at
once do no harm: the later one finds its view old and looks again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import structlog

from bisection.adapters.catalogue import Profile
from bisection.adapters.mirror import MirrorError
from bisection.adapters.storage.bisections import BisectionRow, Kind, Status
from bisection.adapters.storage.trials import Trials
from bisection.approval import expected_above
from bisection.descent import whole_answer
from bisection.finding import Finding, FindingKind
from bisection.ledger import LedgerEntry
from bisection.report import Evidence, rejected_report
from bisection.search import Search
from bisection.specification import BisectionSpec
from workers.announcing import announce_due, plan_announcements
from workers.answer_so_far import note_answer_so_far
from workers.approvals import hold_if_spent, refusal_words, resume
from workers.context import WorkerContext
from workers.descending import descend
from workers.inheriting import inherit, replayed
from workers.reporting import make_report
from workers.resolution import Resolved, refused_key, rejected, resolve
from workers.sweeping import give_up as give_up_sweep
from workers.sweeping import sweep
from workers.taking_over import Standing, content_keys, take_over
from workers.verifying import can_be_reverted, changes_nothing, give_up, is_verified, verify

log = structlog.get_logger(__name__)

#: An advance that fails this often is a fault that repeating does not mend.
MOST_FAULTS = 5
#: Faults in quick succession count once: a network that is away for a minute is no reason to give up.
FAULT_SECONDS = 30.0


def advance(context: WorkerContext, bisection_id: str) -> None:
    """One step after another until the bisection waits for trials, for people, or has ended."""
    try:
        while _step(context, context.bisections.get(bisection_id)):
            pass
    except Exception as error:
        # Whatever it is, it must not be lost in a log: people watch the bisection, not the worker.
        log.exception("advance failed", bisection=bisection_id)
        _note_fault(context, bisection_id, error)


def _note_fault(context: WorkerContext, bisection_id: str, error: Exception) -> None:
    faults = context.bisections.events(bisection_id, kind="fault")
    if faults and (_age_seconds(faults[-1].at) < FAULT_SECONDS):
        return
    context.bisections.note(bisection_id, "fault", {"text": f"{type(error).__name__}: {error}"})
    if len(faults) + 1 >= MOST_FAULTS:
        _give_up(context, bisection_id, error)


def _give_up(context: WorkerContext, bisection_id: str, error: Exception) -> None:
    if isinstance(error, MirrorError):
        finding = rejected(str(error), error.problem)
    else:
        finding = Finding(
            kind=FindingKind.NONE,
            why=f"firstbad itself failed {MOST_FAULTS} times at this bisection: {error}. Please report it.",
            problem="internal-fault",
        )
    row = context.bisections.get(bisection_id)
    if row.kind is Kind.SWEEP:
        give_up_sweep(context, row, error)
        return
    if row.status is Status.VERIFYING:
        give_up(context, row, error)
        return
    context.trials.cancel_all(bisection_id)
    if not context.bisections.conclude(bisection_id, finding):
        # Not even the report could be made: say at least that.
        report = rejected_report(finding, Evidence(bisection=bisection_id))
        context.bisections.finish(bisection_id, report.to_json())


def _step(context: WorkerContext, row: BisectionRow) -> bool:
    """True if something was done after which there may be more to do."""
    if row.kind is Kind.SWEEP:
        return sweep(context, row)
    match row.status:
        case Status.RESOLVING:
            return _resolve(context, row)
        case Status.PLANNED:
            return row.cancel_requested and _conclude(context, row, _cancelled_early())
        case Status.HELD:
            return _decided(context, row)
        case Status.RUNNING:
            return _search(context, row)
        case Status.VERIFYING:
            return verify(context, row)
        case Status.REPORTING:
            report = make_report(context, row)
            plan_announcements(context, row)
            ended = context.bisections.finish(row.id, report.to_json())
            announce_due(context)
            return ended
        case Status.ENDED:
            return False


def _refusal(row: BisectionRow, search: Search, ledger: Sequence[LedgerEntry]) -> Finding | None:
    """A configuration key that neither end has is the request's fault, not a commit's.

    One end alone proves nothing: the loss of the key may be the very regression.
    """
    overrides = row.request.get("overrides") or {}
    refused: dict[int, LedgerEntry] = {}
    for entry in ledger:
        place = search.line.places.get(entry.trial.state)
        if place is not None and refused_key(entry.measurement, overrides) is not None:
            refused[place] = entry
    if not {0, search.line.last} <= refused.keys():
        return None
    measurement = refused[search.line.last].measurement
    why = (
        f"The training configuration has no key {refused_key(measurement, overrides)!r}, "
        f"at neither end of the range: {measurement.reason}. Correct or remove the override."
    )
    return rejected(why, "unknown-configuration-key")


def _age_seconds(stamp: str) -> float:
    return (datetime.now(UTC) - datetime.fromisoformat(stamp)).total_seconds()


def _cancelled_early() -> Finding:
    return Finding(
        kind=FindingKind.NONE,
        why="It was cancelled before anything was measured.",
        problem="cancelled",
    )


def _conclude(context: WorkerContext, row: BisectionRow, finding: Finding) -> bool:
    context.trials.cancel_all(row.id)
    return context.bisections.conclude(row.id, finding)


def _resolve(context: WorkerContext, row: BisectionRow) -> bool:
    if row.cancel_requested:
        return _conclude(context, row, _cancelled_early())
    profile = Profile.model_validate(row.profile)
    past = context.trials.usual_seconds(profile.name)
    answer = replayed(context, row.request, past) or resolve(context, row.request, profile, past)
    if isinstance(answer, Resolved):
        preview = bool(row.request.get("preview"))
        limit, budget = profile.limits.gpu_hours_without_approval, answer.spec.budget
        hold = expected_above(limit, answer.plan, budget.gpu_hours) is not None
        return context.bisections.resolve(row.id, answer.spec, answer.plan, preview=preview, hold=hold)
    return _conclude(context, row, answer)


def _stop(context: WorkerContext, row: BisectionRow, finding: Finding) -> bool:
    """End on the level where the search is now; what was found above it stands."""
    assert row.specification is not None  # a running bisection was resolved
    return _conclude(context, row, whole_answer(row.specification, finding))


def _go_down(context: WorkerContext, row: BisectionRow, finding: Finding) -> bool:
    """Open what was found, or end with it."""
    spec = row.specification
    assert spec is not None  # a running bisection was resolved
    profile = Profile.model_validate(row.profile)
    if spec.levels[-1].is_ground and can_be_reverted(spec, finding):
        why = changes_nothing(context, profile, spec, finding)
        if why:
            without = replace(spec, excluded=(*spec.excluded, finding.commits[0]))
            context.bisections.reopen(row.id, row.version, without, why)
            return True
    way = descend(context, profile, spec, finding, widen=bool(row.request.get("widen")))
    if way.answer is not None:
        return _found(context, row, way.spec, way.answer)
    # Where another worker was faster, its view is taken up at the next look.
    context.bisections.open_level(row.id, row.version, way.spec)
    return True


def _found(context: WorkerContext, row: BisectionRow, spec: BisectionSpec, answer: Finding) -> bool:
    """The answer of all levels: what can be tried further is, anything else reported."""
    if not is_verified(row, spec, answer):
        return _conclude(context, row, answer)
    context.trials.cancel_all(row.id)
    return context.bisections.verify(row.id, answer)


def _decided(context: WorkerContext, row: BisectionRow) -> bool:
    """A held bisection ends, with what is known, if somebody refused or cancelled it."""
    refused = refusal_words(row)
    if not refused and not row.cancel_requested:
        return row.approval is not None and resume(context, row)
    why, problem = (refused, "approval-refused") if refused else ("It was cancelled.", "cancelled")
    spec = row.specification
    ledger = Trials.ledger(context.trials.of(row.id))
    if spec is None or not ledger:
        return _conclude(context, row, Finding(kind=FindingKind.NONE, why=why, problem=problem))
    return _stop(context, row, Search.replay(spec, ledger).answer_now(why, problem))


def _search(context: WorkerContext, row: BisectionRow) -> bool:
    spec = row.specification
    assert spec is not None  # a running bisection was resolved
    rows = context.trials.of(row.id)
    ledger, pending = Trials.ledger(rows), Trials.pending(rows)
    search = Search.replay(spec, ledger)
    if row.cancel_requested:
        return _stop(context, row, search.answer_now("It was cancelled.", "cancelled"))
    limit = spec.budget.seconds
    if limit is not None and _age_seconds(row.created_at) > limit:
        why = f"The budget of {limit:g} seconds is spent."
        return _stop(context, row, search.answer_now(why, "budget-spent"))
    refusal = _refusal(row, search, ledger)
    if refusal is not None:
        return _conclude(context, row, refusal)
    keys = content_keys(row, spec)
    if inherit(context, row, search, [known.trial for known in rows], keys):
        return True
    taking = take_over(context, row, search, [known.trial for known in rows], keys)
    if taking is Standing.CHANGED:
        return True
    # Where others have measured most of it, one trial of our own comes first: it shows what counts here.
    decision = search.next(1 if taking is Standing.AWAITED else spec.parallel, pending)
    if isinstance(decision, Finding):
        return _go_down(context, row, decision)
    if decision and hold_if_spent(context, row, spec, ledger):
        return False
    cancelled = search.cancellable(pending)
    if not decision and not cancelled:
        note_answer_so_far(context, row, spec, ledger, pending)
        return False
    queue = Profile.model_validate(row.profile).queue
    written = context.trials.apply(
        row.id, row.version, queue=queue, add=decision, cancel=cancelled, reuse_key=keys.key
    )
    if not written:
        return True
    for _ in decision:
        context.hints.work(queue)
    kept = [trial for trial in pending if trial not in cancelled]
    note_answer_so_far(context, row, spec, ledger, [*kept, *decision])
    return False
