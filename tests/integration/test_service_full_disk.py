"""A disk that is full: what callers and whoever watches the service are told."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from sqlalchemy import event
from sqlalchemy.pool import Pool

from bisection.adapters.storage.database import Database
from bisection.adapters.storage.summaries import Summaries
from tests.unit.service.scene import PROFILE, REQUEST, ServiceScene


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[ServiceScene]:
    with ServiceScene(tmp_path) as scene:
        yield scene


@pytest.fixture
def full_database(scene: ServiceScene) -> Iterator[None]:
    """SQLite's own answer to a full disk: the file may not grow by another page."""

    def forbid_growth(connection: Any, _record: object, _proxy: object) -> None:
        connection.execute("PRAGMA max_page_count=1")

    event.listen(Pool, "checkout", forbid_growth)
    yield
    event.remove(Pool, "checkout", forbid_growth)


class FullLog(io.TextIOBase):
    """A log on a device where no write finds room."""

    def __init__(self) -> None:
        self._device = os.open("/dev/full", os.O_WRONLY)
        self.refused = 0

    def write(self, text: str) -> int:
        try:
            return os.write(self._device, text.encode())
        except OSError:
            self.refused += 1
            raise

    def close(self) -> None:
        os.close(self._device)


@pytest.fixture
def full_log() -> Iterator[None]:
    log = FullLog()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(log))  # type: ignore[arg-type]
    yield
    structlog.reset_defaults()
    log.close()
    assert log.refused  # the log was written to


def first_refusal(scene: ServiceScene) -> Any:
    for number in range(200):
        body = REQUEST | {"good": f"v0.{number}", "overrides": {f"a.k{n}": "x" * 400 for n in range(50)}}
        answer = scene.client.post("/v1/bisections", json=body)
        if answer.status_code != 202:
            return answer
    raise AssertionError("the database never became full")


@pytest.mark.usefixtures("full_database")
def test_a_request_that_finds_no_room_is_told_that_the_disk_is_full(scene: ServiceScene) -> None:
    answer = first_refusal(scene)
    assert answer.status_code == 503
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["retry-after"] == "5"
    assert answer.json()["type"].endswith("/errors/database-unavailable")
    assert "disk that holds the database is full" in answer.json()["detail"]
    assert "free space" in answer.json()["repair"]
    assert scene.client.get("/v1/bisections").status_code == 200


@pytest.mark.usefixtures("full_database", "full_log")
def test_a_log_on_the_full_disk_does_not_cost_the_answer(scene: ServiceScene) -> None:
    answer = first_refusal(scene)
    assert answer.status_code == 503
    assert answer.json()["type"].endswith("/errors/database-unavailable")


@pytest.mark.usefixtures("full_log")
def test_with_a_full_log_a_bad_catalogue_and_an_inner_fault_are_still_told(
    scene: ServiceScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **_query: object) -> None:
        raise RuntimeError("inner")

    monkeypatch.setattr(Summaries, "page", fail)
    assert scene.client.get("/v1/bisections").json()["type"].endswith("/errors/internal-error")
    (scene.catalogue_folder / "profiles" / f"{PROFILE}.yaml").write_text("name: [")
    assert scene.client.get("/v1/profiles").json()["type"].endswith("/errors/bad-catalogue")
    assert scene.anonymous.get("/readyz").json()["errors"][0]["field"] == "catalogue"


def test_a_file_that_cannot_be_opened_is_a_problem_of_the_database(
    scene: ServiceScene, tmp_path: Path
) -> None:
    away = Database(f"sqlite:///{tmp_path}/no/such/folder/firstbad.sqlite")
    object.__setattr__(scene.app.state.parts, "database", away)
    answer = scene.client.get("/v1/bisections")
    assert answer.status_code == 503
    assert answer.json()["type"].endswith("/errors/database-unavailable")
    assert "full" not in answer.json()["detail"].replace("its disk is full, or", "")
    assert scene.anonymous.get("/readyz").json()["errors"][0]["field"] == "database"
    away.close()


def test_a_service_without_room_to_write_is_not_ready(
    scene: ServiceScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert scene.anonymous.get("/readyz").status_code == 200
    usage = shutil.disk_usage(scene.catalogue_folder)
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: usage._replace(free=2**20))
    answer = scene.anonymous.get("/readyz")
    assert answer.status_code == 503
    (error,) = answer.json()["errors"]
    assert error["field"] == "disk"
    assert "16 MiB" in error["message"]
