"""The moves of sweeps, whose rows stand among those of bisections: they own trials in the same way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import and_, or_, select

from bisection.adapters.storage.bisections import BisectionRow, Bisections, Kind, Status
from bisection.adapters.storage.database import Database, now
from bisection.adapters.storage.schema import bisections
from bisection.adapters.storage.trials import TrialRow, Trials, TrialStatus
from bisection.sweep import SweepSpec
from bisection.sweep_report import SweepReport, Swept, build_sweep_report
from memory_models.variations import Axis


class Sweeps:
    """Every move is conditional on where the sweep stands; False, and nothing is written, if elsewhere."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._rows = Bisections(database)

    def resolve(self, sweep_id: str, spec: SweepSpec) -> bool:
        """Its commit is known: the base is wanted."""
        told = {"commit": spec.state.commit}
        return self._rows.move(
            sweep_id, [Status.RESOLVING], "resolved", told, spec=spec.to_json(), status=Status.RUNNING.value
        )

    def plan(self, sweep_id: str, spec: SweepSpec) -> bool:
        """Its points are known. Whoever plans comes to the same points, so doing it twice does no harm."""
        told = {"points": len(spec.points), "illegal": sum(bool(point.illegal) for point in spec.points)}
        return self._rows.move(sweep_id, [Status.RUNNING], "planned", told, spec=spec.to_json())

    def finish(self, sweep_id: str, report: Mapping[str, Any]) -> bool:
        return self._rows.move(
            sweep_id,
            [Status.RESOLVING, Status.RUNNING],
            "ended",
            {},
            report=dict(report),
            status=Status.ENDED.value,
            ended_at=now(),
        )

    def page(self, *, limit: int, before: tuple[str, str] | None = None) -> list[str]:
        """Ids, the newest first; ``before`` is (created_at, id) of the last one already seen."""
        query = (
            select(bisections.c.id)
            .where(bisections.c.kind == Kind.SWEEP.value)
            .order_by(bisections.c.created_at.desc(), bisections.c.id.desc())
        )
        if before:
            created_at, sweep_id = before
            query = query.where(
                or_(
                    bisections.c.created_at < created_at,
                    and_(bisections.c.created_at == created_at, bisections.c.id < sweep_id),
                )
            )
        with self._database.read() as connection:
            return [row.id for row in connection.execute(query.limit(limit))]


def sweep_so_far(
    row: BisectionRow, trials: Sequence[TrialRow], *, ended: bool, failure: str = "", problem: str = ""
) -> SweepReport:
    """What is known of a sweep: its report, whole once it has ended."""
    swept = Swept(
        sweep=row.id,
        repository=str(row.profile.get("repository", "")),
        profile=str(row.profile.get("name", "")),
        at=str(row.request.get("at", "")),
        started_at=row.created_at,
        ended_at=now() if ended else "",
    )
    if row.spec is None:
        axes = {Axis(name): tuple(words) for name, words in row.request["axes"].items()}
        return SweepReport(
            swept=swept, axes=axes, capacity_bytes=None, failure=failure, problem=problem, ended=ended
        )
    return build_sweep_report(
        SweepSpec.from_json(row.spec),
        Trials.ledger(trials),
        [one.trial for one in trials if one.status is TrialStatus.RUNNING],
        swept,
        ended=ended,
        failure=failure,
        problem=problem,
    )
