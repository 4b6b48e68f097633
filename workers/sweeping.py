"""`advance` of a sweep: the commit, the base, the points in their turn, the report. Short and idempotent.

Everything is derived from rows, so a crash anywhere only repeats a step. A point that fails is a result; only
a base without a configuration ends a sweep early, for then nobody knows what to change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bisection.adapters.catalogue import CatalogueError, Profile
from bisection.adapters.mirror import MirrorError, Unreachable
from bisection.adapters.storage.bisections import BisectionRow, Status
from bisection.adapters.storage.sweeps import Sweeps, sweep_so_far
from bisection.adapters.storage.trials import TrialRow, Trials
from bisection.commits import State
from bisection.ledger import LedgerEntry
from bisection.measurement import Measurement, Outcome
from bisection.sweep import SweepPoint, SweepSpec, batch_of, decided, plan_points, wanted_trials
from memory_models.variations import Axis
from workers.building import BuildHostError
from workers.context import WorkerContext
from workers.eras import OverrideRefused
from workers.evidence import Side, image_load, recorded_configuration, upstream_of
from workers.launching import check_overrides
from workers.requirement_lock import Unbuildable
from workers.resolution import is_elsewhere, open_mirror
from workers.state_reading import lock_at

#: The base has no changes, whatever its settings are called.
_BASE = SweepPoint(settings={})


def sweep(context: WorkerContext, row: BisectionRow) -> bool:
    """One step; True if there may be more to do now."""
    match row.status:
        case Status.RESOLVING:
            return _resolve(context, row)
        case Status.RUNNING:
            return _run(context, row)
        case _:
            return False


def give_up(context: WorkerContext, row: BisectionRow, error: Exception) -> None:
    """End it with what was measured: firstbad itself failed at it, again and again."""
    problem = error.problem if isinstance(error, MirrorError) else "internal-fault"
    _finish(context, row, f"firstbad itself failed at this sweep: {error}. Please report it.", problem)


def _resolve(context: WorkerContext, row: BisectionRow) -> bool:
    if row.cancel_requested:
        return _finish(context, row, "It was cancelled before anything was measured.", "cancelled")
    profile = Profile.model_validate(row.profile)
    request = row.request
    try:
        check_overrides(request.get("overrides") or {})
        mirror = open_mirror(context, profile)
        mirror.fetch()
        (commit,) = mirror.read_back(mirror.resolve(request["at"]), 0)
    except Unreachable as error:
        if is_elsewhere(context, profile):
            raise
        return _finish(context, row, str(error), error.problem)
    except MirrorError as error:
        return _finish(context, row, str(error), error.problem)
    except CatalogueError as error:
        return _finish(context, row, str(error), "repository-not-registered")
    except OverrideRefused as error:
        return _finish(context, row, str(error), "override-refused")
    # Trials beside each other on one host's CPU would slow each other down.
    alone = profile.device == "cpu"
    workers = 1 if alone else max(1, len(context.roster.alive(profile.queue)))
    spec = SweepSpec(
        state=State(commit=commit.hash),
        subject=commit.subject,
        axes={Axis(name): tuple(words) for name, words in request["axes"].items()},
        capacity_bytes=request.get("capacity_bytes") or profile.capacity_bytes,
        parallel=request.get("parallel") or workers,
        world_size=profile.world_size,
    )
    return Sweeps(context.database).resolve(row.id, spec)


def _run(context: WorkerContext, row: BisectionRow) -> bool:
    assert row.spec is not None  # a running sweep was resolved
    spec = SweepSpec.from_json(row.spec)
    rows = context.trials.of(row.id)
    if row.cancel_requested:
        return _finish(context, row, "It was cancelled.", "cancelled")
    ledger, pending = Trials.ledger(rows), Trials.pending(rows)
    base = decided(_BASE, spec, ledger)
    if base is not None and not spec.points:
        return _plan(context, row, spec, rows, base)
    wanted = wanted_trials(spec, ledger, pending)
    if not wanted and not pending:
        return _finish(context, row)
    if not wanted:
        return False
    profile = Profile.model_validate(row.profile)
    above = _above_limit(profile, ledger)
    if above:
        return False if pending else _finish(context, row, above, "budget-spent")
    queue = profile.queue
    if not context.trials.apply(row.id, row.version, queue=queue, add=wanted):
        return True  # the row has changed: look again
    for _ in wanted:
        context.hints.work(queue)
    return False


def _above_limit(profile: Profile, ledger: Sequence[LedgerEntry]) -> str:
    """Why no further point is started; "" while the profile allows more GPU hours without approval."""
    limit = profile.limits.gpu_hours_without_approval
    used = sum(entry.measurement.seconds for entry in ledger) * profile.gpus / 3600
    if limit is None or not profile.gpus or used < limit:
        return ""
    return (
        f"It has used {used:.2f} GPU hours, and profile {profile.name!r} allows {limit:g} without approval: "
        "go on with fewer points."
    )


def _plan(
    context: WorkerContext, row: BisectionRow, spec: SweepSpec, rows: list[TrialRow], base: Measurement
) -> bool:
    """The points, from what the base resolved to."""
    profile = Profile.model_validate(row.profile)
    measured = next(one for one in reversed(rows) if one.measurement is base)
    content = context.artifacts.content(measured.id, "config.json")
    if content is None:
        told = base.reason or base.outcome.value.replace("_", " ")
        why = f"The job as it is recorded no configuration, so that nothing can be changed in it: {told}"
        return _finish(context, row, why.rstrip(".") + ".", base.outcome.value.replace("_", "-"))
    try:
        config = recorded_configuration(content)
        side = Side(commit=spec.state.commit, measurement=base, config=config)
        points = plan_points(
            spec,
            config,
            ran=base.outcome is Outcome.COMPLETED,
            images=image_load(side),
            upstream=upstream_of(_lock(context, profile, spec)),
        )
    except ValueError as error:
        return _finish(context, row, f"There is nothing to sweep: {error}.", "invalid-request")
    return Sweeps(context.database).plan(row.id, replace(spec, points=points, batch=batch_of(config)))


def _lock(context: WorkerContext, profile: Profile, spec: SweepSpec) -> str:
    """The lock's text, for the releases that it names; "" where there is none that can be read."""
    if not profile.environment.lock:
        return ""
    try:
        return lock_at(open_mirror(context, profile), spec.state.commit, profile.environment.lock) or ""
    except (MirrorError, CatalogueError, Unbuildable, BuildHostError):
        return ""


def _finish(context: WorkerContext, row: BisectionRow, failure: str = "", problem: str = "") -> bool:
    context.trials.cancel_all(row.id)
    rows = context.trials.of(row.id)
    report = sweep_so_far(row, rows, ended=True, failure=failure, problem=problem)
    return Sweeps(context.database).finish(row.id, report.to_json())
