"""What can be asked of an ended bisection, and what people decide: every answer that needs no worker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bisection.adapters.storage.bisections import Status
from bisection.adapters.storage.tokens import Scope
from bisection.report import build_report
from tests.integration.test_service_api import problem
from tests.unit.report import samples
from tests.unit.service.scene import BAD, CAPACITY, GOOD, PROFILE, ServiceScene


@pytest.fixture
def scene(tmp_path: Path, database_url: str) -> Iterator[ServiceScene]:
    with ServiceScene(tmp_path, database_url=database_url) as scene:
        yield scene


def ended(scene: ServiceScene, **fields: Any) -> str:
    """Id of an ended bisection with one trial, at the bad end, out of memory."""
    bisection_id = scene.create(**fields)
    scene.resolve(bisection_id)
    scene.run_trial(bisection_id)
    sample = samples.experts()
    report = build_report(sample.spec, sample.ledger, sample.finding, sample.evidence)
    scene.finish(bisection_id, report.to_json())
    return bisection_id


def post(scene: ServiceScene, bisection_id: str, what: str, body: Any = None, **headers: str) -> Any:
    return scene.client.post(f"/v1/bisections/{bisection_id}/{what}", json=body or {}, headers=headers)


def held(scene: ServiceScene) -> str:
    bisection_id = scene.create()
    scene.write("profiles", {**_profile(scene), "limits": {"gpu_hours_without_approval": 8}})
    bisection_id = scene.create()
    scene.resolve(bisection_id, preview=True)
    plan = {"gpu_hours": 12.5}
    assert scene.bisections.move(bisection_id, [Status.PLANNED], "resolved", plan, plan=plan)
    assert post(scene, bisection_id, "confirm").json()["status"] == "held"
    return bisection_id


def _profile(scene: ServiceScene) -> dict[str, Any]:
    import yaml

    path = scene.catalogue_folder / "profiles" / f"{PROFILE}.yaml"
    row: dict[str, Any] = yaml.safe_load(path.read_text())
    return row


# --- made of an ended one ---------------------------------------------------------------------------


def test_a_retry_asks_for_the_same_two_commits_whatever_the_branches_are_now(scene: ServiceScene) -> None:
    first = ended(scene, overrides={"train.micro_batch_size": 2})
    answer = post(scene, first, "retry", {"preview": True})
    assert answer.status_code == 202
    request = answer.json()["request"]
    assert (request["good"], request["bad"], request["preview"]) == (GOOD, BAD, True)
    assert request["overrides"] == {"train.micro_batch_size": 2}
    assert request["ancestor"] == {"bisection": first, "derivation": "retry"}
    listed = scene.client.get("/v1/bisections", params={"ancestor": first}).json()["items"]
    assert [row["id"] for row in listed] == [answer.json()["id"]]


def test_a_retry_of_everything_reuses_nothing(scene: ServiceScene) -> None:
    request = post(scene, ended(scene), "retry", {"anew": True}).json()["request"]
    assert (request["reuse"], request["ancestor"]["derivation"]) == (False, "anew")


def test_a_rejected_request_can_be_tried_again_with_its_own_words(scene: ServiceScene) -> None:
    first = scene.create()
    scene.finish(first, {})
    request = post(scene, first, "retry").json()["request"]
    assert (request["good"], request["bad"]) == ("v0.3.0", "main")
    problem(post(scene, first, "extend", {"good": "v0.1"}), 409, "wrong-state")
    problem(post(scene, first, "replay", {"criterion": {"kind": "crash"}}), 409, "wrong-state")


def test_a_retry_needs_its_profile(scene: ServiceScene) -> None:
    first = ended(scene)
    (scene.catalogue_folder / "profiles" / f"{PROFILE}.yaml").unlink()
    problem(post(scene, first, "retry"), 422, "not-registered")
    assert post(scene, first, "extend", {"good": "v0.1"}).status_code == 202  # the same job, as it was stored


@pytest.mark.parametrize("what", ["retry", "extend", "replay", "replay/confirm"])
def test_only_an_ended_bisection_can_be_gone_on_from(scene: ServiceScene, what: str) -> None:
    body = {"extend": {"good": "v0.1"}, "retry": {}}.get(what, {"criterion": {"kind": "crash"}})
    answer = problem(post(scene, scene.create(), what, body), 409, "wrong-state")
    assert "only one that has ended" in answer["detail"]


def test_an_extension_keeps_the_end_that_is_not_named(scene: ServiceScene) -> None:
    first = ended(scene)
    request = post(scene, first, "extend", {"good": "v0.2.2"}).json()["request"]
    assert (request["good"], request["bad"]) == ("v0.2.2", BAD)
    problem(post(scene, first, "extend", {}), 422, "invalid-request")
    same = problem(post(scene, first, "extend", {"bad": GOOD}), 422, "invalid-request")
    assert same["errors"][0]["field"] == "bad"
    strange = problem(post(scene, first, "extend", {"bad": {"nobody": "main"}}), 422, "invalid-request")
    assert "does not pin" in strange["errors"][0]["message"]


def test_the_same_key_gives_the_same_retry(scene: ServiceScene) -> None:
    first = ended(scene)
    one, two = (post(scene, first, "retry", **{"Idempotency-Key": "k"}).json()["id"] for _ in range(2))
    assert one == two != first
    problem(
        post(scene, first, "retry", {"anew": True}, **{"Idempotency-Key": "k"}), 409, "idempotency-conflict"
    )


def test_a_replay_is_previewed_and_then_made_a_bisection(scene: ServiceScene) -> None:
    first = ended(scene)
    wanted = {"criterion": {"kind": "peak_memory", "threshold": 2 * CAPACITY}, "confidence": 0.9}
    told = post(scene, first, "replay", wanted).json()
    assert told["finding"] is None
    assert {trial["commit"] for trial in told["wanted"]} <= {GOOD, BAD}
    assert told["answer_so_far"]["spent"]["trials"] == 0
    assert (told["measurements"], told["left_behind"]) == (1, [])
    throughput = {"criterion": {"kind": "throughput", "threshold": 100.0}}
    (changed,) = post(scene, first, "replay", throughput).json()["changed"]
    assert (changed["commit"], changed["before"], changed["after"]) == (BAD, "bad", "skip")
    assert len(scene.client.get("/v1/bisections").json()["items"]) == 1

    made = post(scene, first, "replay/confirm", wanted)
    assert made.status_code == 202
    request = made.json()["request"]
    assert request["ancestor"] == {"bisection": first, "derivation": "replay"}
    assert request["criterion"]["threshold"] == 2 * CAPACITY
    assert request["confidence"] == 0.9


def test_a_replay_needs_a_whole_criterion(scene: ServiceScene) -> None:
    answer = problem(
        post(scene, ended(scene), "replay", {"criterion": {"kind": "throughput"}}), 422, "invalid-request"
    )
    assert answer["errors"][0]["field"] == "criterion.threshold"


# --- decisions --------------------------------------------------------------------------------------


def test_gpu_hours_above_the_limit_wait_for_the_approving_scope(scene: ServiceScene) -> None:
    bisection_id = held(scene)
    (hint,) = scene.client.get(f"/v1/bisections/{bisection_id}").json()["hints"]
    assert "about 12.5 GPU hours are expected" in hint
    assert "allows 8 without approval" in hint
    problem(post(scene, bisection_id, "approve"), 403, "forbidden")
    with scene.client_with(scene.tokens[Scope.APPROVE]) as approver:
        answer = approver.post(f"/v1/bisections/{bisection_id}/approve", json={"reason": "the release waits"})
        assert answer.status_code == 202
        again = approver.post(f"/v1/bisections/{bisection_id}/approve", json={})
        assert "only a held one waits" in problem(again, 409, "wrong-state")["detail"]
    shown = scene.client.get(f"/v1/bisections/{bisection_id}").json()
    assert shown["status"] == "running"
    assert shown["approval"]["at"] > shown["created_at"]
    assert {**shown["approval"], "at": ""} == {
        "decision": "approved", "by": "approver", "at": "", "reason": "the release waits",
    }  # fmt: skip


def test_a_refusal_needs_a_reason(scene: ServiceScene) -> None:
    bisection_id = held(scene)
    with scene.client_with(scene.tokens[Scope.APPROVE]) as approver:
        path = f"/v1/bisections/{bisection_id}/refuse"
        problem(approver.post(path, json={}), 422, "invalid-request")
        problem(approver.post(path, json={"reason": "a\u202eb"}), 422, "invalid-request")
        shown = approver.post(path, json={"reason": "not this week"}).json()
    assert (shown["status"], shown["approval"]["decision"]) == ("held", "refused")


def test_a_retracted_result_says_so_wherever_it_is_read(scene: ServiceScene) -> None:
    bisection_id = ended(scene)
    reason = "the parent's trials ran on a <throttled> node"
    assert post(scene, bisection_id, "retract", {"reason": reason}).status_code == 202
    shown = scene.client.get(f"/v1/bisections/{bisection_id}").json()
    assert (shown["retraction"]["by"], shown["retraction"]["reason"]) == ("both", reason)
    url = f"/v1/bisections/{bisection_id}/report"
    assert scene.client.get(url).json()["retraction"]["reason"] == reason
    assert "retracted by both" in scene.client.get(url, params={"format": "markdown"}).text
    page = scene.client.get(url, params={"format": "html"}).text
    assert "&lt;throttled&gt; node" in page
    again = problem(post(scene, bisection_id, "retract", {"reason": "again"}), 409, "wrong-state")
    assert "was retracted before, by both" in again["detail"]
    event = scene.bisections.events(bisection_id)[-1]
    assert (event.kind, event.payload) == ("retracted", {"by": "both", "reason": reason})


def test_what_has_not_ended_has_no_result_to_retract(scene: ServiceScene) -> None:
    answer = problem(post(scene, scene.create(), "retract", {"reason": "wrong"}), 409, "wrong-state")
    assert "cancel" in answer["repair"].lower()
