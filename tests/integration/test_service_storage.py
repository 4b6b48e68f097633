"""What the service keeps besides bisections: green runs, artifacts by name, and a current schema."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from bisection.adapters.queue import Queue, make_celery
from bisection.adapters.run_reports import JobConclusion
from bisection.adapters.storage.artifacts import Artifacts
from bisection.adapters.storage.bisections import Bisections
from bisection.adapters.storage.claims import Claims
from bisection.adapters.storage.database import Database
from bisection.adapters.storage.deliveries import Deliveries, DeliveryStatus
from bisection.adapters.storage.job_runs import Job, JobRun, JobRuns
from bisection.adapters.storage.schema import metadata
from bisection.adapters.storage.trials import Trials
from bisection.commits import Commit, CommitRange, State
from bisection.criteria import Criterion, CriterionKind
from bisection.ledger import Purpose, Trial
from bisection.measurement import Measurement, Outcome
from bisection.specification import BisectionSpec

GOOD, BAD = "a" * 40, "b" * 40


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(f"sqlite:///{tmp_path}/firstbad.sqlite")
    yield database
    database.close()


JOB = Job(source="o/r", workflow="nightly", branch="main", name="train")


def green(run: int, head_sha: str = GOOD, job: Job = JOB, attempt: int = 1) -> JobRun:
    return JobRun(job=job, run=run, attempt=attempt, conclusion=JobConclusion.SUCCESS, head_sha=head_sha)


def test_a_database_is_migrated_only_after_its_migrations_ran(database: Database) -> None:
    assert not database.is_migrated()
    database.migrate()
    assert database.is_migrated()


def test_the_migrations_make_the_tables_that_the_code_expects(database: Database) -> None:
    database.migrate()
    with database.read() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []


def test_the_last_green_is_the_newest_before_the_failing_run(database: Database) -> None:
    database.migrate()
    runs = JobRuns(database)
    for run in (green(10), green(30, BAD), green(20, "c" * 40), green(25, job=replace(JOB, branch="other"))):
        runs.record(run)
    assert runs.last_green_before(JOB, 26) == green(20, "c" * 40)
    assert runs.last_green_before(JOB, 10) is None
    assert runs.last_green_before(replace(JOB, name="lint"), 99) is None


def test_a_green_run_that_is_reported_again_changes_nothing(database: Database) -> None:
    database.migrate()
    runs = JobRuns(database)
    assert runs.record(green(2**40))
    assert not runs.record(green(2**40, BAD))
    assert runs.last_green_before(JOB, 2**40 + 1) == green(2**40)
    assert runs.record(green(2**40, attempt=2))


def test_green_runs_of_an_older_installation_are_kept_for_whole_runs(database: Database) -> None:
    database.migrate("0004")
    with database.write() as connection:
        connection.exec_driver_sql(
            "INSERT INTO green_runs (repository, workflow, branch, run_id, head_sha, seen_at) "
            f"VALUES ('o/r', 'nightly', 'main', 7, '{GOOD}', '2026-11-30')"
        )
        connection.exec_driver_sql(
            "INSERT INTO deliveries (id, received_at, event, result) "
            "VALUES ('d-1', '2026-11-30', 'workflow_run', 'recorded: green')"
        )
    database.migrate()
    found = JobRuns(database).last_green_before(replace(JOB, name=""), 8)
    assert found is not None
    assert found.head_sha == GOOD
    delivery = Deliveries(database).get("d-1")
    assert delivery is not None
    assert delivery.status is DeliveryStatus.SETTLED


def test_artifacts_are_listed_by_trial(database: Database) -> None:
    database.migrate()
    bisections, trials = Bisections(database), Trials(database)
    spec = BisectionSpec(
        range=CommitRange(commits=(Commit(hash=GOOD), Commit(hash=BAD, parents=(GOOD,)))),
        criterion=Criterion(kind=CriterionKind.CRASH),
    )
    row, _ = bisections.create(request={"profile": "p"}, profile={}, source="test")
    bisections.resolve(row.id, spec, {}, preview=False)
    trial = Trial(state=State(commit=BAD), attempt=1, purpose=Purpose.END)
    trials.apply(row.id, bisections.get(row.id).version, queue="pool", add=[trial])
    claim = Claims(database).claim("pool", "w")
    assert claim is not None
    measured = Measurement(outcome=Outcome.COMPLETED, state=State(commit=BAD))
    Claims(database).complete(claim, measured, {"z.log": b"z", "a.json": b"{}"})
    assert Artifacts(database).names(row.id) == {claim.trial_id: ("a.json", "z.log")}
    assert Artifacts(database).names("another") == {}


def test_a_broker_that_is_away_is_said_to_be_away() -> None:
    assert not Queue(make_celery("redis+socket:///nonexistent/broker.sock")).is_reachable()
