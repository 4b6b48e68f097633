"""What an installation holds and what happened in it, in numbers: for whoever watches over it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Select, func, select, text

from bisection.adapters.storage.announcements import AnnouncementStatus
from bisection.adapters.storage.claims import ran_out
from bisection.adapters.storage.database import Database
from bisection.adapters.storage.nightly_schema import announcements, deliveries
from bisection.adapters.storage.schema import bisections, events, trials

#: Events get their numbers before they can be seen; after so long none with a lower number appears any more.
SETTLED_SECONDS = 5.0
_COUNTED = ("trial_started", "trial_ended", "trial_taken_over")


@dataclass(frozen=True, kw_only=True)
class Happening:
    """One event that is counted."""

    id: int
    kind: str
    payload: Mapping[str, Any]


class Census:
    """Reads; nothing here writes. Each reading costs little however long the installation has been used."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def bisections(self) -> dict[str, int]:
        """By status."""
        return self._counts(select(bisections.c.status, func.count()).group_by(bisections.c.status))

    def deliveries(self) -> dict[str, int]:
        """By status."""
        return self._counts(select(deliveries.c.status, func.count()).group_by(deliveries.c.status))

    def announcements(self) -> dict[str, int]:
        """By status."""
        return self._counts(select(announcements.c.status, func.count()).group_by(announcements.c.status))

    def overdue_announcement_seconds(self) -> float:
        """Since when the oldest announcement that could be said is not; 0.0: there is none.

        Those of bisections that have not ended wait for their results, and do not count.
        """
        query = (
            select(func.min(bisections.c.ended_at))
            .join(announcements, announcements.c.bisection_id == bisections.c.id)
            .where(
                announcements.c.status == AnnouncementStatus.WAITING.value, bisections.c.ended_at.is_not(None)
            )
        )
        with self._database.read() as connection:
            oldest = connection.execute(query).scalar_one()
        return max(0.0, time.time() - datetime.fromisoformat(oldest).timestamp()) if oldest else 0.0

    def expired_leases(self) -> int:
        """Running trials whose lease has ended, and that nobody took back yet."""
        query = select(func.count()).select_from(trials).where(ran_out())
        with self._database.read() as connection:
            return int(connection.execute(query).scalar_one())

    def database_bytes(self) -> int:
        """What the database takes on its disk; SQLite's write-ahead log is not counted."""
        sqlite = self._database.url.get_backend_name() == "sqlite"
        query = (
            "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"
            if sqlite
            else "SELECT pg_database_size(current_database())"
        )
        with self._database.read() as connection:
            return int(connection.execute(text(query)).scalar_one())

    def newest_event(self) -> int:
        """Number of the newest event; 0: there is none."""
        with self._database.read() as connection:
            return int(connection.execute(select(func.max(events.c.id))).scalar_one() or 0)

    def since(self, event_id: int) -> list[Happening]:
        """What was started, ended or taken over after an event, and is settled."""
        settled = (datetime.now(UTC) - timedelta(seconds=SETTLED_SECONDS)).isoformat(timespec="microseconds")
        query = (
            select(events.c.id, events.c.kind, events.c.payload)
            .where(events.c.id > event_id, events.c.at <= settled, events.c.kind.in_(_COUNTED))
            .order_by(events.c.id)
        )
        with self._database.read() as connection:
            return [
                Happening(id=row.id, kind=row.kind, payload=row.payload) for row in connection.execute(query)
            ]

    def _counts(self, query: Select[Any]) -> dict[str, int]:
        with self._database.read() as connection:
            return {str(name): int(count) for name, count in connection.execute(query)}
