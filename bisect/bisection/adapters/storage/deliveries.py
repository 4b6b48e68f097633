"""Reports of a CI that came in: kept until a worker has decided, each acted on once."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import Row, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from bisection.adapters.run_reports import RunReport
from bisection.adapters.storage.audit import record
from bisection.adapters.storage.database import Database, now
from bisection.adapters.storage.nightly_schema import deliveries


class DeliveryStatus(StrEnum):
    """Where a delivery stands."""

    RECEIVED = "received"  #: a worker will decide; what it needs may be away for a while
    SETTLED = "settled"  #: decided
    HELD = "held"  #: a limit of the day holds back a part of it, until somebody releases it
    FAILED = "failed"  #: it could not be decided; whoever mends the reason releases it


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """One delivery and what came of it."""

    id: str
    received_at: str
    event: str
    status: DeliveryStatus
    result: str  #: what was decided, and why
    repository: str | None  #: registered name
    report: RunReport | None
    outcomes: Sequence[Mapping[str, Any]]  #: job, decision, why, repair, bisection
    bisection_id: str | None
    tries: int
    due_at: float
    released: bool


_COLUMNS = tuple(deliveries.c[name] for name in Delivery.__dataclass_fields__)


def _read(row: Row[Any]) -> Delivery:
    values = row._mapping
    report = values["report"]
    return Delivery(
        **{
            **values,
            "status": DeliveryStatus(values["status"]),
            "report": RunReport.from_json(report) if report else None,
            "outcomes": values["outcomes"] or (),
        }
    )


class Deliveries:
    """The deduplicating record, and the line in which deliveries wait."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def store(self, delivery_id: str, event: str, repository: str, report: RunReport | None) -> bool:
        """True exactly once for a delivery id. Without a report, runs are to be caught up with."""
        row = {
            "id": delivery_id,
            "received_at": now(),
            "event": event,
            "result": "",
            "repository": repository,
            "status": DeliveryStatus.RECEIVED.value,
            "report": report.to_json() if report else None,
            "run": report.run if report else 0,
        }
        try:
            with self._database.write() as connection:
                connection.execute(insert(deliveries).values(row))
        except IntegrityError:
            return False
        return True

    def next_of(self, repository: str) -> Delivery | None:
        """The one that is to be decided upon next: the oldest run's, whether it is due yet or not."""
        query = (
            select(*_COLUMNS)
            .where(
                deliveries.c.status == DeliveryStatus.RECEIVED.value, deliveries.c.repository == repository
            )
            .order_by(deliveries.c.run, deliveries.c.received_at)
            .limit(1)
        )
        with self._database.read() as connection:
            row = connection.execute(query).first()
        return _read(row) if row else None

    def waiting(self) -> list[str]:
        """Repositories with deliveries that are due."""
        query = (
            select(deliveries.c.repository)
            .where(
                deliveries.c.status == DeliveryStatus.RECEIVED.value,
                deliveries.c.due_at <= time.time(),
                deliveries.c.repository.is_not(None),
            )
            .distinct()
        )
        with self._database.read() as connection:
            return [str(row.repository) for row in connection.execute(query)]

    def settle(
        self,
        delivery_id: str,
        status: DeliveryStatus,
        result: str,
        *,
        outcomes: Sequence[Mapping[str, Any]] = (),
        bisection_id: str | None = None,
    ) -> None:
        self._set(
            delivery_id,
            status=status.value,
            result=result,
            outcomes=[dict(outcome) for outcome in outcomes],
            bisection_id=bisection_id,
        )

    def postpone(self, delivery_id: str, tries: int, seconds: float, why: str) -> None:
        self._set(delivery_id, tries=tries, due_at=time.time() + seconds, result=why)

    def release(self, delivery_id: str, *, by: str = "") -> bool:
        """The day's limits do not count for it any more; False if it is neither held nor failed."""
        idle = (DeliveryStatus.HELD.value, DeliveryStatus.FAILED.value)
        with self._database.write() as connection:
            changed = connection.execute(
                update(deliveries)
                .where(deliveries.c.id == delivery_id, deliveries.c.status.in_(idle))
                .values(status=DeliveryStatus.RECEIVED.value, released=True, tries=0, due_at=0)
            ).rowcount
            if changed and by:
                record(connection, by=by, action="released", subject=delivery_id, told={})
        return bool(changed)

    def get(self, delivery_id: str) -> Delivery | None:
        with self._database.read() as connection:
            row = connection.execute(select(*_COLUMNS).where(deliveries.c.id == delivery_id)).first()
        return _read(row) if row else None

    def page(
        self,
        *,
        limit: int,
        status: DeliveryStatus | None = None,
        repository: str | None = None,
        before: tuple[str, str] | None = None,
    ) -> list[Delivery]:
        """The newest first; ``before`` is (received_at, id) of the last one already seen."""
        query = select(*_COLUMNS).order_by(deliveries.c.received_at.desc(), deliveries.c.id.desc())
        if status:
            query = query.where(deliveries.c.status == status.value)
        if repository:
            query = query.where(deliveries.c.repository == repository)
        if before:
            at, delivery_id = before
            query = query.where(
                or_(
                    deliveries.c.received_at < at,
                    (deliveries.c.received_at == at) & (deliveries.c.id < delivery_id),
                )
            )
        with self._database.read() as connection:
            return [_read(row) for row in connection.execute(query.limit(limit))]

    def _set(self, delivery_id: str, **values: Any) -> None:
        with self._database.write() as connection:
            connection.execute(update(deliveries).where(deliveries.c.id == delivery_id).values(**values))
