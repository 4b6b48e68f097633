"""Workflow runs that the service saw succeed: where the range of a later failure starts."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import insert, select
from sqlalchemy.exc import IntegrityError

from bisection.adapters.storage.database import Database, now
from bisection.adapters.storage.schema import green_runs


@dataclass(frozen=True, kw_only=True)
class GreenRun:
    """A successful run of one workflow on one branch. GitHub's run ids grow with time."""

    repository: str  #: owner/name
    workflow: str
    branch: str
    run_id: int
    head_sha: str


class GreenRuns:
    """Remembers every green run, so that a late or repeated delivery cannot move the newest back."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def record(self, run: GreenRun) -> None:
        """A second time changes nothing."""
        try:
            with self._database.write() as connection:
                connection.execute(insert(green_runs).values(**run.__dict__, seen_at=now()))
        except IntegrityError:
            return

    def last_before(self, repository: str, workflow: str, branch: str, run_id: int) -> GreenRun | None:
        """The newest green run of the same workflow and branch that started before this run."""
        columns = [green_runs.c[name] for name in GreenRun.__dataclass_fields__]
        query = (
            select(*columns)
            .where(
                green_runs.c.repository == repository,
                green_runs.c.workflow == workflow,
                green_runs.c.branch == branch,
                green_runs.c.run_id < run_id,
            )
            .order_by(green_runs.c.run_id.desc())
            .limit(1)
        )
        with self._database.read() as connection:
            row = connection.execute(query).first()
        return GreenRun(**row._mapping) if row else None
