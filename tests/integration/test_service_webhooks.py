"""GitHub's door: what is stored for a worker, what is refused, and that nothing is stored twice."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bisection.adapters.storage.deliveries import Deliveries
from tests.unit.service.scene import BAD, GITHUB, REPOSITORY, SECRET, ServiceScene, run_payload


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[ServiceScene]:
    with ServiceScene(tmp_path) as scene:
        yield scene


def decided(answer: Any, decision: str) -> dict[str, Any]:
    """The body of an answer with this decision; every one says why."""
    assert answer.status_code == 202, answer.text
    body: dict[str, Any] = answer.json()
    assert body["decision"] == decision, body
    assert body["why"]
    return body


def problem(answer: Any, status: int, name: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = answer.json()
    assert body["type"].endswith(f"/errors/{name}")
    return body


def stored(scene: ServiceScene) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = scene.client.get("/v1/deliveries").json()["items"]
    return items


@pytest.mark.parametrize("conclusion", ["failure", "success", "cancelled", None])
def test_a_finished_run_is_stored_and_answered_at_once(scene: ServiceScene, conclusion: str | None) -> None:
    answer = scene.deliver(run_payload(conclusion=conclusion))
    body = decided(answer, "accepted")
    assert body["delivery"] == answer.headers["location"] == "http://testserver/v1/deliveries/d-1"
    (made,) = stored(scene)
    assert (made["id"], made["event"], made["repository"]) == ("d-1", "workflow_run", REPOSITORY)
    assert made["status"] == "received"
    assert scene.client.get("/v1/deliveries/d-1").json() == made


def test_a_delivery_is_stored_once(scene: ServiceScene) -> None:
    decided(scene.deliver(run_payload()), "accepted")
    again = decided(scene.deliver(run_payload()), "duplicate")
    assert again["delivery"] == "http://testserver/v1/deliveries/d-1"
    assert len(stored(scene)) == 1


def test_deliveries_are_listed_page_by_page_the_newest_first(scene: ServiceScene) -> None:
    for number in range(5):
        scene.deliver(run_payload(run_id=number + 1), delivery=f"d-{number}")
    first = scene.client.get("/v1/deliveries", params={"limit": 3}).json()
    second = scene.client.get("/v1/deliveries", params={"limit": 3, "cursor": first["next"]}).json()
    assert [row["id"] for row in first["items"] + second["items"]] == ["d-4", "d-3", "d-2", "d-1", "d-0"]
    assert second["next"] is None
    assert scene.client.get("/v1/deliveries", params={"status": "held"}).json()["items"] == []
    problem(scene.client.get("/v1/deliveries", params={"cursor": "x"}), 422, "invalid-request")


def test_a_delivery_that_is_not_there_is_said_so(scene: ServiceScene) -> None:
    for name in ("nothing", "%00", "x" * 101, "%ED%A0%80"):
        problem(scene.client.get(f"/v1/deliveries/{name}"), 404, "not-found")
    problem(scene.client.post("/v1/deliveries/nothing/release"), 404, "not-found")


@pytest.mark.parametrize(
    ("changed", "decision"),
    [
        ({"head_repository": "stranger/megatron-bridge"}, "refused"),
        ({"head_repository": None}, "refused"),
        ({"branch": "pull-request/1234"}, "refused"),
        ({"repository": "example-org/other", "head_repository": "example-org/other"}, "refused"),
        ({"name": "lint"}, "ignored"),
        ({"branch": "topic"}, "ignored"),
        ({"action": "requested"}, "ignored"),
    ],
)
def test_what_is_not_allowed_is_not_stored(
    scene: ServiceScene, changed: dict[str, Any], decision: str
) -> None:
    scene.write_webhook(branches=["main", "pull-request/1234"])
    decided(scene.deliver(run_payload(**changed)), decision)
    assert stored(scene) == []


@pytest.mark.parametrize(
    ("changed", "decision"),
    [
        ({}, "accepted"),
        ({"check_suite": {"id": 1, "head_branch": None}}, "refused"),
        ({"check_suite": {"id": 1, "head_branch": "pull-request/7"}}, "refused"),
        ({"check_suite": {"id": 1, "head_branch": "topic"}}, "ignored"),
        ({"app": {"slug": "another"}}, "ignored"),
        ({"app": None}, "ignored"),
    ],
)
def test_a_check_run_is_stored_if_it_is_of_the_branch(
    scene: ServiceScene, changed: dict[str, Any], decision: str
) -> None:
    check = {
        "id": 7,
        "name": "train",
        "head_sha": BAD,
        "conclusion": "failure",
        "app": {"slug": "github-actions"},
        "check_suite": {"id": 1, "head_branch": "main"},
        **changed,
    }
    payload = {"action": "completed", "check_run": check, "repository": {"full_name": GITHUB}}
    decided(scene.deliver(payload, event="check_run"), decision)
    assert len(stored(scene)) == (decision == "accepted")


def test_a_ping_is_answered(scene: ServiceScene) -> None:
    decided(scene.deliver({"zen": "Keep it logically awesome."}, event="ping"), "pong")


def test_other_events_are_ignored(scene: ServiceScene) -> None:
    answer = scene.deliver({"action": "x"}, event="push")
    assert "only workflow_run and check_run are" in decided(answer, "ignored")["why"]


# --- what is not genuine ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "signature", ["", "sha256=", "sha256=" + "0" * 64, "sha1=" + "0" * 40, "sha256=ü", "x" * 5000]
)
def test_an_unsigned_or_wrongly_signed_delivery_is_refused(scene: ServiceScene, signature: str) -> None:
    answer = scene.deliver(run_payload(), headers={"X-Hub-Signature-256": signature.encode()})
    problem(answer, 401, "signature-refused")
    assert stored(scene) == []


def test_a_delivery_without_any_header_is_refused(scene: ServiceScene) -> None:
    problem(scene.anonymous.post("/v1/webhooks/github", json=run_payload()), 401, "signature-refused")


def test_a_body_that_was_changed_after_signing_is_refused(scene: ServiceScene) -> None:
    signed = scene.deliver(run_payload()).request
    headers = dict(signed.headers) | {"content-length": str(len(signed.content) + 1)}
    answer = scene.anonymous.post("/v1/webhooks/github", content=signed.content + b" ", headers=headers)
    problem(answer, 401, "signature-refused")


def test_an_empty_secret_signs_nothing(scene: ServiceScene) -> None:
    scene.secret_file.write_bytes(b"\n")
    problem(scene.deliver(run_payload(), secret=b""), 401, "signature-refused")


def test_two_secrets_are_valid_while_one_is_rotated(scene: ServiceScene) -> None:
    scene.secret_file.write_bytes(b"the new one\n" + SECRET + b"\n")
    decided(scene.deliver(run_payload()), "accepted")
    decided(scene.deliver(run_payload(), secret=b"the new one", delivery="d-2"), "accepted")
    problem(scene.deliver(run_payload(), secret=b"the new one\n" + SECRET), 401, "signature-refused")
    scene.secret_file.write_bytes(b"the new one\n")
    problem(scene.deliver(run_payload()), 401, "signature-refused")


def test_a_missing_secret_file_closes_only_its_own_webhook(scene: ServiceScene) -> None:
    hook = {
        "github": "example-org/lm",
        "workflows": ["nightly"],
        "branches": ["main"],
        "profile": "elsewhere",
        "secret_file": "/nonexistent/secret",
    }
    scene.write("repositories", {"name": "megatron-lm", "url": "/mirrors/lm", "webhook": hook})
    decided(scene.deliver(run_payload()), "accepted")


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 50_000])
def test_a_genuine_body_that_is_no_json_is_malformed(scene: ServiceScene, body: bytes) -> None:
    problem(scene.deliver(body), 400, "malformed-body")


@pytest.mark.parametrize(
    "payload",
    [
        {},
        {"action": "completed"},
        run_payload(head_sha="main"),
        run_payload(head_sha="a" * 39 + "\n"),
        run_payload(run_id=-1),
        run_payload(run_id=2**63),
    ],
)
def test_a_genuine_payload_of_another_shape_names_the_field(
    scene: ServiceScene, payload: dict[str, Any]
) -> None:
    assert problem(scene.deliver(payload), 422, "invalid-request")["errors"]
    assert Deliveries(scene.database).get("d-1") is None


def test_json_that_is_no_object_is_refused(scene: ServiceScene) -> None:
    problem(scene.deliver(b"[]"), 422, "invalid-request")


def test_a_form_is_refused_with_what_to_set_at_github(scene: ServiceScene) -> None:
    answer = scene.deliver(b"payload=%7B%7D", headers={"Content-Type": "application/x-www-form-urlencoded"})
    assert "application/json" in problem(answer, 415, "unsupported-media-type")["detail"]


@pytest.mark.parametrize("name", ["X-GitHub-Delivery", "X-GitHub-Event"])
@pytest.mark.parametrize("value", ["", "a b", "x" * 101])
def test_delivery_headers_that_github_does_not_send_are_refused(
    scene: ServiceScene, name: str, value: str
) -> None:
    problem(scene.deliver(run_payload(), headers={name: value}), 422, "invalid-request")


def test_a_huge_body_is_not_read(scene: ServiceScene) -> None:
    problem(scene.deliver(b"{" + b" " * 2**20 + b"}"), 413, "body-too-large")


def test_a_body_larger_than_an_api_request_may_be_is_still_read(scene: ServiceScene) -> None:
    payload = run_payload() | {"padding": "x" * 500_000}
    assert len(json.dumps(payload)) < 2**20
    decided(scene.deliver(payload), "accepted")


def test_nothing_is_stored_for_strangers(scene: ServiceScene) -> None:
    scene.deliver(run_payload(), secret=b"guessed")
    assert Deliveries(scene.database).get("d-1") is None
