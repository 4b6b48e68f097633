"""Who did what: the record of every act of a person, a CI or a policy. Rows are added and never changed.

The database itself refuses to change or to remove a row (migration 0008). Each is written in the transaction
of the act, so that none is without the other. It outlives what it is about, so it refers to no row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import JSON, Column, Connection, Index, Integer, String, Table, insert, select

from bisection.adapters.storage.database import Database, now
from bisection.adapters.storage.schema import metadata

audit = Table(
    "audit",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("at", String(32), nullable=False),
    Column("by", String(300), nullable=False),  # token:NAME, github:…, ci:…, policy, or operator
    Column("action", String(40), nullable=False),
    Column("subject", String(200), nullable=False),  # the id or the name of what it was done to
    Column("told", JSON, nullable=False),  # the reason, or how much it was
    Index(None, "subject", "id"),
)
#: Whoever has the database: a command on the installation's own host.
OPERATOR = "operator"


def token_of(name: str) -> str:
    """Whoever has a token of this name, as they stand in ``by``."""
    return f"token:{name}"


@dataclass(frozen=True, kw_only=True)
class Act:
    """One row; ``id`` grows."""

    id: int
    at: str
    by: str
    action: str
    subject: str
    told: Mapping[str, Any]


def record(connection: Connection, *, by: str, action: str, subject: str, told: Mapping[str, Any]) -> None:
    """Within the transaction of the act itself."""
    row = {"at": now(), "by": by[:300], "action": action, "subject": subject[:200], "told": dict(told)}
    connection.execute(insert(audit).values(row))


class AuditLog:
    """Reads; there is nothing else to be done with it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def page(
        self, *, limit: int, before: int | None = None, by: str = "", action: str = "", subject: str = ""
    ) -> list[Act]:
        """The newest first; ``before`` is the id of the last one already seen."""
        query = select(audit).order_by(audit.c.id.desc()).limit(limit)
        if before is not None:
            query = query.where(audit.c.id < before)
        for column, wanted in ((audit.c.by, by), (audit.c.action, action), (audit.c.subject, subject)):
            if wanted:
                query = query.where(column == wanted)
        with self._database.read() as connection:
            return [Act(**row) for row in connection.execute(query).mappings()]
