"""The measurements that bisections take over from each other, as a list for people."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import and_, or_, select

from bisection.adapters.storage.database import Database
from bisection.adapters.storage.schema import bisections, trials
from bisection.commits import State
from bisection.ledger import Trial
from bisection.measurement import Outcome


@dataclass(frozen=True, kw_only=True)
class MeasurementFilter:
    """Which measurements a list shows; what is not given excludes nothing."""

    key: str | None = None
    worker: str | None = None
    commit: str | None = None
    outcome: Outcome | None = None
    profile: str | None = None
    retracted: bool | None = None


@dataclass(frozen=True, kw_only=True)
class KnownMeasurement:
    """One original measurement with the key under which others find it."""

    trial_id: str
    bisection_id: str
    ordinal: int
    key: str
    profile: str
    state: State
    worker: str | None
    outcome: Outcome
    ended_at: str
    retracted_at: str | None


class MeasurementPages:
    """Reads; nothing here writes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def page(
        self, *, limit: int, before: tuple[str, str] | None = None, wanted: MeasurementFilter
    ) -> list[KnownMeasurement]:
        """The newest first; ``before`` is (ended_at, trial_id) of the last one already seen."""
        outcome = trials.c.measurement["outcome"].as_string()
        profile = bisections.c.request["profile"].as_string()
        query = (
            select(
                trials.c.id,
                trials.c.bisection_id,
                trials.c.ordinal,
                trials.c.reuse_key,
                profile.label("profile"),
                trials.c.trial,
                trials.c.worker,
                outcome.label("outcome"),
                trials.c.ended_at,
                trials.c.retracted_at,
            )
            .join(bisections, bisections.c.id == trials.c.bisection_id)
            .where(trials.c.reuse_key.is_not(None), trials.c.sequence.is_not(None))
            .order_by(trials.c.ended_at.desc(), trials.c.id.desc())
            .limit(limit)
        )
        if before:
            ended_at, trial_id = before
            query = query.where(
                or_(
                    trials.c.ended_at < ended_at,
                    and_(trials.c.ended_at == ended_at, trials.c.id < trial_id),
                )
            )
        if wanted.key is not None:
            query = query.where(trials.c.reuse_key == wanted.key)
        if wanted.worker is not None:
            query = query.where(trials.c.worker == wanted.worker)
        if wanted.commit is not None:
            query = query.where(trials.c.trial["state", "commit"].as_string() == wanted.commit)
        if wanted.outcome is not None:
            query = query.where(outcome == wanted.outcome.value)
        if wanted.profile is not None:
            query = query.where(profile == wanted.profile)
        if wanted.retracted is not None:
            is_retracted = trials.c.retracted_at.is_not(None)
            query = query.where(is_retracted if wanted.retracted else ~is_retracted)
        with self._database.read() as connection:
            rows = connection.execute(query).all()
        return [
            KnownMeasurement(
                trial_id=row.id,
                bisection_id=row.bisection_id,
                ordinal=row.ordinal,
                key=row.reuse_key,
                profile=row.profile,
                state=Trial.from_json(row.trial).state,
                worker=row.worker,
                outcome=Outcome(row.outcome),
                ended_at=row.ended_at,
                retracted_at=row.retracted_at,
            )
            for row in rows
        ]
