"""The rows of trials, and the append-only ledger that the finished ones form.

How a trial is handed out and measured is `claims`' matter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import Any

from sqlalchemy import Connection, Row, func, insert, or_, select, update

from bisection.adapters.storage.bisections import Status, append_event
from bisection.adapters.storage.clock import Clock
from bisection.adapters.storage.database import Database, new_id, now
from bisection.adapters.storage.schema import bisections, trials
from bisection.commits import State
from bisection.ledger import LedgerEntry, Trial
from bisection.measurement import Measurement


class TrialStatus(StrEnum):
    """Where a trial stands."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"


@dataclass(frozen=True, kw_only=True)
class TrialRow:
    """One trial as stored. ``sequence`` is its place in the ledger, None until it is done."""

    id: str
    bisection_id: str
    ordinal: int
    trial: Trial
    queue: str
    status: TrialStatus
    claim: int
    worker: str | None
    created_at: str
    started_at: str | None
    ended_at: str | None
    progress: str
    sequence: int | None
    measurement: Measurement | None
    reuse_key: str | None = None  #: under which other bisections find its measurement


_COLUMNS = tuple(trials.c[name] for name in TrialRow.__dataclass_fields__)


def _trial(row: Row[Any]) -> TrialRow:
    values = row._mapping
    measurement = values["measurement"]
    return TrialRow(
        **{
            **values,
            "trial": Trial.from_json(values["trial"]),
            "status": TrialStatus(values["status"]),
            "measurement": Measurement.from_json(measurement) if measurement else None,
        }
    )


def _queue(
    connection: Connection, bisection_id: str, queue: str, trial: Trial, ordinal: int, reuse_key: str | None
) -> dict[str, Any]:
    """Queue a trial; one that was cancelled and is wanted after all is queued again."""
    queued = {"status": TrialStatus.QUEUED.value, "queued_at": Clock(), "trial": trial.to_json()}
    again = connection.execute(
        update(trials)
        .where(
            trials.c.bisection_id == bisection_id,
            trials.c.key == trial.key,
            trials.c.status == TrialStatus.CANCELLED.value,
        )
        .values(**queued, ended_at=None, published_at=None)
        .returning(trials.c.id, trials.c.ordinal)
    ).first()
    if again:
        return {"trial": again.id, "ordinal": again.ordinal}
    row = {
        "id": new_id(),
        "bisection_id": bisection_id,
        "key": trial.key,
        "ordinal": ordinal,
        "queue": queue,
        "reuse_key": reuse_key,
        "created_at": now(),
        "claim": 0,
        "progress": "",
        **queued,
    }
    connection.execute(insert(trials).values(row))
    return {"trial": row["id"], "ordinal": ordinal}


class Trials:
    """Adds trials, cancels them, and reads them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def of(self, bisection_id: str) -> list[TrialRow]:
        """All trials of a bisection in the order of their creation."""
        query = select(*_COLUMNS).where(trials.c.bisection_id == bisection_id).order_by(trials.c.ordinal)
        with self._database.read() as connection:
            return [_trial(row) for row in connection.execute(query)]

    def get(self, trial_id: str) -> TrialRow:
        """Raises KeyError."""
        with self._database.read() as connection:
            row = connection.execute(select(*_COLUMNS).where(trials.c.id == trial_id)).first()
        if row is None:
            raise KeyError(trial_id)
        return _trial(row)

    @staticmethod
    def ledger(rows: Sequence[TrialRow]) -> tuple[LedgerEntry, ...]:
        """The finished trials among the rows, in the order of arrival."""
        entries = [
            LedgerEntry(sequence=row.sequence, trial=row.trial, measurement=row.measurement)
            for row in rows
            if row.sequence is not None and row.measurement is not None
        ]
        return tuple(sorted(entries, key=lambda entry: entry.sequence))

    @staticmethod
    def pending(rows: Sequence[TrialRow]) -> tuple[Trial, ...]:
        live = (TrialStatus.QUEUED, TrialStatus.RUNNING)
        return tuple(row.trial for row in rows if row.status in live)

    def apply(
        self,
        bisection_id: str,
        version: int,
        *,
        queue: str,
        add: Sequence[Trial] = (),
        cancel: Sequence[Trial] = (),
        reuse_key: Callable[[State], str | None] = lambda _: None,
    ) -> bool:
        """Write one decision of the search; False if the bisection changed since it was made.

        ``reuse_key`` gives the key under which other bisections find the measurement of a state.
        """
        with self._database.write() as connection:
            moved = connection.execute(
                update(bisections)
                .where(
                    bisections.c.id == bisection_id,
                    bisections.c.version == version,
                    bisections.c.status.in_([Status.RUNNING.value, Status.VERIFYING.value]),
                )
                .values(version=version + 1, updated_at=now())
            ).rowcount
            if not moved:
                return False
            count = connection.execute(
                select(func.count()).where(trials.c.bisection_id == bisection_id)
            ).scalar_one()
            for offset, trial in enumerate(add):
                key = reuse_key(trial.state)
                row = _queue(connection, bisection_id, queue, trial, count + offset, key)
                append_event(connection, bisection_id, "trial_queued", {**row, **trial.to_json()})
            for trial in cancel:
                connection.execute(
                    update(trials)
                    .where(
                        trials.c.bisection_id == bisection_id,
                        trials.c.key == trial.key,
                        trials.c.status.in_([TrialStatus.QUEUED.value, TrialStatus.RUNNING.value]),
                    )
                    .values(status=TrialStatus.CANCELLED.value, ended_at=now())
                )
        return True

    def cancel_all(self, bisection_id: str) -> None:
        with self._database.write() as connection:
            connection.execute(
                update(trials)
                .where(
                    trials.c.bisection_id == bisection_id,
                    trials.c.status.in_([TrialStatus.QUEUED.value, TrialStatus.RUNNING.value]),
                )
                .values(status=TrialStatus.CANCELLED.value, ended_at=now())
            )

    def waiting(self, queue: str) -> bool:
        """Whether a trial of the queue is not being run."""
        query = (
            select(trials.c.id)
            .where(trials.c.queue == queue, trials.c.status == TrialStatus.QUEUED.value)
            .limit(1)
        )
        with self._database.read() as connection:
            return connection.execute(query).first() is not None

    def usual_seconds(self, profile: str) -> float | None:
        """Median wall time of the profile's last twenty trials; None before the first."""
        query = (
            select(trials.c.measurement)
            .join(bisections, bisections.c.id == trials.c.bisection_id)
            .where(
                trials.c.sequence.is_not(None),
                trials.c.source_trial.is_(None),
                bisections.c.request["profile"].as_string() == profile,
            )
            .order_by(trials.c.ended_at.desc())
            .limit(20)
        )
        with self._database.read() as connection:
            seconds = [row.measurement["seconds"] for row in connection.execute(query)]
        return median(seconds) if seconds else None

    def unpublished(self, older_than: float) -> list[tuple[str, str]]:
        """(trial id, queue) of queued trials whose last hint is older than so many seconds."""
        query = select(trials.c.id, trials.c.queue).where(
            trials.c.status == TrialStatus.QUEUED.value,
            or_(trials.c.published_at.is_(None), trials.c.published_at < Clock() - older_than),
        )
        with self._database.read() as connection:
            return [(row.id, row.queue) for row in connection.execute(query)]

    def mark_published(self, trial_ids: Sequence[str]) -> None:
        if not trial_ids:
            return
        with self._database.write() as connection:
            connection.execute(update(trials).where(trials.c.id.in_(trial_ids)).values(published_at=Clock()))
