"""Lists of bisections: pages of their heads, without the ranges, plans and reports that make them heavy.

A specification holds every commit of its range and a report every trial: a list that read them would
take seconds for a thousand bisections. Only the columns of `Summary` are selected here.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Text, and_, cast, or_, select

from bisection.adapters.storage.bisections import Kind, Status
from bisection.adapters.storage.database import Database
from bisection.adapters.storage.schema import bisections


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The head of one bisection; the members mean what those of `BisectionRow` do."""

    id: str
    created_at: str
    updated_at: str
    ended_at: str | None
    status: Status
    source: str
    cancel_requested: bool
    request: Mapping[str, Any]
    finding: Mapping[str, Any] | None
    approval: Mapping[str, Any] | None
    retraction: Mapping[str, Any] | None


@dataclass(frozen=True, kw_only=True)
class Filter:
    """Which bisections a list shows; what is not given excludes nothing."""

    statuses: Collection[Status] = ()
    repository: str | None = None
    profile: str | None = None
    source: str | None = None  #: how the source begins: "token:", "github:example-org/"
    ancestor: str | None = None  #: made of this bisection: its retries, extensions and replays
    text: str | None = None  #: in the request, the source or the finding, in whatever case


_COLUMNS = tuple(bisections.c[name] for name in Summary.__dataclass_fields__)


class Summaries:
    """Reads; nothing here writes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def page(
        self, *, limit: int, before: tuple[str, str] | None = None, wanted: Filter | None = None
    ) -> list[Summary]:
        """The newest first; ``before`` is (created_at, id) of the last one already seen."""
        query = select(*_COLUMNS).order_by(bisections.c.created_at.desc(), bisections.c.id.desc())
        if before:
            created_at, bisection_id = before
            query = query.where(
                or_(
                    bisections.c.created_at < created_at,
                    and_(bisections.c.created_at == created_at, bisections.c.id < bisection_id),
                )
            )
        own = bisections.c.kind == Kind.BISECTION.value
        query = query.where(own, *_conditions(wanted or Filter())).limit(limit)
        with self._database.read() as connection:
            rows = connection.execute(query).all()
        return [Summary(**{**row._mapping, "status": Status(row.status)}) for row in rows]


def _conditions(wanted: Filter) -> list[ColumnElement[bool]]:
    request = bisections.c.request
    conditions: list[ColumnElement[bool]] = []
    if wanted.statuses:
        conditions.append(bisections.c.status.in_([status.value for status in wanted.statuses]))
    if wanted.repository is not None:
        conditions.append(request["repository"].as_string() == wanted.repository)
    if wanted.profile is not None:
        conditions.append(request["profile"].as_string() == wanted.profile)
    if wanted.source is not None:
        conditions.append(bisections.c.source.startswith(wanted.source, autoescape=True))
    if wanted.ancestor is not None:
        conditions.append(request["ancestor", "bisection"].as_string() == wanted.ancestor)
    if wanted.text is not None:
        # JSON is stored with escapes: what is looked for is written in the same way.
        stored = json.dumps(wanted.text)[1:-1]
        conditions.append(
            or_(
                cast(request, Text).icontains(stored, autoescape=True),
                cast(bisections.c.finding, Text).icontains(stored, autoescape=True),
                bisections.c.source.icontains(wanted.text, autoescape=True),
            )
        )
    return conditions
