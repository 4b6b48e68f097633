"""Sweeps and proofs of remedies over REST: what may be asked, and how it is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bisection.adapters.storage.bisections import Kind, Status
from bisection.adapters.storage.decisions import Decisions
from bisection.adapters.storage.tokens import Scope
from bisection.finding import Finding, FindingKind
from bisection.sweep_report import SweepReport
from tests.integration.test_service_api import problem
from tests.unit.service.scene import BAD, PROFILE, ServiceScene

MANY = list(range(1, 14))
SWEEP: dict[str, Any] = {
    "profile": PROFILE,
    "at": "main",
    "axes": {"micro_batch": [1, 2, 2], "recompute": ["none", "full"], "graph_scope": ["moe_router"]},
}


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[ServiceScene]:
    with ServiceScene(tmp_path) as scene:
        yield scene


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceScene]:
    """One for all the tests that are refused."""
    with ServiceScene(tmp_path_factory.mktemp("still")) as scene:
        yield scene


def refused(scene: ServiceScene, **changed: Any) -> str:
    body = problem(scene.client.post("/v1/sweeps", json=SWEEP | changed), 422, "invalid-request")
    return "; ".join(f"{error['field']}: {error['message']}, {error['repair']}" for error in body["errors"])


def test_a_sweep_is_stored_listed_read_and_cancelled_and_is_no_bisection(scene: ServiceScene) -> None:
    answer = scene.client.post("/v1/sweeps", json=SWEEP)
    assert answer.status_code == 202
    sweep = answer.json()
    assert answer.headers["location"].endswith(f"/v1/sweeps/{sweep['id']}")
    assert sweep["request"]["axes"] == {
        "micro_batch": ["1", "2"],
        "recompute": ["none", "full"],
        "graph_scope": ["moe_router"],
    }
    assert scene.bisections.get(sweep["id"]).kind is Kind.SWEEP
    assert scene.client.get(f"/v1/sweeps/{sweep['id']}").json() == sweep
    assert [item["id"] for item in scene.client.get("/v1/sweeps").json()["items"]] == [sweep["id"]]
    assert scene.client.get("/v1/bisections").json()["items"] == []
    problem(scene.client.get(f"/v1/bisections/{sweep['id']}"), 404, "not-found")
    problem(scene.client.get(f"/v1/sweeps/{scene.create()}"), 404, "not-found")
    cancelled = scene.client.post(f"/v1/sweeps/{sweep['id']}/cancel")
    assert cancelled.status_code == 202
    assert cancelled.json()["cancel_requested"] is True


def test_a_report_can_be_read_in_every_format_before_the_end(scene: ServiceScene) -> None:
    sweep_id = scene.client.post("/v1/sweeps", json=SWEEP).json()["id"]
    report = scene.client.get(f"/v1/sweeps/{sweep_id}/report").json()
    assert SweepReport.from_json(report).ended is False
    markdown = scene.client.get(f"/v1/sweeps/{sweep_id}/report", params={"format": "markdown"})
    assert "Nothing is measured yet" in markdown.text
    page = scene.client.get(f"/v1/sweeps/{sweep_id}/report", headers={"Accept": "text/html"})
    assert page.text.startswith("<!doctype html>")
    assert "script" not in page.headers["content-security-policy"]


def test_pages_of_sweeps_go_on_where_the_last_one_ended(scene: ServiceScene) -> None:
    made = [scene.client.post("/v1/sweeps", json=SWEEP).json()["id"] for _ in range(3)]
    first = scene.client.get("/v1/sweeps", params={"limit": 2}).json()
    second = scene.client.get("/v1/sweeps", params={"limit": 2, "cursor": first["next"]}).json()
    assert [item["id"] for item in (*first["items"], *second["items"])] == made[::-1]
    assert second["next"] is None


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"axes": {}}, "axes: names nothing to vary"),
        (
            {"axes": {"recompute": ["some"]}},
            "axes.recompute: 'some' is no value of it, write none, selective",
        ),
        ({"axes": {"dispatcher": ["deepep"]}}, "write allgather, alltoall, flex"),
        ({"axes": {"graph_scope": ["attn,moe"]}}, "names joined by '+'"),
        ({"axes": {"micro_batch": [0]}}, "axes.micro_batch"),
        (
            {"axes": {"micro_batch": list(range(1, 14)), "expert_parallel": list(range(1, 14))}},
            "makes 169 points",
        ),
        ({"at": "-x"}, "at: starts with '-'"),
        ({"overrides": {"a b": 1}}, "is not a configuration key"),
        ({"axis": {}}, "axis"),
    ],
)
def test_what_cannot_be_swept_is_refused_with_its_repair(
    still: ServiceScene, changed: dict[str, Any], words: str
) -> None:
    assert words in refused(still, **changed)


def test_an_unknown_profile_is_refused(still: ServiceScene) -> None:
    problem(still.client.post("/v1/sweeps", json=SWEEP | {"profile": "other"}), 422, "not-registered")


def test_the_same_key_gives_the_same_sweep_and_no_other_request(scene: ServiceScene) -> None:
    headers = {"Idempotency-Key": "nightly-7"}
    first, second = (scene.client.post("/v1/sweeps", json=SWEEP, headers=headers).json() for _ in range(2))
    assert first["id"] == second["id"]
    other = scene.client.post("/v1/sweeps", json=SWEEP | {"at": "v1"}, headers=headers)
    problem(other, 409, "idempotency-conflict")


def test_readers_may_look_and_not_start(still: ServiceScene) -> None:
    reader = still.client_with(still.tokens[Scope.READ])
    assert reader.get("/v1/sweeps").status_code == 200
    problem(reader.post("/v1/sweeps", json=SWEEP), 403, "forbidden")


# --- proofs -------------------------------------------------------------------------------------


def test_a_running_bisection_takes_the_wish_for_proofs_along(still: ServiceScene) -> None:
    bisection_id = still.create()
    answer = still.client.post(f"/v1/bisections/{bisection_id}/remedies/prove", json={"count": 3})
    assert answer.status_code == 202
    assert still.bisections.get(bisection_id).prove == 3


def test_a_request_may_ask_for_proofs_at_once(still: ServiceScene) -> None:
    assert still.bisections.get(still.create(prove=2)).prove == 2


@pytest.mark.parametrize("count", [0, 9, "2"])
def test_a_count_out_of_bounds_is_refused(still: ServiceScene, count: object) -> None:
    asked = still.client.post(f"/v1/bisections/{still.create()}/remedies/prove", json={"count": count})
    problem(asked, 422, "invalid-request")


def ended(scene: ServiceScene, finding: Finding, remedies: list[dict[str, Any]]) -> str:
    bisection_id = scene.create()
    assert scene.bisections.conclude(bisection_id, finding)
    assert scene.bisections.finish(bisection_id, {"remedies": remedies})
    return bisection_id


def test_an_ended_bisection_is_opened_again_and_keeps_its_answer(scene: ServiceScene) -> None:
    found = Finding(kind=FindingKind.SET, commits=(BAD,), why="?")
    bisection_id = ended(scene, found, [{"legal": True}])
    answer = scene.client.post(f"/v1/bisections/{bisection_id}/remedies/prove", json={})
    assert answer.status_code == 202
    row = scene.bisections.get(bisection_id)
    assert (row.status, row.prove, row.ended_at) == (Status.VERIFYING, 2, None)
    assert row.report == {"remedies": [{"legal": True}]}


def test_of_a_result_that_was_taken_back_nothing_is_proven(scene: ServiceScene) -> None:
    bisection_id = ended(scene, Finding(kind=FindingKind.SET, commits=(BAD,), why="?"), [{"legal": True}])
    decisions = Decisions(scene.bisections)
    assert decisions.retract(bisection_id, by="me", reason="a faulty worker", report=None)
    answer = scene.client.post(f"/v1/bisections/{bisection_id}/remedies/prove", json={})
    assert "was taken back" in problem(answer, 409, "wrong-state")["detail"]


@pytest.mark.parametrize(
    ("finding", "remedies", "words"),
    [
        (Finding(kind=FindingKind.NONE, why="?"), [{"legal": True}], "blames no commit"),
        (Finding(kind=FindingKind.SET, commits=(BAD,), why="?"), [{"legal": False}], "proposes no remedy"),
    ],
)
def test_where_there_is_nothing_to_prove_it_is_said(
    scene: ServiceScene, finding: Finding, remedies: list[dict[str, Any]], words: str
) -> None:
    bisection_id = ended(scene, finding, remedies)
    answer = scene.client.post(f"/v1/bisections/{bisection_id}/remedies/prove", json={})
    assert words in problem(answer, 409, "wrong-state")["detail"]
    assert scene.bisections.get(bisection_id).status is Status.ENDED
