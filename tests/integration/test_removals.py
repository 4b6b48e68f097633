"""What is removed by policy or on request, what is left, and what readers are told of it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select
from typer.testing import CliRunner

from bisection.adapters.storage.claims import Beat, Claim, Claims
from bisection.adapters.storage.keeping_schema import removals
from bisection.adapters.storage.nightly_schema import announcements
from bisection.adapters.storage.removals import Keeping, Removals, Removed, StillRunning
from bisection.commits import State
from bisection.ledger import Purpose, Trial
from bisection.report import build_report
from firstbad.command_line import app
from tests.integration.test_service_live import serve
from tests.unit.report import samples
from tests.unit.service.scene import BAD, ServiceScene

FILES = {"log.txt": b"a log", "build.log": b"built", "config.json": b"{}"}


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[ServiceScene]:
    with ServiceScene(tmp_path) as scene:
        yield scene


@pytest.fixture
def ended(scene: ServiceScene) -> str:
    return end(scene)


def end(scene: ServiceScene, report: dict[str, Any] | None = None) -> str:
    bisection_id = scene.create()
    scene.resolve(bisection_id)
    scene.run_trial(bisection_id, FILES)
    scene.finish(bisection_id, report or {})
    return bisection_id


def in_days(days: float) -> datetime:
    return datetime.now(UTC) + timedelta(days=days)


def names(scene: ServiceScene, bisection_id: str) -> set[str]:
    (trial,) = scene.client.get(f"/v1/bisections/{bisection_id}/trials").json()["items"]
    return set(trial["artifacts"])


def test_logs_go_first_then_files_then_the_bisection(scene: ServiceScene, ended: str) -> None:
    keeping = Keeping(logs_days=10, artifacts_days=20, bisections_days=30)
    store = Removals(scene.database)
    assert store.apply(keeping, moment=in_days(9), at_most=10) == []
    assert names(scene, ended) == set(FILES)
    (logs,) = store.apply(keeping, moment=in_days(11), at_most=10)
    assert (logs.what, logs.by, dict(logs.counts)) == (
        Removed.LOGS,
        "policy",
        {"artifacts": 2, "artifact_bytes": 10},
    )
    assert names(scene, ended) == {"config.json"}
    assert store.apply(keeping, moment=in_days(11), at_most=10) == []  # once
    (files,) = store.apply(keeping, moment=in_days(21), at_most=10)
    assert files.what is Removed.ARTIFACTS
    assert names(scene, ended) == set()
    (last,) = store.apply(keeping, moment=in_days(31), at_most=10)
    assert last.what is Removed.BISECTION
    assert scene.client.get(f"/v1/bisections/{ended}").status_code == 404
    assert store.of(ended) == [logs, files, last]


def test_nothing_is_removed_of_what_runs_or_where_no_time_is_set(scene: ServiceScene, ended: str) -> None:
    running = scene.create()
    scene.resolve(running)
    scene.run_trial(running, FILES)
    store = Removals(scene.database)
    assert store.apply(Keeping(), moment=in_days(9999), at_most=10) == []
    done = store.apply(Keeping(logs_days=0, bisections_days=0), moment=in_days(1), at_most=10)
    assert {removal.bisection_id for removal in done} == {ended}
    assert names(scene, running) == set(FILES)


def test_a_round_is_bounded_and_takes_the_oldest(scene: ServiceScene) -> None:
    ids = [end(scene) for _ in range(3)]
    store, keeping = Removals(scene.database), Keeping(artifacts_days=1)
    first = store.apply(keeping, moment=in_days(2), at_most=2)
    assert [removal.bisection_id for removal in first] == ids[:2]
    second = store.apply(keeping, moment=in_days(2), at_most=2)
    assert [removal.bisection_id for removal in second] == ids[2:]


def test_a_deleted_bisection_leaves_no_row_but_the_record(scene: ServiceScene, ended: str) -> None:
    other = end(scene)
    answer = scene.client.delete(f"/v1/bisections/{ended}")
    assert answer.status_code == 200
    body = answer.json()
    assert (body["what"], body["by"]) == ("bisection", "token:both")
    assert body["counts"] == {
        "trials": 1, "artifacts": 3, "artifact_bytes": 12, "taken_over_elsewhere": 0,
    }  # fmt: skip
    assert body["remains"][0].startswith("the record of this deletion")
    for table in announcements.metadata.sorted_tables:
        if table is removals:
            continue
        for column in table.columns:
            if column.name in ("bisection_id", "trial_id") or table.name == "bisections":
                with scene.database.read() as connection:
                    query = select(func.count()).select_from(table).where(column == ended)
                    assert connection.execute(query).scalar_one() == 0, table.name
    assert names(scene, other) == set(FILES)
    gone = scene.client.get(f"/v1/bisections/{ended}")
    assert gone.status_code == 404
    assert "any more. The bisection was deleted on " in gone.json()["detail"]
    (listed,) = scene.client.get(f"/v1/bisections/{ended}/removals").json()["items"]
    assert listed == {key: body[key] for key in ("at", "what", "by", "counts")}
    assert scene.client.delete(f"/v1/bisections/{ended}").status_code == 404


def test_only_what_has_ended_can_be_deleted_and_only_by_who_may_write(
    scene: ServiceScene, ended: str
) -> None:
    running = scene.create()
    answer = scene.client.delete(f"/v1/bisections/{running}")
    assert answer.status_code == 409
    assert f"/v1/bisections/{running}/cancel" in answer.json()["repair"]
    assert scene.client.get(f"/v1/bisections/{running}").status_code == 200
    with pytest.raises(StillRunning):
        Removals(scene.database).delete(running, "me")
    with pytest.raises(KeyError):
        Removals(scene.database).delete("0" * 16, "me")
    assert scene.anonymous.delete(f"/v1/bisections/{ended}").status_code == 401
    reader = next(token for scope, token in scene.tokens.items() if scope.value == "read")
    assert scene.client_with(reader).delete(f"/v1/bisections/{ended}").status_code == 403
    assert scene.client.get(f"/v1/bisections/{ended}").status_code == 200


def test_removals_of_an_unknown_bisection_are_not_found_and_of_a_whole_one_none(
    scene: ServiceScene, ended: str
) -> None:
    assert scene.client.get(f"/v1/bisections/{ended}/removals").json() == {"items": []}
    for unknown in ("0" * 16, "..%2f", "x"):
        assert scene.client.get(f"/v1/bisections/{unknown}/removals").status_code == 404


def test_a_report_and_a_log_say_that_their_time_was_over(scene: ServiceScene) -> None:
    sample = samples.experts()
    report = build_report(sample.spec, sample.ledger, sample.finding, sample.evidence)
    bisection_id = end(scene, report.to_json())
    address = f"/v1/bisections/{bisection_id}/report"
    assert "expired by policy" not in scene.client.get(address, params={"format": "markdown"}).text
    (removal,) = Removals(scene.database).apply(Keeping(artifacts_days=1), moment=in_days(2), at_most=10)
    words = f"The logs and files of its trials expired by policy on {removal.at[:10]}."
    for format in ("markdown", "html"):
        shown = scene.client.get(address, params={"format": format})
        assert shown.status_code == 200
        assert words in shown.text
    (trial,) = scene.client.get(f"/v1/bisections/{bisection_id}/trials").json()["items"]
    log = scene.client.get(f"/v1/bisections/{bisection_id}/trials/{trial['id']}/artifacts/log.txt")
    assert log.status_code == 404
    assert log.json()["detail"].startswith(words)


def test_a_worker_whose_bisection_was_deleted_stops_and_writes_nothing(scene: ServiceScene) -> None:
    bisection_id = scene.create()
    scene.resolve(bisection_id)
    trial = Trial(state=State(commit=BAD), attempt=1, purpose=Purpose.END)
    version = scene.bisections.get(bisection_id).version
    scene.trials.apply(bisection_id, version, queue="pool", add=[trial])
    claim = Claims(scene.database).claim("pool", "w")
    assert isinstance(claim, Claim)
    scene.finish(bisection_id, {})
    Removals(scene.database).delete(bisection_id, "me")
    assert Claims(scene.database).beat(claim) is Beat.FENCED


def test_the_command_line_deletes_and_says_what_remains(
    scene: ServiceScene, ended: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve(scene) as url:
        monkeypatch.setenv("FIRSTBAD_URL", url)
        monkeypatch.setenv("FIRSTBAD_TOKEN", scene.token)
        done = CliRunner().invoke(app, ["delete", ended])
        assert done.exit_code == 0, done.output
        assert f"bisection {ended} is deleted, with 1 trial and 3 files." in done.output
        assert "- the record of this deletion" in done.output
        again = CliRunner().invoke(app, ["delete", ended])
    assert again.exit_code != 0
    assert "was deleted on" in str(again.exception)
