"""Claims: the right to run a trial, kept by a lease and fenced against whoever lost it.

A trial is claimed by a conditional update that increments its fence. Every later
write names that fence; a worker that was frozen past its lease and thaws finds
its writes refused. So no measurement is ever counted twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, and_, func, insert, or_, select, update

from bisection.adapters.storage.bisections import append_event, lock
from bisection.adapters.storage.clock import Clock
from bisection.adapters.storage.database import Database, now
from bisection.adapters.storage.json_text import plain
from bisection.adapters.storage.roster import ALIVE_SECONDS
from bisection.adapters.storage.schema import artifacts, bisections, trials, workers
from bisection.adapters.storage.trials import TrialStatus
from bisection.ledger import Trial
from bisection.measurement import Measurement

LEASE_SECONDS = 30.0
HEARTBEAT_SECONDS = 5.0
#: A worker that measured a state already leaves its next trial to another one that lives; after so
#: long, or where none lives, it takes the trial itself: better the same worker than never.
AVOIDANCE_SECONDS = 120.0


def ran_out() -> ColumnElement[bool]:
    """A running trial's lease has ended; or it ends too late to have been given by the clock as it is now."""
    return and_(
        trials.c.status == TrialStatus.RUNNING.value,
        or_(trials.c.lease_until < Clock(), trials.c.lease_until > Clock() + 2 * LEASE_SECONDS),
    )


class Beat(StrEnum):
    """What a heartbeat learns."""

    CONTINUE = "continue"
    CANCELLED = "cancelled"  #: stop; nobody wants the result
    FENCED = "fenced"  #: stop; another worker has the trial


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The right to run one trial, until the lease ends without a heartbeat."""

    trial_id: str
    bisection_id: str
    fence: int
    trial: Trial


class Claims:
    """Hands trials out to workers, and takes their measurements."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def claim(self, queue: str, worker: str) -> Claim | None:
        """The oldest trial of the queue that this worker may run, or None."""
        waiting = or_(trials.c.status == TrialStatus.QUEUED.value, ran_out())
        candidates = (
            select(
                trials.c.id,
                trials.c.bisection_id,
                trials.c.trial,
                (Clock() - trials.c.queued_at).label("waited_seconds"),
            )
            .where(trials.c.queue == queue, waiting)
            .order_by(trials.c.created_at, trials.c.ordinal)
            .limit(100)
        )
        others = select(workers.c.name).where(
            workers.c.queue == queue, workers.c.seen_at > Clock() - ALIVE_SECONDS
        )
        with self._database.write() as connection:
            living = {row.name for row in connection.execute(others)} - {worker}
            for row in connection.execute(candidates).all():
                avoided = set(Trial.from_json(row.trial).avoid_workers)
                patient = row.waited_seconds < AVOIDANCE_SECONDS
                if worker in avoided and patient and living - avoided:
                    continue
                lock(connection, row.bisection_id)
                claimed = connection.execute(
                    update(trials)
                    .where(trials.c.id == row.id, waiting)
                    .values(
                        status=TrialStatus.RUNNING.value,
                        claim=trials.c.claim + 1,
                        worker=worker,
                        lease_until=Clock() + LEASE_SECONDS,
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
                        {
                            "trial": row.id,
                            "ordinal": claimed.ordinal,
                            "worker": worker,
                            "claim": claimed.claim,
                        },
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
        values: dict[str, Any] = {"lease_until": Clock() + LEASE_SECONDS}
        if progress is not None:
            progress = plain(progress[:500])
            values["progress"] = progress
        with self._database.write() as connection:
            if progress:
                lock(connection, claim.bisection_id)
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
                        {"trial": claim.trial_id, "text": progress},
                    )
                return Beat.CONTINUE
            status = connection.execute(
                select(trials.c.status).where(trials.c.id == claim.trial_id)
            ).scalar_one_or_none()  # none: its bisection was deleted
        return Beat.CANCELLED if status == TrialStatus.CANCELLED.value else Beat.FENCED

    def complete(self, claim: Claim, measurement: Measurement, content: Mapping[str, bytes]) -> bool:
        """Append to the ledger; False if the claim is no longer ours, and nothing is written."""
        with self._database.write() as connection:
            sequence = (
                select(func.coalesce(func.max(trials.c.sequence) + 1, 0))
                .where(trials.c.bisection_id == claim.bisection_id)
                .scalar_subquery()
            )
            lock(connection, claim.bisection_id)  # two completions at once must not take one sequence number
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
        query = select(trials.c.id, trials.c.bisection_id, trials.c.claim, trials.c.trial).where(ran_out())
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
