"""Every job of every run that a CI reported: where the range of a failure starts, and which failure it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import ColumnElement, Row, and_, insert, select, update
from sqlalchemy.exc import IntegrityError

from bisection.adapters.run_reports import JobConclusion
from bisection.adapters.storage.database import Database, now
from bisection.adapters.storage.nightly_schema import job_runs
from bisection.adapters.storage.schema import bisections


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job as runs repeat it. ``name`` is empty where only whole runs are known."""

    source: str
    workflow: str
    branch: str
    name: str


@dataclass(frozen=True, kw_only=True)
class JobRun:
    """The newest attempt of one job in one run. Run numbers of one source grow with time."""

    job: Job
    run: int
    attempt: int
    conclusion: JobConclusion
    head_sha: str
    signature: str = ""  #: of a failure; "" where the log tells none
    url: str = ""
    bisection_id: str | None = None


def _of(job: Job) -> ColumnElement[bool]:
    return and_(
        job_runs.c.source == job.source,
        job_runs.c.workflow == job.workflow,
        job_runs.c.branch == job.branch,
        job_runs.c.job == job.name,
    )


def _read(row: Row[Any]) -> JobRun:
    values = dict(row._mapping)
    job = Job(
        source=values.pop("source"),
        workflow=values.pop("workflow"),
        branch=values.pop("branch"),
        name=values.pop("job"),
    )
    del values["seen_at"]
    return JobRun(**{**values, "job": job, "conclusion": JobConclusion(values["conclusion"])})


class JobRuns:
    """Remembers runs, so that a late or repeated report cannot move the newest back."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def record(self, run: JobRun) -> bool:
        """False, and nothing changes, if this attempt or a later one is known already."""
        row = {**asdict(run), "conclusion": run.conclusion.value, "seen_at": now()}
        names = row.pop("job")
        row |= {**{k: names[k] for k in ("source", "workflow", "branch")}, "job": names["name"]}
        try:
            with self._database.write() as connection:
                connection.execute(insert(job_runs).values(row))
        except IntegrityError:
            told = ("attempt", "conclusion", "signature", "url", "head_sha", "seen_at")
            with self._database.write() as connection:
                changed = connection.execute(
                    update(job_runs)
                    .where(_of(run.job), job_runs.c.run == run.run, job_runs.c.attempt < run.attempt)
                    .values({key: row[key] for key in told})
                ).rowcount
            return bool(changed)
        return True

    def get(self, job: Job, run: int) -> JobRun | None:
        return self._first(select(job_runs).where(_of(job), job_runs.c.run == run))

    def last_green_before(self, job: Job, run: int) -> JobRun | None:
        """The newest run that succeeded and started before this one."""
        green = job_runs.c.conclusion == JobConclusion.SUCCESS.value
        return self._first(
            select(job_runs).where(_of(job), green, job_runs.c.run < run).order_by(job_runs.c.run.desc())
        )

    def green_at(self, job: Job, head_sha: str) -> JobRun | None:
        """A run that succeeded at just this commit."""
        green = job_runs.c.conclusion == JobConclusion.SUCCESS.value
        return self._first(select(job_runs).where(_of(job), green, job_runs.c.head_sha == head_sha))

    def first_failure_after(self, job: Job, run: int, signature: str) -> JobRun | None:
        """The oldest later run that failed with this signature."""
        query = (
            select(job_runs)
            .where(
                _of(job),
                job_runs.c.run > run,
                job_runs.c.conclusion == JobConclusion.FAILURE.value,
                job_runs.c.signature == signature,
            )
            .order_by(job_runs.c.run)
        )
        return self._first(query)

    def of_bisection(self, bisection_id: str) -> list[JobRun]:
        """All runs that a bisection explains, the oldest first."""
        query = select(job_runs).where(job_runs.c.bisection_id == bisection_id).order_by(job_runs.c.run)
        with self._database.read() as connection:
            return [_read(row) for row in connection.execute(query)]

    def bisections_at(self, job: Job, head_sha: str) -> list[str]:
        """Ids of the bisections whose range ends at a commit at which the job failed."""
        query = (
            select(job_runs.c.bisection_id)
            .where(_of(job), job_runs.c.head_sha == head_sha, job_runs.c.bisection_id.is_not(None))
            .distinct()
        )
        with self._database.read() as connection:
            return [str(row.bisection_id) for row in connection.execute(query)]

    def requests_since(self, sources: Sequence[str], day: str) -> list[Mapping[str, Any]]:
        """Requests of the bisections that runs of these sources started on a day (2026-11-30) or later."""
        started = select(job_runs.c.bisection_id).where(job_runs.c.source.in_(sources))
        query = select(bisections.c.request).where(
            bisections.c.created_at >= day, bisections.c.id.in_(started)
        )
        with self._database.read() as connection:
            return [row.request for row in connection.execute(query)]

    def attach(self, job: Job, run: int, bisection_id: str) -> None:
        with self._database.write() as connection:
            connection.execute(
                update(job_runs).where(_of(job), job_runs.c.run == run).values(bisection_id=bisection_id)
            )

    def newest_seen_at(self, source: str) -> str | None:
        """When the newest report of a source came in."""
        query = (
            select(job_runs.c.seen_at)
            .where(job_runs.c.source == source)
            .order_by(job_runs.c.seen_at.desc())
            .limit(1)
        )
        with self._database.read() as connection:
            return connection.execute(query).scalar()

    def knows(self, source: str, run: int, attempt: int) -> bool:
        """Whether any job of this attempt, or of a later one, was recorded."""
        query = select(job_runs.c.run).where(
            job_runs.c.source == source, job_runs.c.run == run, job_runs.c.attempt >= attempt
        )
        with self._database.read() as connection:
            return connection.execute(query.limit(1)).first() is not None

    def _first(self, query: Any) -> JobRun | None:
        with self._database.read() as connection:
            row = connection.execute(query.limit(1)).first()
        return _read(row) if row else None
