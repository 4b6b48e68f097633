"""The outbox of what is said of results: a row until it was said, and where it stands after that.

A row is claimed before anything is sent, so that two workers never say the same; the claim ends by
itself, so that a worker that dies loses nothing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import insert, select, update
from sqlalchemy.exc import IntegrityError

from bisection.adapters.storage.bisections import Status, append_event
from bisection.adapters.storage.database import Database, new_id, now
from bisection.adapters.storage.nightly_schema import announcements
from bisection.adapters.storage.schema import bisections

#: Longer than all requests of one announcement may take together.
CLAIM_SECONDS = 180.0


class Channel(StrEnum):
    """Where a result is told."""

    CHECK_RUN = "check_run"
    PULL_REQUEST = "pull_request"
    ISSUE = "issue"
    WEBHOOK = "webhook"


class AnnouncementStatus(StrEnum):
    """Where an announcement stands."""

    WAITING = "waiting"  #: for the result, or for its turn
    SAID = "said"
    NEEDLESS = "needless"  #: there is nothing to say there; ``why`` tells the reason
    FAILED = "failed"  #: it was refused, or tried for too long; ``why`` tells the repair


@dataclass(frozen=True, kw_only=True)
class Announcement:
    """One result at one place."""

    id: str
    bisection_id: str
    channel: Channel
    status: AnnouncementStatus
    retracted: bool  #: the retraction was said as well
    place: Mapping[str, Any] | None  #: ids that the other side gave, once something stands there
    tries: int
    fence: int
    why: str


_COLUMNS = tuple(announcements.c[name] for name in Announcement.__dataclass_fields__)


def _announcement(row: Any) -> Announcement:
    values = row._mapping
    return Announcement(
        **{
            **values,
            "channel": Channel(values["channel"]),
            "status": AnnouncementStatus(values["status"]),
        }
    )


class Announcements:
    """Plans announcements, hands them out, and notes what became of them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def plan(self, bisection_id: str, channels: Sequence[Channel]) -> None:
        """Before the bisection ends, so that no crash loses them. A second time changes nothing."""
        for channel in channels:
            row = {
                "id": new_id(),
                "bisection_id": bisection_id,
                "channel": channel.value,
                "status": AnnouncementStatus.WAITING.value,
                "retracted": False,
                "tries": 0,
                "due_at": 0.0,
                "fence": 0,
                "why": "",
                "created_at": now(),
                "updated_at": now(),
            }
            try:
                with self._database.write() as connection:
                    connection.execute(insert(announcements).values(row))
            except IntegrityError:
                continue

    def renew_retracted(self) -> None:
        """Whatever was said of a result that somebody retracted since is to be said anew."""
        retracted = select(bisections.c.id).where(bisections.c.retraction.is_not(None))
        stale = (
            announcements.c.status == AnnouncementStatus.SAID.value,
            announcements.c.retracted.is_(False),
            announcements.c.bisection_id.in_(retracted),
        )
        # Asked every few seconds: there is seldom a reason to take the lock for writing.
        with self._database.read() as connection:
            if connection.execute(select(announcements.c.id).where(*stale).limit(1)).first() is None:
                return
        with self._database.write() as connection:
            connection.execute(
                update(announcements)
                .where(*stale)
                .values(status=AnnouncementStatus.WAITING.value, tries=0, due_at=0.0, updated_at=now())
            )

    def retry(self, bisection_id: str) -> list[str]:
        """Ids of what failed, which waits now for another try."""
        with self._database.write() as connection:
            rows = connection.execute(
                update(announcements)
                .where(
                    announcements.c.bisection_id == bisection_id,
                    announcements.c.status == AnnouncementStatus.FAILED.value,
                )
                .values(status=AnnouncementStatus.WAITING.value, tries=0, due_at=0.0, updated_at=now())
                .returning(announcements.c.id)
            )
            return [row.id for row in rows]

    def due(self) -> list[str]:
        """Ids of what can be said now: the bisection has ended, and nobody is at it."""
        query = (
            select(announcements.c.id)
            .join(bisections, bisections.c.id == announcements.c.bisection_id)
            .where(
                announcements.c.status == AnnouncementStatus.WAITING.value,
                announcements.c.due_at <= time.time(),
                bisections.c.status == Status.ENDED.value,
            )
        )
        with self._database.read() as connection:
            return [row.id for row in connection.execute(query)]

    def claim(self, announcement_id: str) -> Announcement | None:
        """Nobody else gets it for CLAIM_SECONDS; None if it is not due."""
        with self._database.write() as connection:
            row = connection.execute(
                update(announcements)
                .where(
                    announcements.c.id == announcement_id,
                    announcements.c.status == AnnouncementStatus.WAITING.value,
                    announcements.c.due_at <= time.time(),
                )
                .values(due_at=time.time() + CLAIM_SECONDS, fence=announcements.c.fence + 1)
                .returning(*_COLUMNS)
            ).first()
        return _announcement(row) if row else None

    def place(self, claimed: Announcement, place: Mapping[str, Any]) -> None:
        """Where it stands, noted as soon as it does."""
        self._write(claimed, place=dict(place))

    def settle(self, claimed: Announcement, status: AnnouncementStatus, why: str, *, retracted: bool) -> None:
        """What became of it, as an event of the bisection too."""
        told = {"channel": claimed.channel.value, "status": status.value, "text": why}
        values = {"status": status.value, "why": why, "retracted": retracted}
        self._write(claimed, told, **values)

    def postpone(self, claimed: Announcement, seconds: float, why: str) -> None:
        self._write(claimed, tries=claimed.tries + 1, due_at=time.time() + seconds, why=why)

    def of(self, bisection_id: str) -> list[Announcement]:
        query = (
            select(*_COLUMNS)
            .where(announcements.c.bisection_id == bisection_id)
            .order_by(announcements.c.channel)
        )
        with self._database.read() as connection:
            return [_announcement(row) for row in connection.execute(query)]

    def _write(self, claimed: Announcement, told: Mapping[str, Any] | None = None, **values: Any) -> None:
        with self._database.write() as connection:
            written = connection.execute(
                update(announcements)
                .where(announcements.c.id == claimed.id, announcements.c.fence == claimed.fence)
                .values(updated_at=now(), **values)
            ).rowcount
            if written and told is not None:
                append_event(connection, claimed.bisection_id, "announced", told)
