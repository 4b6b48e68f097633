"""Webhook deliveries that were seen: each is acted on once."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import insert, select, update
from sqlalchemy.exc import IntegrityError

from bisection.adapters.storage.database import Database, now
from bisection.adapters.storage.schema import deliveries


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """One delivery and what came of it."""

    id: str
    event: str
    result: str
    bisection_id: str | None


class Deliveries:
    """The deduplicating record."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def first(self, delivery_id: str, event: str) -> bool:
        """True exactly once for a delivery id."""
        try:
            with self._database.write() as connection:
                connection.execute(
                    insert(deliveries).values(
                        id=delivery_id, received_at=now(), event=event, result="received"
                    )
                )
        except IntegrityError:
            return False
        return True

    def settle(self, delivery_id: str, result: str, bisection_id: str | None = None) -> None:
        with self._database.write() as connection:
            connection.execute(
                update(deliveries)
                .where(deliveries.c.id == delivery_id)
                .values(result=result, bisection_id=bisection_id)
            )

    def get(self, delivery_id: str) -> Delivery | None:
        query = select(
            deliveries.c.id, deliveries.c.event, deliveries.c.result, deliveries.c.bisection_id
        ).where(deliveries.c.id == delivery_id)
        with self._database.read() as connection:
            row = connection.execute(query).first()
        return Delivery(**row._mapping) if row else None
