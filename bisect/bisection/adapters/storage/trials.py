"""The rows of trials: claims, leases, and the append-only ledger that finished ones form.

A trial is claimed by a conditional update that increments its fence. Every later
write names that fence; a worker that was frozen past its lease and thaws finds
its writes refused. So no measurement is ever counted twice.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import Any

from sqlalchemy import Connection, Row, and_, func, insert, or_, select, update

from bisection.adapters.storage.bisections import Status, append_event
from bisection.adapters.storage.database import Database, new_id, now
from bisection.adapters.storage.schema import artifacts, bisections, trials
from bisection.ledger import LedgerEntry, Trial
from bisection.measurement import Measurement

LEASE_SECONDS = 30.0
HEARTBEAT_SECONDS = 5.0
#: After this long an avoided worker may take a trial: better the same worker than never.
AVOIDANCE_SECONDS = 120.0


class TrialStatus(StrEnum):
    """Where a trial stands."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"


class Beat(StrEnum):
    """What a heartbeat learns."""

    CONTINUE = "continue"
    CANCELLED = "cancelled"  #: stop; nobody wants the result
    FENCED = "fenced"  #: stop; another worker has the trial


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


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The right to run one trial, until the lease ends without a heartbeat."""

    trial_id: str
    bisection_id: str
    fence: int
    trial: Trial


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
    connection: Connection, bisection_id: str, queue: str, trial: Trial, ordinal: int
) -> dict[str, Any]:
    """Queue a trial; one that was cancelled and is wanted after all is queued again."""
    queued = {"status": TrialStatus.QUEUED.value, "queued_at": time.time(), "trial": trial.to_json()}
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
        "created_at": now(),
        "claim": 0,
        "progress": "",
        **queued,
    }
    connection.execute(insert(trials).values(row))
    return {"trial": row["id"], "ordinal": ordinal}


class Trials:
    """Adds, hands out and completes trials."""

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
    ) -> bool:
        """Write one decision of the search; False if the bisection changed since it was made."""
        with self._database.write() as connection:
            moved = connection.execute(
                update(bisections)
                .where(
                    bisections.c.id == bisection_id,
                    bisections.c.version == version,
                    bisections.c.status == Status.RUNNING.value,
                )
                .values(version=version + 1, updated_at=now())
            ).rowcount
            if not moved:
                return False
            count = connection.execute(
                select(func.count()).where(trials.c.bisection_id == bisection_id)
            ).scalar_one()
            for offset, trial in enumerate(add):
                row = _queue(connection, bisection_id, queue, trial, count + offset)
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

    def claim(self, queue: str, worker: str) -> Claim | None:
        """The oldest trial of the queue that this worker may run, or None."""
        waiting = or_(
            trials.c.status == TrialStatus.QUEUED.value,
            and_(trials.c.status == TrialStatus.RUNNING.value, trials.c.lease_until < time.time()),
        )
        candidates = (
            select(trials.c.id, trials.c.trial, trials.c.queued_at)
            .where(trials.c.queue == queue, waiting)
            .order_by(trials.c.created_at, trials.c.ordinal)
            .limit(100)
        )
        with self._database.write() as connection:
            for row in connection.execute(candidates).all():
                avoided = worker in Trial.from_json(row.trial).avoid_workers
                if avoided and time.time() - row.queued_at < AVOIDANCE_SECONDS:
                    continue
                claimed = connection.execute(
                    update(trials)
                    .where(trials.c.id == row.id, waiting)
                    .values(
                        status=TrialStatus.RUNNING.value,
                        claim=trials.c.claim + 1,
                        worker=worker,
                        lease_until=time.time() + LEASE_SECONDS,
                        started_at=now(),
                        progress="",
                    )
                    .returning(trials.c.bisection_id, trials.c.claim, trials.c.ordinal)
                ).first()
                if claimed:
                    append_event(
                        connection,
                        claimed.bisection_id,
                        "trial_started",
                        {"trial": row.id, "ordinal": claimed.ordinal, "worker": worker},
                    )
                    return Claim(
                        trial_id=row.id,
                        bisection_id=claimed.bisection_id,
                        fence=claimed.claim,
                        trial=Trial.from_json(row.trial),
                    )
        return None

    def beat(self, claim: Claim, progress: str | None = None) -> Beat:
        """Extend the lease, and learn whether to go on."""
        values: dict[str, Any] = {"lease_until": time.time() + LEASE_SECONDS}
        if progress is not None:
            values["progress"] = progress[:500]
        with self._database.write() as connection:
            kept = connection.execute(
                update(trials)
                .where(
                    trials.c.id == claim.trial_id,
                    trials.c.claim == claim.fence,
                    trials.c.status == TrialStatus.RUNNING.value,
                )
                .values(values)
            ).rowcount
            if kept:
                if progress:
                    append_event(
                        connection,
                        claim.bisection_id,
                        "trial_progress",
                        {"trial": claim.trial_id, "text": progress[:500]},
                    )
                return Beat.CONTINUE
            status = connection.execute(
                select(trials.c.status).where(trials.c.id == claim.trial_id)
            ).scalar_one()
        return Beat.CANCELLED if status == TrialStatus.CANCELLED.value else Beat.FENCED

    def complete(self, claim: Claim, measurement: Measurement, content: Mapping[str, bytes]) -> bool:
        """Append to the ledger; False if the claim is no longer ours, and nothing is written."""
        with self._database.write() as connection:
            sequence = (
                select(func.coalesce(func.max(trials.c.sequence) + 1, 0))
                .where(trials.c.bisection_id == claim.bisection_id)
                .scalar_subquery()
            )
            # Serialises the completions of one bisection where the database has row locks.
            connection.execute(
                select(bisections.c.id).where(bisections.c.id == claim.bisection_id).with_for_update()
            )
            written = connection.execute(
                update(trials)
                .where(
                    trials.c.id == claim.trial_id,
                    trials.c.claim == claim.fence,
                    trials.c.status == TrialStatus.RUNNING.value,
                )
                .values(
                    status=TrialStatus.DONE.value,
                    ended_at=now(),
                    measurement=measurement.to_json(),
                    sequence=sequence,
                )
                .returning(trials.c.ordinal)
            ).first()
            if not written:
                return False
            connection.execute(
                update(bisections)
                .where(bisections.c.id == claim.bisection_id)
                .values(version=bisections.c.version + 1, updated_at=now())
            )
            for name, blob in content.items():
                connection.execute(insert(artifacts).values(trial_id=claim.trial_id, name=name, content=blob))
            append_event(
                connection,
                claim.bisection_id,
                "trial_ended",
                {
                    "trial": claim.trial_id,
                    "ordinal": written.ordinal,
                    "outcome": measurement.outcome.value,
                    "reason": measurement.reason,
                    "seconds": measurement.seconds,
                },
            )
        return True

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
                bisections.c.request["profile"].as_string() == profile,
            )
            .order_by(trials.c.ended_at.desc())
            .limit(20)
        )
        with self._database.read() as connection:
            seconds = [row.measurement["seconds"] for row in connection.execute(query)]
        return median(seconds) if seconds else None

    def hand_back(self, claim: Claim) -> None:
        """Give a claimed trial back unmeasured, e.g. because this worker shuts down."""
        with self._database.write() as connection:
            connection.execute(
                update(trials)
                .where(
                    trials.c.id == claim.trial_id,
                    trials.c.claim == claim.fence,
                    trials.c.status == TrialStatus.RUNNING.value,
                )
                .values(status=TrialStatus.QUEUED.value, worker=None, lease_until=None)
            )

    def expired(self) -> list[Claim]:
        """Claims whose lease ran out: their workers are gone or frozen."""
        query = select(trials.c.id, trials.c.bisection_id, trials.c.claim, trials.c.trial).where(
            trials.c.status == TrialStatus.RUNNING.value, trials.c.lease_until < time.time()
        )
        with self._database.read() as connection:
            return [
                Claim(
                    trial_id=row.id,
                    bisection_id=row.bisection_id,
                    fence=row.claim,
                    trial=Trial.from_json(row.trial),
                )
                for row in connection.execute(query)
            ]

    def unpublished(self, older_than: float) -> list[tuple[str, str]]:
        """(trial id, queue) of queued trials whose last hint is older than so many seconds."""
        query = select(trials.c.id, trials.c.queue).where(
            trials.c.status == TrialStatus.QUEUED.value,
            or_(trials.c.published_at.is_(None), trials.c.published_at < time.time() - older_than),
        )
        with self._database.read() as connection:
            return [(row.id, row.queue) for row in connection.execute(query)]

    def mark_published(self, trial_ids: Sequence[str]) -> None:
        if not trial_ids:
            return
        with self._database.write() as connection:
            connection.execute(
                update(trials).where(trials.c.id.in_(trial_ids)).values(published_at=time.time())
            )

    def artifact(self, trial_id: str, name: str) -> bytes | None:
        query = select(artifacts.c.content).where(artifacts.c.trial_id == trial_id, artifacts.c.name == name)
        with self._database.read() as connection:
            return connection.execute(query).scalar_one_or_none()
