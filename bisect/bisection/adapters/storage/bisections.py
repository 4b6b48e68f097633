"""The rows of bisections and of what happened to them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, Row, and_, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from bisection.adapters.storage.audit import record
from bisection.adapters.storage.database import Database, new_id, now
from bisection.adapters.storage.schema import bisections, events
from bisection.finding import Finding
from bisection.specification import BisectionSpec


class Status(StrEnum):
    """Where a bisection stands. Only ENDED is final."""

    RESOLVING = "resolving"  #: refs are being looked up by a worker
    PLANNED = "planned"  #: a preview; waits for its confirmation
    HELD = "held"  #: needs more GPU hours than its profile allows; waits for somebody's approval
    RUNNING = "running"  #: trials are wanted
    VERIFYING = "verifying"  #: there is an answer; what would mend it is tried
    REPORTING = "reporting"  #: the search ended; the report is being made
    ENDED = "ended"


class Kind(StrEnum):
    """What owns trials; both stand in one table, for what becomes of their trials is the same."""

    BISECTION = "bisection"
    SWEEP = "sweep"  #: ``spec`` and ``report`` are those of a sweep; it has no plan and no finding


@dataclass(frozen=True, kw_only=True)
class BisectionRow:
    """One bisection as stored. The JSON members are None until they are known."""

    id: str
    created_at: str
    updated_at: str
    ended_at: str | None
    status: Status
    version: int
    request: Mapping[str, Any]
    profile: Mapping[str, Any]
    source: str
    spec: Mapping[str, Any] | None
    plan: Mapping[str, Any] | None
    finding: Mapping[str, Any] | None
    report: Mapping[str, Any] | None
    cancel_requested: bool
    request_digest: str
    kind: Kind = Kind.BISECTION
    prove: int = 0  #: how many remedies are to be tried at the culprit
    approval: Mapping[str, Any] | None = None  #: ``decision``, ``by``, ``at`` and ``reason``
    retraction: Mapping[str, Any] | None = None  #: ``by``, ``at`` and ``reason``

    @property
    def specification(self) -> BisectionSpec | None:
        return BisectionSpec.from_json(self.spec) if self.spec else None


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened to a bisection; ``id`` grows."""

    id: int
    at: str
    kind: str
    payload: Mapping[str, Any]


class IdempotencyConflict(ValueError):
    """The same Idempotency-Key was used for another request; send a new key."""


_COLUMNS = tuple(bisections.c[name] for name in BisectionRow.__dataclass_fields__)


def _bisection(row: Row[Any]) -> BisectionRow:
    values = row._mapping
    return BisectionRow(**{**values, "status": Status(values["status"]), "kind": Kind(values["kind"])})


def digest(request: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()


def lock(connection: Connection, bisection_id: str) -> None:
    """Let no other transaction write to this bisection until this one ends.

    SQLite has one writer at a time, and needs no lock. Elsewhere events get their numbers before they can be
    seen: were two written at once, whoever reads on from the higher one would never see the lower one. To be
    taken before any row of its trials is changed, as everybody takes them in this order.
    """
    connection.execute(
        select(bisections.c.id).where(bisections.c.id == bisection_id).with_for_update(key_share=True)
    )


def append_event(connection: Connection, bisection_id: str, kind: str, payload: Mapping[str, Any]) -> None:
    lock(connection, bisection_id)
    connection.execute(
        insert(events).values(bisection_id=bisection_id, at=now(), kind=kind, payload=dict(payload))
    )


class Bisections:
    """Creates, reads and moves bisections along; every move is conditional on where they stand."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(
        self,
        *,
        request: Mapping[str, Any],
        profile: Mapping[str, Any],
        source: str,
        idempotency_key: str | None = None,
        failure_key: str | None = None,
        kind: Kind = Kind.BISECTION,
    ) -> tuple[BisectionRow, bool]:
        """The bisection and whether it is new. Raises IdempotencyConflict.

        A key that was used for the same request gives the bisection made then;
        a failure key gives the open bisection of that failure.
        """
        fingerprint = digest(request)
        created = now()
        bisection_id = new_id()
        row = {
            "id": bisection_id,
            "created_at": created,
            "updated_at": created,
            "status": Status.RESOLVING.value,
            "version": 0,
            "request": dict(request),
            "profile": dict(profile),
            "source": source,
            "cancel_requested": False,
            "idempotency_key": idempotency_key,
            "request_digest": fingerprint,
            "failure_key": failure_key,
            "kind": kind.value,
            "prove": request.get("prove") or 0,
        }
        try:
            with self._database.write() as connection:
                connection.execute(insert(bisections).values(row))
                append_event(connection, bisection_id, "created", {"source": source})
                told = {"kind": kind.value, "profile": profile.get("name")}
                record(connection, by=source, action="started", subject=bisection_id, told=told)
        except IntegrityError:
            existing = self._find(idempotency_key, failure_key)
            if existing is None:
                raise
            if failure_key is None and existing.request_digest != fingerprint:
                raise IdempotencyConflict(
                    f"Idempotency-Key {idempotency_key!r} was used for another request "
                    f"(bisection {existing.id}); send a new key"
                ) from None
            return existing, False
        return self.get(bisection_id), True

    def _find(self, idempotency_key: str | None, failure_key: str | None) -> BisectionRow | None:
        wanted = or_(
            bisections.c.idempotency_key == (idempotency_key or ""),
            bisections.c.failure_key == (failure_key or ""),
        )
        with self._database.read() as connection:
            row = connection.execute(select(*_COLUMNS).where(wanted)).first()
        return _bisection(row) if row else None

    def get(self, bisection_id: str) -> BisectionRow:
        """Raises KeyError if there is none of that id."""
        with self._database.read() as connection:
            row = connection.execute(select(*_COLUMNS).where(bisections.c.id == bisection_id)).first()
        if row is None:
            raise KeyError(bisection_id)
        return _bisection(row)

    def unfinished(self) -> list[str]:
        """Ids of all that a worker may have to move on."""
        idle = (Status.ENDED.value, Status.PLANNED.value, Status.HELD.value)
        waiting = (Status.PLANNED.value, Status.HELD.value)
        query = select(bisections.c.id).where(
            or_(
                bisections.c.status.not_in(idle),
                and_(bisections.c.status.in_(waiting), bisections.c.cancel_requested),
                and_(bisections.c.status == Status.HELD.value, bisections.c.approval.is_not(None)),
            )
        )
        with self._database.read() as connection:
            return [row.id for row in connection.execute(query)]

    def move(
        self,
        bisection_id: str,
        sources: Sequence[Status],
        kind: str,
        payload: Mapping[str, Any],
        *,
        by: str = "",
        **values: Any,
    ) -> bool:
        """Conditional update with its event; False if the bisection stands elsewhere by now.

        ``by`` is whose act it is, for the audit log; "" where a search goes on by itself.
        """
        with self._database.write() as connection:
            moved = connection.execute(
                update(bisections)
                .where(
                    bisections.c.id == bisection_id,
                    bisections.c.status.in_([source.value for source in sources]),
                )
                .values(updated_at=now(), version=bisections.c.version + 1, **values)
            ).rowcount
            if moved:
                append_event(connection, bisection_id, kind, payload)
                if by:
                    record(connection, by=by, action=kind, subject=bisection_id, told=payload)
        return bool(moved)

    def resolve(
        self,
        bisection_id: str,
        spec: BisectionSpec,
        plan: Mapping[str, Any],
        *,
        preview: bool,
        hold: bool = False,
    ) -> bool:
        """``hold`` says that trials need somebody's approval first."""
        target = Status.PLANNED if preview else Status.HELD if hold else Status.RUNNING
        return self.move(
            bisection_id,
            [Status.RESOLVING],
            "resolved",
            plan,
            spec=spec.to_json(),
            plan=dict(plan),
            status=target.value,
        )

    def confirm(self, bisection_id: str, *, hold: bool = False, by: str = "") -> bool:
        target = Status.HELD if hold else Status.RUNNING
        return self.move(bisection_id, [Status.PLANNED], "confirmed", {}, by=by, status=target.value)

    def request_cancel(self, bisection_id: str, *, by: str = "") -> bool:
        """False if it has ended already. A worker carries it out."""
        return self.move(
            bisection_id,
            [Status.RESOLVING, Status.PLANNED, Status.HELD, Status.RUNNING, Status.VERIFYING],
            "cancel_requested",
            {},
            by=by,
            cancel_requested=True,
        )

    def open_level(self, bisection_id: str, version: int, spec: BisectionSpec) -> bool:
        """The search goes on on a further level; False if the bisection changed since that was decided."""
        level = spec.levels[-1]
        told = {"kind": level.kind.value, "path": level.path, "title": level.title}
        return self._respecify(bisection_id, version, spec, "level_opened", told)

    def reopen(self, bisection_id: str, version: int, spec: BisectionSpec, why: str) -> bool:
        """The search goes on without a commit that it had found; False if the bisection changed meanwhile."""
        return self._respecify(bisection_id, version, spec, "reopened", {"text": why})

    def _respecify(
        self, bisection_id: str, version: int, spec: BisectionSpec, kind: str, payload: Mapping[str, Any]
    ) -> bool:
        with self._database.write() as connection:
            moved = connection.execute(
                update(bisections)
                .where(
                    bisections.c.id == bisection_id,
                    bisections.c.version == version,
                    bisections.c.status == Status.RUNNING.value,
                )
                .values(updated_at=now(), version=version + 1, spec=spec.to_json())
            ).rowcount
            if moved:
                append_event(connection, bisection_id, kind, payload)
        return bool(moved)

    def conclude(self, bisection_id: str, finding: Finding) -> bool:
        """The search has its answer; the report is still to be made."""
        return self.move(
            bisection_id,
            [Status.RESOLVING, Status.PLANNED, Status.HELD, Status.RUNNING],
            "finding",
            finding.to_json(),
            finding=finding.to_json(),
            status=Status.REPORTING.value,
        )

    def verify(self, bisection_id: str, finding: Finding) -> bool:
        """The search has found a culprit; the revert test is still to be made."""
        return self.move(
            bisection_id,
            [Status.RUNNING],
            "finding",
            finding.to_json(),
            finding=finding.to_json(),
            status=Status.VERIFYING.value,
        )

    def verified(self, bisection_id: str, finding: Finding, *, go_on: bool = False) -> bool:
        """The finding with its revert test; ``go_on``: proofs of remedies follow before the report."""
        return self.move(
            bisection_id,
            [Status.VERIFYING],
            "verified",
            finding.to_json(),
            finding=finding.to_json(),
            status=(Status.VERIFYING if go_on else Status.REPORTING).value,
        )

    def finish(self, bisection_id: str, report: Mapping[str, Any]) -> bool:
        return self.move(
            bisection_id,
            [Status.REPORTING],
            "ended",
            {},
            report=dict(report),
            status=Status.ENDED.value,
            ended_at=now(),
            failure_key=None,
        )

    def note(self, bisection_id: str, kind: str, payload: Mapping[str, Any]) -> None:
        """Records something for whoever watches; nothing depends on it."""
        with self._database.write() as connection:
            append_event(connection, bisection_id, kind, payload)

    def last_event(self, bisection_id: str, kind: str) -> Event | None:
        """The newest one of its kind."""
        query = (
            select(events.c.id, events.c.at, events.c.kind, events.c.payload)
            .where(events.c.bisection_id == bisection_id, events.c.kind == kind)
            .order_by(events.c.id.desc())
            .limit(1)
        )
        with self._database.read() as connection:
            row = connection.execute(query).first()
        return Event(**row._mapping) if row else None

    def events(
        self, bisection_id: str, after: int = 0, limit: int = 500, kind: str | None = None
    ) -> list[Event]:
        query = (
            select(events.c.id, events.c.at, events.c.kind, events.c.payload)
            .where(events.c.bisection_id == bisection_id, events.c.id > after)
            .order_by(events.c.id)
            .limit(limit)
        )
        if kind is not None:
            query = query.where(events.c.kind == kind)
        with self._database.read() as connection:
            return [Event(**row._mapping) for row in connection.execute(query)]
