"""The audit log: written with every act, readable by whoever may, and changed by nobody."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy.exc import DatabaseError

from bisection.adapters.storage.audit import AuditLog, record
from bisection.adapters.storage.bisections import Bisections
from bisection.adapters.storage.database import Database
from bisection.adapters.storage.decisions import Decisions
from bisection.adapters.storage.measurements import Measurements
from bisection.adapters.storage.proofs import Proofs
from bisection.adapters.storage.removals import Removals
from bisection.adapters.storage.tokens import Scope, Tokens
from bisection.finding import Finding, FindingKind
from tests.integration.test_service_api import problem
from tests.unit.service.scene import REQUEST, ServiceScene


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[ServiceScene]:
    with ServiceScene(tmp_path) as running:
        yield running


def acts(scene: ServiceScene, by: str = "") -> list[tuple[str, str, str]]:
    found = AuditLog(scene.database).page(limit=100, by=by)
    return [(act.by, act.action, act.subject) for act in reversed(found)]


def test_every_act_of_a_caller_is_written_down_with_its_name(scene: ServiceScene) -> None:
    created = scene.client.post("/v1/bisections", json=REQUEST).json()["id"]
    asked = scene.client.post(f"/v1/bisections/{created}/remedies/prove", json={"count": 1})
    assert asked.status_code == 202, asked.text
    scene.client.post(f"/v1/bisections/{created}/cancel")
    scene.bisections.conclude(created, Finding(kind=FindingKind.NONE, why="cancelled"))
    scene.bisections.finish(created, {})
    answer = scene.client.post(f"/v1/bisections/{created}/retract", json={"reason": "a throttled node"})
    assert answer.status_code == 202, answer.text
    scene.client.post("/v1/measurements/retract", json={"worker": "w7"})
    assert scene.client.delete(f"/v1/bisections/{created}").status_code == 200
    mine = acts(scene, by="token:both")
    assert [action for _, action, _ in mine] == [
        "started", "proofs_asked", "cancel_requested", "retracted", "measurements_retracted", "deleted",
    ]  # fmt: skip
    assert {subject for _, _, subject in mine} == {created, "w7"}
    (retraction,) = AuditLog(scene.database).page(limit=2, action="retracted")
    assert retraction.told["reason"] == "a throttled node"


def test_a_refused_act_leaves_no_row(scene: ServiceScene) -> None:
    created = scene.client.post("/v1/bisections", json=REQUEST).json()["id"]
    before = acts(scene)
    approver = scene.client_with(scene.tokens[Scope.APPROVE])
    problem(approver.post(f"/v1/bisections/{created}/approve", json={}), 409, "wrong-state")
    problem(scene.client.delete(f"/v1/bisections/{created}"), 409, "wrong-state")
    problem(scene.client.post(f"/v1/bisections/{created}/confirm"), 409, "wrong-state")
    assert acts(scene) == before


def test_tokens_are_written_down_and_never_shown(scene: ServiceScene) -> None:
    rows = AuditLog(scene.database).page(limit=100, action="token_issued")
    assert {row.told["name"] for row in rows} >= {"both", "readr"}
    assert scene.token not in str(rows)
    assert Tokens(scene.database).revoke(rows[0].subject)
    assert not Tokens(scene.database).revoke(rows[0].subject)
    assert [row.subject for row in AuditLog(scene.database).page(limit=9, action="token_revoked")] == [
        rows[0].subject
    ]


def test_the_log_is_read_page_by_page_with_the_scope_for_it_alone(scene: ServiceScene) -> None:
    for _ in range(3):
        scene.client.post("/v1/bisections", json=REQUEST)
    problem(scene.anonymous.get("/v1/audit"), 401, "unauthenticated")
    problem(scene.client.get("/v1/audit"), 403, "forbidden")
    auditor = scene.client_with(scene.tokens[Scope.AUDIT])
    problem(auditor.post("/v1/bisections", json=REQUEST), 403, "forbidden")
    seen, cursor = [], ""
    while True:
        page = auditor.get(f"/v1/audit?action=started&limit=2{cursor}").json()
        seen += [row["id"] for row in page["items"]]
        if page["next"] is None:
            break
        cursor = f"&cursor={page['next']}"
    assert len(seen) == 3
    assert seen == sorted(set(seen), reverse=True)
    assert scene.client_with(scene.tokens[Scope.ADMIN]).get("/v1/audit").status_code == 200
    problem(auditor.get("/v1/audit", params={"cursor": "1;DROP"}), 422, "invalid-request")


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    opened = Database(database_url)
    yield opened
    opened.close()


@pytest.mark.parametrize(
    "statement", ["UPDATE audit SET by = 'me'", "DELETE FROM audit", "DELETE FROM audit WHERE id = 1"]
)
def test_no_statement_changes_or_removes_a_row(database: Database, statement: str) -> None:
    with database.write() as connection:
        record(connection, by="ada", action="started", subject="x", told={})
    with pytest.raises(DatabaseError, match="only added to"), database.write() as connection:
        connection.exec_driver_sql(statement.replace(" by ", ' "by" '))
    assert [act.by for act in AuditLog(database).page(limit=9)] == ["ada"]


def test_the_row_is_of_the_same_transaction_as_the_act(database: Database) -> None:
    bisections = Bisections(database)
    row, _ = bisections.create(request=dict(REQUEST), profile={}, source="token:ada")
    with suppress(ZeroDivisionError), database.write() as connection:
        record(connection, by="ada", action="deleted", subject=row.id, told={})
        _ = 1 / 0
    assert [act.action for act in AuditLog(database).page(limit=9)] == ["started"]
    assert not Decisions(bisections).approve(row.id, by="ada", reason="")
    assert Proofs(bisections).ask(row.id, 1, by="token:ada")
    assert Measurements(database).retract(worker="w", by="token:ada") == 0
    bisections.conclude(row.id, Finding(kind=FindingKind.NONE, why="x"))
    bisections.finish(row.id, {})
    Removals(database).delete(row.id, "token:ada")
    kept = [act.action for act in AuditLog(database).page(limit=9, subject=row.id)]
    assert kept == ["deleted", "proofs_asked", "started"]
