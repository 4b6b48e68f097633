"""A bisection that waits for workers which nobody started says so, and how to start one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bisection.adapters.storage.claims import Claims
from bisection.adapters.storage.roster import Roster
from bisection.commits import State
from bisection.ledger import Purpose, Trial
from tests.unit.service.scene import BAD, ServiceScene

HINT = "no worker serves queue pool; start one with `firstbad worker --queue pool`"


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[ServiceScene]:
    with ServiceScene(tmp_path) as scene:
        yield scene


def hints(scene: ServiceScene, bisection_id: str) -> Any:
    return scene.client.get(f"/v1/bisections/{bisection_id}").json()["hints"]


def queue_trial(scene: ServiceScene, bisection_id: str) -> None:
    trial = Trial(state=State(commit=BAD), attempt=1, purpose=Purpose.END, why="is it bad?")
    version = scene.bisections.get(bisection_id).version
    assert scene.trials.apply(bisection_id, version, queue="pool", add=[trial])


@pytest.mark.parametrize("preview", [True, False], ids=["planned", "running"])
def test_a_bisection_whose_queue_nobody_serves_says_how_to_start_a_worker(
    scene: ServiceScene, preview: bool
) -> None:
    bisection_id = scene.create(preview=preview)
    scene.resolve(bisection_id, preview=preview)
    Roster(scene.database).seen("elsewhere", "other-pool")
    assert hints(scene, bisection_id) == [HINT]
    Roster(scene.database).seen("w1", "pool")
    assert hints(scene, bisection_id) == []
    Roster(scene.database).left("w1")
    assert hints(scene, bisection_id) == [HINT]


def test_a_trial_that_waits_is_hinted_at_and_one_that_runs_is_not(scene: ServiceScene) -> None:
    bisection_id = scene.create()
    scene.resolve(bisection_id)
    queue_trial(scene, bisection_id)
    assert hints(scene, bisection_id) == [HINT]
    assert Claims(scene.database).claim("pool", "worker-1") is not None
    assert hints(scene, bisection_id) == []


def test_before_the_plan_and_after_the_end_there_is_no_hint(scene: ServiceScene) -> None:
    bisection_id = scene.create()
    assert hints(scene, bisection_id) == []
    scene.resolve(bisection_id)
    scene.finish(bisection_id, {})
    assert hints(scene, bisection_id) == []


def test_the_etag_changes_when_a_worker_comes(scene: ServiceScene) -> None:
    path = f"/v1/bisections/{(bisection_id := scene.create())}"
    scene.resolve(bisection_id)
    etag = scene.client.get(path).headers["etag"]
    Roster(scene.database).seen("w1", "pool")
    assert scene.client.get(path, headers={"If-None-Match": etag}).status_code == 200


def test_the_page_of_a_bisection_shows_the_hint(scene: ServiceScene) -> None:
    bisection_id = scene.create()
    scene.resolve(bisection_id)
    person = scene.client_with(None)
    assert (
        person.post(
            "/login", data={"token": scene.token}, headers={"Origin": "http://testserver"}
        ).status_code
        == 303
    )
    shown = HINT.replace("`", "<code>", 1).replace("`", "</code>", 1)
    assert shown in person.get(f"/reports/{bisection_id}").text
    Roster(scene.database).seen("w1", "pool")
    assert "no worker serves" not in person.get(f"/reports/{bisection_id}").text


def test_the_description_explains_the_hints(scene: ServiceScene) -> None:
    schema = scene.anonymous.get("/openapi.json").json()["components"]["schemas"]["BisectionView"]
    assert "hints" in schema["required"]
    assert "keeps it from going on" in schema["properties"]["hints"]["description"]
