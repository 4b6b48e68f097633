"""What the service keeps besides bisections: green runs, artifacts by name, and a current schema."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from bisection.adapters.queue import Queue, make_celery
from bisection.adapters.storage.artifacts import Artifacts
from bisection.adapters.storage.bisections import Bisections
from bisection.adapters.storage.claims import Claims
from bisection.adapters.storage.database import Database
from bisection.adapters.storage.green_runs import GreenRun, GreenRuns
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


def green(run_id: int, head_sha: str = GOOD, branch: str = "main") -> GreenRun:
    return GreenRun(repository="o/r", workflow="nightly", branch=branch, run_id=run_id, head_sha=head_sha)


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
    runs = GreenRuns(database)
    for run in (green(10), green(30, BAD), green(20, "c" * 40), green(25, branch="other")):
        runs.record(run)
    assert runs.last_before("o/r", "nightly", "main", 26) == green(20, "c" * 40)
    assert runs.last_before("o/r", "nightly", "main", 10) is None
    assert runs.last_before("o/r", "weekly", "main", 99) is None


def test_a_green_run_that_is_delivered_again_changes_nothing(database: Database) -> None:
    database.migrate()
    runs = GreenRuns(database)
    runs.record(green(2**40))
    runs.record(green(2**40, BAD))
    assert runs.last_before("o/r", "nightly", "main", 2**40 + 1) == green(2**40)


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
