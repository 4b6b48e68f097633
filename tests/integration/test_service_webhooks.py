"""GitHub's deliveries: which start a bisection, which do not, and that none is acted on twice."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bisection.adapters.storage.deliveries import Deliveries
from tests.unit.service.scene import BAD, GITHUB, GOOD, PROFILE, ServiceScene, run_payload


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


def green(scene: ServiceScene, run_id: int = 100, head_sha: str = GOOD) -> None:
    payload = run_payload(run_id=run_id, conclusion="success", head_sha=head_sha)
    decided(scene.deliver(payload, delivery=f"green-{run_id}-{head_sha[:4]}"), "recorded")


def bisections(scene: ServiceScene) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = scene.client.get("/v1/bisections").json()["items"]
    return items


def test_a_failed_run_is_bisected_from_the_last_green_one(scene: ServiceScene) -> None:
    green(scene)
    answer = scene.deliver(run_payload())
    body = decided(answer, "started")
    assert body["bisection"] == answer.headers["location"]
    (made,) = bisections(scene)
    assert body["bisection"].endswith(made["id"])
    assert (made["request"]["good"], made["request"]["bad"]) == (GOOD, BAD)
    assert made["request"]["profile"] == PROFILE
    assert made["source"] == f"github:{GITHUB}/actions/runs/200"


def test_a_delivery_is_acted_on_once(scene: ServiceScene) -> None:
    green(scene)
    first = decided(scene.deliver(run_payload()), "started")
    again = decided(scene.deliver(run_payload()), "duplicate")
    assert again["bisection"] == first["bisection"]
    assert len(bisections(scene)) == 1


def test_a_signed_body_under_a_new_delivery_id_starts_nothing_even_after_the_end(
    scene: ServiceScene,
) -> None:
    green(scene)
    decided(scene.deliver(run_payload()), "started")
    (made,) = bisections(scene)
    scene.finish(made["id"], {})
    decided(scene.deliver(run_payload(), delivery="replayed"), "attached")
    assert len(bisections(scene)) == 1


def test_another_attempt_of_the_run_attaches_to_the_open_bisection(scene: ServiceScene) -> None:
    green(scene)
    first = decided(scene.deliver(run_payload()), "started")
    second = decided(scene.deliver(run_payload(attempt=2), delivery="d-2"), "attached")
    assert second["bisection"] == first["bisection"]


def test_a_delivery_whose_first_handling_was_killed_is_handled_again(scene: ServiceScene) -> None:
    green(scene)
    Deliveries(scene.database).first("d-1", "workflow_run")
    decided(scene.deliver(run_payload()), "started")


def test_a_late_or_replayed_green_run_does_not_move_the_last_green_back(scene: ServiceScene) -> None:
    newer, older, after = "c" * 40, "d" * 40, "e" * 40
    green(scene, 150, newer)
    green(scene, 120, older)
    green(scene, 250, after)
    decided(scene.deliver(run_payload(run_id=200)), "started")
    assert bisections(scene)[0]["request"]["good"] == newer


def test_without_a_green_run_the_answer_says_what_to_do(scene: ServiceScene) -> None:
    body = decided(scene.deliver(run_payload()), "ignored")
    assert "no last green is known" in body["why"]
    assert "'good'" in body["repair"]
    assert bisections(scene) == []


def test_without_a_green_run_the_range_starts_where_the_operator_said(scene: ServiceScene) -> None:
    scene.write_webhook(good="v0.3.0")
    decided(scene.deliver(run_payload()), "started")
    assert bisections(scene)[0]["request"]["good"] == "v0.3.0"


def test_a_commit_that_was_green_before_is_not_to_blame(scene: ServiceScene) -> None:
    green(scene, head_sha=BAD)
    assert "same commit was green" in decided(scene.deliver(run_payload()), "ignored")["why"]


@pytest.mark.parametrize(
    "conclusion",
    ["cancelled", "skipped", "neutral", "timed_out", "action_required", "stale", "startup_failure", None],
)
def test_what_is_neither_success_nor_failure_is_unknown_and_never_green(
    scene: ServiceScene, conclusion: str | None
) -> None:
    decided(scene.deliver(run_payload(conclusion=conclusion, head_sha=GOOD, run_id=100)), "ignored")
    assert "no last green" in decided(scene.deliver(run_payload(), delivery="d-2"), "ignored")["why"]


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
@pytest.mark.parametrize("conclusion", ["failure", "success"])
def test_what_is_not_allowed_starts_and_remembers_nothing(
    scene: ServiceScene, changed: dict[str, Any], decision: str, conclusion: str
) -> None:
    scene.write_webhook(good="v0.3.0", branches=["main", "pull-request/1234"])
    decided(scene.deliver(run_payload(conclusion=conclusion, **changed)), decision)
    assert bisections(scene) == []
    decided(scene.deliver(run_payload(), delivery="d-2"), "started")
    assert bisections(scene)[0]["request"]["good"] == "v0.3.0"


def test_a_ping_is_answered(scene: ServiceScene) -> None:
    decided(scene.deliver({"zen": "Keep it logically awesome."}, event="ping"), "pong")


def test_other_events_are_ignored(scene: ServiceScene) -> None:
    assert "only workflow_run" in decided(scene.deliver({"action": "x"}, event="push"), "ignored")["why"]


# --- what is not genuine ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "signature", ["", "sha256=", "sha256=" + "0" * 64, "sha1=" + "0" * 40, "sha256=ü", "x" * 5000]
)
def test_an_unsigned_or_wrongly_signed_delivery_is_refused(scene: ServiceScene, signature: str) -> None:
    answer = scene.deliver(run_payload(), headers={"X-Hub-Signature-256": signature.encode()})
    problem(answer, 401, "signature-refused")
    assert bisections(scene) == []


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


def test_a_missing_secret_file_closes_only_its_own_webhook(scene: ServiceScene) -> None:
    hook = {
        "github": "example-org/lm",
        "workflows": ["nightly"],
        "branches": ["main"],
        "profile": "elsewhere",
        "secret_file": "/nonexistent/secret",
    }
    scene.write("repositories", {"name": "megatron-lm", "url": "/mirrors/lm", "webhook": hook})
    green(scene)
    decided(scene.deliver(run_payload()), "started")


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
    green(scene)
    payload = run_payload() | {"padding": "x" * 500_000}
    assert len(json.dumps(payload)) < 2**20
    decided(scene.deliver(payload), "started")


def test_a_webhook_of_an_unknown_profile_is_the_operators_matter_and_can_be_delivered_again(
    scene: ServiceScene,
) -> None:
    green(scene)
    scene.write_webhook(profile="gone")
    problem(scene.deliver(run_payload()), 503, "bad-catalogue")
    scene.write_webhook()
    decided(scene.deliver(run_payload()), "started")


def test_nothing_is_stored_for_strangers(scene: ServiceScene) -> None:
    scene.deliver(run_payload(), secret=b"guessed")
    assert Deliveries(scene.database).get("d-1") is None
