"""Which workers are alive, and which queue each serves."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import delete, insert, select, update

from bisection.adapters.storage.clock import Clock
from bisection.adapters.storage.database import Database, now
from bisection.adapters.storage.schema import workers

#: A worker that has not been seen for this long does not count as alive.
ALIVE_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True)
class WorkerRow:
    """One worker process."""

    name: str
    queue: str
    started_at: str
    seen_at: float  #: epoch seconds


class Roster:
    """Workers sign in, say that they are alive, and leave."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def seen(self, name: str, queue: str) -> None:
        with self._database.write() as connection:
            known = connection.execute(
                update(workers).where(workers.c.name == name).values(queue=queue, seen_at=Clock())
            ).rowcount
            if not known:
                connection.execute(
                    insert(workers).values(name=name, queue=queue, started_at=now(), seen_at=Clock())
                )

    def left(self, name: str) -> None:
        with self._database.write() as connection:
            connection.execute(delete(workers).where(workers.c.name == name))

    def now(self) -> float:
        """The time by which workers are seen, in epoch seconds."""
        with self._database.read() as connection:
            return connection.execute(select(Clock())).scalar_one()

    def alive(self, queue: str | None = None) -> list[WorkerRow]:
        query = select(workers.c.name, workers.c.queue, workers.c.started_at, workers.c.seen_at).where(
            workers.c.seen_at > Clock() - ALIVE_SECONDS
        )
        if queue is not None:
            query = query.where(workers.c.queue == queue)
        with self._database.read() as connection:
            return [WorkerRow(**row._mapping) for row in connection.execute(query.order_by(workers.c.name))]
