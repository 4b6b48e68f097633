"""Migrations with data in the tables, forward and back, and old code beside new code on one database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    Float,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    create_engine,
    insert,
    select,
    text,
)

from bisection.adapters.storage.bisections import Bisections, Status
from bisection.adapters.storage.claims import Claims
from bisection.adapters.storage.database import Database, _migrations
from bisection.adapters.storage.trials import Trials
from bisection.commits import State
from bisection.ledger import Purpose, Trial
from bisection.measurement import Measurement, Outcome
from tests.postgresql import PostgreSQL

REVISIONS = sorted(one.revision for one in ScriptDirectory.from_config(_migrations()).walk_revisions())
#: What a bisection is made of: no migration may lose any of it, in either direction.
KEPT = ("bisections", "trials", "artifacts", "events", "tokens", "workers")
TRIAL = Trial(state=State(commit="b" * 40), attempt=1, purpose=Purpose.END)
MEASURED = Measurement(outcome=Outcome.COMPLETED, state=TRIAL.state)


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """An empty one."""
    url = f"sqlite:///{tmp_path}/firstbad.sqlite"
    if request.param == "postgresql":
        server: PostgreSQL = request.getfixturevalue("postgresql")
        url = server.new_database()
    database = Database(url)
    yield database
    database.close()


def tables(database: Database) -> dict[str, Table]:
    """As they are in the database now, those that others refer to first."""
    metadata = MetaData()
    engine = create_engine(database.url)
    metadata.reflect(engine)
    engine.dispose()
    return {table.name: table for table in metadata.sorted_tables if table.name in KEPT}


def value(column: Column[Any], bisection: str) -> Any:
    """Something of the column's type; what refers to a bisection or a trial refers to this one."""
    special = {
        "bisection_id": bisection, "trial_id": f"t{bisection}", "status": "running", "key": TRIAL.key,
        "trial": TRIAL.to_json(), "measurement": MEASURED.to_json(), "queue": "pool",
        "kind": "bisection" if column.table.name == "bisections" else "note",
        "ordinal": 0, "sequence": 0, "cancel_requested": False, "claim": 1,
    }  # fmt: skip
    if column.name in special:
        return special[column.name]
    if column.name == "id":
        return {"bisections": bisection, "trials": f"t{bisection}"}.get(column.table.name, bisection)
    match column.type:
        case JSON():
            return {}
        case LargeBinary():
            return b"bytes"
        case Boolean():
            return False
        case Integer() | Float():
            return 1
        case Text():
            return "text"
    return bisection


def write_a_row_each(database: Database, old: dict[str, Table], bisection: str) -> None:
    """What the code of that schema writes: it names the columns that it knows, and must fill."""
    with database.write() as connection:
        for table in old.values():
            row = {
                column.name: value(column, bisection)
                for column in table.columns
                if not (column.name == "id" and table.name == "events")
                and (not column.nullable or column.name in ("measurement", "sequence"))
            }
            connection.execute(insert(table).values(row))


def content(database: Database, known: dict[str, Table]) -> dict[str, list[tuple[Any, ...]]]:
    with database.read() as connection:
        return {
            name: [tuple(row) for row in connection.execute(select(table).order_by(*table.primary_key))]
            for name, table in known.items()
        }


@pytest.mark.parametrize("revision", REVISIONS[:-1])
def test_what_an_older_version_wrote_is_there_after_every_migration_and_the_way_back(
    database: Database, revision: str
) -> None:
    database.migrate(revision)
    old = tables(database)
    write_a_row_each(database, old, "b1")
    before = content(database, old)
    database.migrate()
    assert content(database, old) == before
    (row,) = Trials(database).of("b1")
    assert row.measurement == MEASURED
    assert Bisections(database).get("b1").status is Status.RUNNING
    write_a_row_each(database, old, "b2")  # by a process of the old version that runs on
    assert {row.trial for row in Trials(database).of("b2")} == {TRIAL}
    both = content(database, old)
    database.migrate_back(revision)
    assert content(database, tables(database)) == both


def test_code_of_an_older_version_runs_on_a_newer_schema(database: Database) -> None:
    database.migrate()
    write_a_row_each(database, tables(database), "b1")
    with database.write() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
        connection.execute(text("UPDATE trials SET status = 'queued', queued_at = 0"))
    database.migrate()
    assert database.is_migrated()
    assert Claims(database).claim("pool", "w1") is not None
