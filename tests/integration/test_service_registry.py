"""Who does the work, what was measured, and how much a token may ask for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bisection.adapters.storage.claims import Claims
from bisection.adapters.storage.roster import Roster
from bisection.adapters.storage.tokens import Scope
from bisection.commits import State
from bisection.ledger import Purpose, Trial
from bisection.measurement import Measurement, Outcome
from service.application import create_app
from service.request_limits import Buckets
from service.settings import ServiceSettings
from tests.integration.test_service_api import problem
from tests.unit.service.scene import BAD, GOOD, PROFILE, REPOSITORY, ServiceScene


@pytest.fixture
def scene(tmp_path: Path, database_url: str) -> Iterator[ServiceScene]:
    with ServiceScene(tmp_path, database_url=database_url) as scene:
        yield scene


def queue_two(scene: ServiceScene) -> str:
    """Id of a bisection with two trials, the first of which a worker has claimed."""
    bisection_id = scene.create()
    scene.resolve(bisection_id)
    trials = [Trial(state=State(commit=commit), attempt=1, purpose=Purpose.END) for commit in (BAD, GOOD)]
    version = scene.bisections.get(bisection_id).version
    keys = {BAD: "b" * 64, GOOD: "a" * 64}
    assert scene.trials.apply(
        bisection_id, version, queue="pool", add=trials, reuse_key=lambda state: keys[state.commit]
    )
    Roster(scene.database).seen("w1", "pool")
    Roster(scene.database).seen("w2", "pool")
    return bisection_id


def test_workers_and_pools_tell_who_runs_what_since_when_and_what_waits(scene: ServiceScene) -> None:
    bisection_id = queue_two(scene)
    claim = Claims(scene.database).claim("pool", "w1")
    assert claim is not None
    Claims(scene.database).beat(claim, "step 2 of 3")
    busy, idle = scene.client.get("/v1/workers").json()["items"]
    assert (busy["name"], idle["name"], idle["trial"]) == ("w1", "w2", None)
    running = busy["trial"]
    assert (running["bisection"], running["commit"], running["progress"]) == (
        bisection_id,
        BAD,
        "step 2 of 3",
    )
    assert running["started_at"] >= busy["started_at"]
    pools = {pool["queue"]: pool for pool in scene.client.get("/v1/pools").json()["items"]}
    assert set(pools) == {"local", "pool"}
    pool = pools["pool"]
    assert (pool["profiles"], pool["workers"], pool["running"], pool["queued"]) == ([PROFILE], 2, 1, 1)
    assert pool["oldest_queued_at"]
    assert (pools["local"]["workers"], pools["local"]["oldest_queued_at"]) == (0, None)


def test_one_profile_and_one_repository_can_be_read_by_name(scene: ServiceScene) -> None:
    profile = scene.client.get(f"/v1/profiles/{PROFILE}").json()
    assert profile in scene.client.get("/v1/profiles").json()["items"]
    repository = scene.client.get(f"/v1/repositories/{REPOSITORY}").json()
    assert repository in scene.client.get("/v1/repositories").json()["items"]
    assert PROFILE in repository["profiles"]
    for path in ("profiles/nothing", "repositories/nothing", "profiles/..%2f..%2fetc"):
        problem(scene.client.get(f"/v1/{path}"), 404, "not-found")


def test_measurements_are_listed_by_what_is_asked_for(scene: ServiceScene) -> None:
    bisection_id = queue_two(scene)
    claims = Claims(scene.database)
    for outcome in (Outcome.OUT_OF_MEMORY, Outcome.COMPLETED):
        claim = claims.claim("pool", "w1")
        assert claim is not None
        assert claims.complete(claim, Measurement(outcome=outcome, state=claim.trial.state), {})

    def found(**wanted: str) -> list[str]:
        items = scene.client.get("/v1/measurements", params=wanted).json()["items"]
        assert all(item["bisection"] == bisection_id for item in items)
        return [item["commit"] for item in items]

    assert found() == [GOOD, BAD]
    assert found(outcome="completed") == [GOOD]
    assert found(key="b" * 64) == [BAD]
    assert found(commit=GOOD) == [GOOD]
    assert found(profile=PROFILE, worker="w1") == [GOOD, BAD]
    assert found(worker="w2") == []
    first = scene.client.get("/v1/measurements", params={"limit": 1}).json()
    rest = scene.client.get("/v1/measurements", params={"limit": 1, "cursor": first["next"]}).json()
    assert [page["items"][0]["commit"] for page in (first, rest)] == [GOOD, BAD]
    assert rest["next"] is None
    scene.client.post("/v1/measurements/retract", json={"key": "b" * 64})
    assert found(retracted="true") == [BAD]
    assert found(retracted="false") == [GOOD]
    problem(scene.client.get("/v1/measurements", params={"key": "b"}), 422, "invalid-request")
    problem(scene.client.get("/v1/measurements", params={"cursor": "?"}), 422, "invalid-request")


def test_a_token_that_asks_too_much_is_told_when_to_come_back(scene: ServiceScene) -> None:
    parts = scene.app.state.parts
    settings = ServiceSettings(
        public_url="http://testserver", requests_per_second=0.01, request_burst=3, version="1"
    )
    scene.app = create_app(
        database=parts.database, queue=parts.queue, catalogue=parts.catalogue, settings=settings
    )
    with scene.client_with(scene.token) as client:
        for _ in range(3):
            assert client.get("/v1/profiles").status_code == 200
        answer = client.get("/v1/profiles")
        problem(answer, 429, "too-many-requests")
        assert 90 < int(answer.headers["retry-after"]) <= 100
    with scene.client_with(scene.tokens[Scope.READ]) as other:
        assert other.get("/v1/profiles").status_code == 200
        assert other.get("/healthz").status_code == 200


def test_a_bucket_fills_again_with_time() -> None:
    now = [100.0]
    buckets = Buckets(per_second=2.0, burst=2.0, clock=lambda: now[0])
    assert [buckets.wait_seconds("a") for _ in range(2)] == [0.0, 0.0]
    assert buckets.wait_seconds("a") == pytest.approx(0.5)
    assert buckets.wait_seconds("b") == 0.0
    now[0] += 0.5
    assert buckets.wait_seconds("a") == 0.0
    assert buckets.wait_seconds("a") > 0.0
    unlimited = Buckets(per_second=0.0, burst=0.0, clock=lambda: now[0])
    assert {unlimited.wait_seconds("a") for _ in range(100)} == {0.0}
