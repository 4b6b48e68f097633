"""Removing what is no longer to be kept: logs and files of trials, and whole bisections that have ended.

Every removal leaves a row that says what, when and by whom. A bisection goes with all rows that refer
to it or to its trials, whichever tables those are in. What others took over from it is theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, delete, func, insert, select

from bisection.adapters.storage.audit import record
from bisection.adapters.storage.bisections import Status
from bisection.adapters.storage.database import Database, now
from bisection.adapters.storage.keeping_schema import removals
from bisection.adapters.storage.nightly_schema import announcements
from bisection.adapters.storage.schema import artifacts, bisections, trials

#: Of all tables: those of other modules are in it once they are imported.
_TABLES = announcements.metadata
#: Who removes what nobody asked for.
POLICY = "policy"
#: Of the artifacts, those that a job or a build printed.
LOGS = ("log.txt", "build.log")


class Removed(StrEnum):
    """What was removed."""

    LOGS = "logs"  #: what trials and builds printed
    ARTIFACTS = "artifacts"  #: every file of the trials
    BISECTION = "bisection"  #: all of it


@dataclass(frozen=True, kw_only=True)
class Keeping:
    """How long things are kept after their bisection has ended, in days; None: until they are deleted."""

    logs_days: float | None = None
    artifacts_days: float | None = None
    bisections_days: float | None = None


@dataclass(frozen=True, kw_only=True)
class Removal:
    """One removal; ``counts`` says how much it was."""

    at: str
    bisection_id: str
    what: Removed
    by: str
    counts: Mapping[str, int]


class StillRunning(ValueError):
    """The bisection has not ended; cancel it first."""


class Removals:
    """Removes, and says what was removed."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def of(self, bisection_id: str) -> list[Removal]:
        """What was removed of a bisection, in that order; after it was deleted, still."""
        query = select(removals).where(removals.c.bisection_id == bisection_id).order_by(removals.c.id)
        with self._database.read() as connection:
            return [_removal(row) for row in connection.execute(query)]

    def delete(self, bisection_id: str, by: str) -> Removal:
        """Deletes an ended bisection. Raises KeyError if there is none, StillRunning if it has not ended."""
        with self._database.write() as connection:
            status = connection.execute(
                select(bisections.c.status).where(bisections.c.id == bisection_id).with_for_update()
            ).scalar_one_or_none()
            if status is None:
                raise KeyError(bisection_id)
            if status != Status.ENDED.value:
                raise StillRunning(f"bisection {bisection_id} is {status}")
            return _delete(connection, bisection_id, by)

    def apply(self, keeping: Keeping, *, moment: datetime, at_most: int) -> list[Removal]:
        """Removes what is kept long enough, of at most so many bisections, the oldest first."""
        done: list[Removal] = []
        for days, what in (
            (keeping.bisections_days, Removed.BISECTION),
            (keeping.artifacts_days, Removed.ARTIFACTS),
            (keeping.logs_days, Removed.LOGS),
        ):
            if days is None:
                continue
            before = (moment.astimezone(UTC) - timedelta(days=days)).isoformat(timespec="microseconds")
            for bisection_id in self._due(what, before, at_most - len(done)):
                with self._database.write() as connection:
                    if what is Removed.BISECTION:
                        done.append(_delete(connection, bisection_id, POLICY))
                    else:
                        done.append(_remove_artifacts(connection, bisection_id, what))
        return done

    def _due(self, what: Removed, before: str, at_most: int) -> Sequence[str]:
        query = select(bisections.c.id).where(
            bisections.c.status == Status.ENDED.value, bisections.c.ended_at < before
        )
        if what is not Removed.BISECTION:
            query = query.where(
                bisections.c.id.in_(
                    select(trials.c.bisection_id)
                    .join(artifacts, artifacts.c.trial_id == trials.c.id)
                    .where(*_files(what))
                )
            )
        with self._database.read() as connection:
            return (
                connection.execute(query.order_by(bisections.c.ended_at).limit(max(0, at_most)))
                .scalars()
                .all()
            )


def _files(what: Removed) -> list[ColumnElement[bool]]:
    return [artifacts.c.name.in_(LOGS)] if what is Removed.LOGS else []


def _remove_artifacts(connection: Connection, bisection_id: str, what: Removed) -> Removal:
    own = select(trials.c.id).where(trials.c.bisection_id == bisection_id)
    wanted = (artifacts.c.trial_id.in_(own), *_files(what))
    counts = _sizes(connection, *wanted)
    connection.execute(delete(artifacts).where(*wanted))
    return _record(connection, bisection_id, what, POLICY, counts)


def _sizes(connection: Connection, *wanted: ColumnElement[bool]) -> dict[str, int]:
    count, size = connection.execute(
        select(func.count(), func.coalesce(func.sum(func.length(artifacts.c.content)), 0)).where(*wanted)
    ).one()
    return {"artifacts": count, "artifact_bytes": int(size)}


def _delete(connection: Connection, bisection_id: str, by: str) -> Removal:
    own = select(trials.c.id).where(trials.c.bisection_id == bisection_id)
    counts = _sizes(connection, artifacts.c.trial_id.in_(own))
    counts["trials"] = connection.execute(
        select(func.count()).where(trials.c.bisection_id == bisection_id)
    ).scalar_one()
    counts["taken_over_elsewhere"] = connection.execute(
        select(func.count()).where(trials.c.source_trial.in_(own), trials.c.bisection_id != bisection_id)
    ).scalar_one()
    for statement in _with_references(bisection_id):
        connection.execute(statement)
    return _record(connection, bisection_id, Removed.BISECTION, by, counts)


def _with_references(bisection_id: str) -> Iterator[Any]:
    """Deletes the rows that refer to the bisection before it, in the tables' order of dependence."""
    own = select(trials.c.id).where(trials.c.bisection_id == bisection_id)
    for table in reversed(_TABLES.sorted_tables):
        for column in table.columns if table is not bisections else ():
            if column.references(trials.c.id):
                yield delete(table).where(column.in_(own))
            elif column.references(bisections.c.id):
                yield delete(table).where(column == bisection_id)
    yield delete(bisections).where(bisections.c.id == bisection_id)


def _record(
    connection: Connection, bisection_id: str, what: Removed, by: str, counts: Mapping[str, int]
) -> Removal:
    removal = Removal(at=now(), bisection_id=bisection_id, what=what, by=by, counts=counts)
    row = {**removal.__dict__, "what": what.value, "counts": dict(counts)}
    connection.execute(insert(removals).values(row))
    action = "deleted" if what is Removed.BISECTION else "removed"
    record(connection, by=by, action=action, subject=bisection_id, told={"what": what.value, **counts})
    return removal


def _removal(row: Row[Any]) -> Removal:
    return Removal(
        at=row.at, bisection_id=row.bisection_id, what=Removed(row.what), by=row.by, counts=row.counts
    )
