"""The REST API over a real database: what callers can ask, and every answer that needs no git."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from bisection.adapters.storage.bisections import Status
from bisection.adapters.storage.database import Database
from bisection.adapters.storage.roster import Roster
from bisection.adapters.storage.tokens import Scope
from bisection.finding import Finding, FindingKind
from tests.unit.service.scene import BAD, CAPACITY, HOSTILE, PROFILE, REPOSITORY, REQUEST, ServiceScene

UNKNOWN_ID = "0123456789abcdef"


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[ServiceScene]:
    with ServiceScene(tmp_path) as scene:
        yield scene


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceScene]:
    """One for all the tests that change nothing."""
    with ServiceScene(tmp_path_factory.mktemp("still")) as scene:
        yield scene


def problem(answer: Any, status: int, name: str) -> dict[str, Any]:
    """The body of an answer that must be a problem of this kind, in the promised shape."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = answer.json()
    assert body["type"] == f"http://testserver/errors/{name}"
    assert body["status"] == status
    assert body["title"]
    assert body["detail"].endswith(body["repair"])
    assert body["repair"]
    return body


def post(scene: ServiceScene, body: bytes, media_type: str = "application/json") -> Any:
    return scene.client.post("/v1/bisections", content=body, headers={"Content-Type": media_type})


def refused(scene: ServiceScene, field: str, **changed: Any) -> str:
    """The message and repair that a changed request gets for exactly that field."""
    body = problem(post(scene, json.dumps(REQUEST | changed).encode()), 422, "invalid-request")
    (error,) = body["errors"]
    assert error["field"] == field
    return f"{error['message']}; {error['repair']}"


# --- creating -----------------------------------------------------------------------------------


def test_a_created_bisection_is_accepted_and_can_be_read_at_its_location(scene: ServiceScene) -> None:
    answer = scene.client.post("/v1/bisections", json=REQUEST)
    assert answer.status_code == 202
    assert answer.headers["location"] == f"http://testserver/v1/bisections/{answer.json()['id']}"
    read = scene.client.get(answer.headers["location"])
    assert read.json() == answer.json()
    assert read.json()["status"] == "resolving"
    assert read.json()["source"] == "token:both"


def test_the_stored_request_is_whole_and_the_profile_is_kept_as_it_was(scene: ServiceScene) -> None:
    bisection_id = scene.create(overrides={"train.micro_batch_size": 2, "model.recompute": None})
    row = scene.bisections.get(bisection_id)
    assert row.request == {
        "version": 1,
        "repository": REPOSITORY,
        "profile": PROFILE,
        "good": "v0.3.0",
        "bad": "main",
        "overrides": {"train.micro_batch_size": 2, "model.recompute": None},
        "criterion": {
            "kind": "out_of_memory", "capacity_bytes": CAPACITY, "threshold": None, "signature": "",
        },
        "budget": {"trials": 60, "gpu_hours": None, "seconds": None},
        "parallel": None,
        "confidence": 0.99,
        "seed": 0,
        "preview": False,
        "widen": False,
        "reuse": True,
        "prove": 0,
    }  # fmt: skip
    assert row.profile["name"] == PROFILE
    assert row.profile["launch"][0]["command"] == ["{python}", "train.py"]


def test_ends_given_as_the_profiles_repository_are_plain_refs(scene: ServiceScene) -> None:
    bisection_id = scene.create(good={REPOSITORY: "v0.3.0"}, bad={REPOSITORY: " main "})
    request = scene.bisections.get(bisection_id).request
    assert (request["good"], request["bad"]) == ("v0.3.0", "main")


def test_the_repository_is_the_profiles_where_it_is_not_named(scene: ServiceScene) -> None:
    answer = scene.client.post("/v1/bisections", json={k: REQUEST[k] for k in ("profile", "good", "bad")})
    assert answer.json()["request"]["repository"] == REPOSITORY


def test_a_criterion_may_bring_its_own_capacity(scene: ServiceScene) -> None:
    wanted = {"kind": "out_of_memory", "capacity_bytes": 2**30}
    bisection_id = scene.create(criterion=wanted)
    assert scene.bisections.get(bisection_id).request["criterion"]["capacity_bytes"] == 2**30


def test_the_examples_of_the_description_run(scene: ServiceScene) -> None:
    schema = scene.anonymous.get("/openapi.json").json()
    examples = schema["components"]["schemas"]["BisectionRequest"]["examples"]
    assert examples
    for example in examples:
        assert scene.client.post("/v1/bisections", json=example).status_code == 202


def test_an_idempotency_key_gives_the_same_bisection_again(scene: ServiceScene) -> None:
    headers = {"Idempotency-Key": "nightly-2026-11-30"}
    first = scene.client.post("/v1/bisections", json=REQUEST, headers=headers)
    again = scene.client.post("/v1/bisections", json=REQUEST, headers=headers)
    assert again.status_code == 202
    assert again.json()["id"] == first.json()["id"]
    assert len(scene.client.get("/v1/bisections").json()["items"]) == 1


def test_an_idempotency_key_with_another_body_is_a_conflict(scene: ServiceScene) -> None:
    headers = {"Idempotency-Key": "k"}
    scene.client.post("/v1/bisections", json=REQUEST, headers=headers)
    other = scene.client.post("/v1/bisections", json=REQUEST | {"seed": 1}, headers=headers)
    assert "new key" in problem(other, 409, "idempotency-conflict")["detail"]


def test_two_callers_may_use_the_same_idempotency_key(scene: ServiceScene) -> None:
    headers = {"Idempotency-Key": "k"}
    mine = scene.client.post("/v1/bisections", json=REQUEST, headers=headers)
    admin = scene.client_with(scene.tokens[Scope.ADMIN])
    theirs = admin.post("/v1/bisections", json=REQUEST | {"seed": 1}, headers=headers)
    assert theirs.status_code == 202
    assert theirs.json()["id"] != mine.json()["id"]


def test_an_idempotency_key_that_is_not_one_word_is_refused(scene: ServiceScene) -> None:
    answer = scene.client.post("/v1/bisections", json=REQUEST, headers={"Idempotency-Key": "a b"})
    assert problem(answer, 422, "invalid-request")["errors"][0]["field"] == "idempotency-key"


# --- bad input ----------------------------------------------------------------------------------


def test_a_profile_that_does_not_exist_is_refused_with_those_that_do(scene: ServiceScene) -> None:
    answer = scene.client.post("/v1/bisections", json=REQUEST | {"profile": "nope"})
    body = problem(answer, 422, "not-registered")
    assert body["errors"][0]["field"] == "profile"
    assert PROFILE in body["errors"][0]["message"]


def test_a_repository_that_is_not_registered_is_refused_with_those_that_are(scene: ServiceScene) -> None:
    answer = scene.client.post("/v1/bisections", json=REQUEST | {"repository": "https://evil.example/x"})
    body = problem(answer, 422, "not-registered")
    assert body["errors"][0]["field"] == "repository"
    assert REPOSITORY in body["detail"]


def test_a_profile_of_another_repository_is_refused(scene: ServiceScene) -> None:
    said = refused(scene, "repository", repository="megatron-lm")
    assert REPOSITORY in said


def test_the_same_ref_twice_is_refused(scene: ServiceScene) -> None:
    assert "same ref" in refused(scene, "bad", bad="v0.3.0")


def test_pairs_of_pins_are_kept_where_the_repository_pins_what_they_name(scene: ServiceScene) -> None:
    pair = {REPOSITORY: "v0.3.0", "megatron-lm": "main"}
    stranger = {REPOSITORY: "v0.3.0", "energon": "main"}
    assert "does not pin at one path" in refused(scene, "good", good=stranger)
    assert f"does not name '{REPOSITORY}'" in refused(scene, "good", good={"megatron-lm": "main"})
    assert "same ref" in refused(scene, "bad", good=pair, bad=pair)
    row = scene.bisections.get(scene.create(good=pair, bad={REPOSITORY: "main"}))
    assert (row.request["good"], row.request["bad"]) == (pair, "main")


@pytest.mark.parametrize(
    "ref",
    ["", "   ", "-rf", "--upload-pack=x", "a\nb", "a\x00b", "x" * 251, 7, None, ["main"], {},
     {REPOSITORY: 3}, {REPOSITORY: "-x"}, "main\u202eniam", "\ud800"],
)  # fmt: skip
def test_what_no_ref_looks_like_is_refused(still: ServiceScene, ref: Any) -> None:
    assert refused(still, "bad", bad=ref)


@pytest.mark.parametrize("ref", ["main", "v1.0", "a" * 40, "main~3", "feature/ünï", "HEAD@{1 day ago}"])
def test_whether_a_ref_exists_is_left_to_a_worker(still: ServiceScene, ref: str) -> None:
    assert still.create(bad=ref)


@pytest.mark.parametrize(
    "key", ["", "a b", "a..b", ".a", "a.", "--x", "a=b", "a;rm -rf /", "${jndi}", "1a", "a" * 150 + "-"]
)
def test_an_override_key_that_is_no_dotted_name_is_refused(still: ServiceScene, key: str) -> None:
    assert "train.micro_batch_size" in refused(still, f"overrides.{key}"[:200], overrides={key: 1})


@pytest.mark.parametrize("value", [[1], {"a": 1}, "a\nb", "x" * 501, 2**63])
def test_an_override_value_that_is_no_scalar_is_refused(still: ServiceScene, value: Any) -> None:
    assert refused(still, "overrides.a.b", overrides={"a.b": value})


@pytest.mark.parametrize(
    ("field", "changed"),
    [
        ("budget.trials", {"budget": {"trials": 1}}),
        ("budget.trials", {"budget": {"trials": 1001}}),
        ("budget.trials", {"budget": {"trials": True}}),
        ("budget.gpu_hours", {"budget": {"gpu_hours": 0}}),
        ("budget.seconds", {"budget": {"seconds": -1}}),
        ("budget.hours", {"budget": {"hours": 1}}),
        ("parallel", {"parallel": 0}),
        ("parallel", {"parallel": 65}),
        ("confidence", {"confidence": 0.5}),
        ("confidence", {"confidence": 1}),
        ("seed", {"seed": -1}),
        ("preview", {"preview": "yes"}),
        ("previw", {"previw": True}),
        ("criterion.kind", {"criterion": {"kind": "slow"}}),
        ("criterion.kind", {"criterion": {}}),
        ("criterion.capacity_bytes", {"criterion": {"kind": "out_of_memory", "capacity_bytes": 0}}),
        ("criterion.threshold", {"criterion": {"kind": "throughput"}}),
        ("criterion.threshold", {"criterion": {"kind": "peak_memory"}}),
        ("criterion.signature", {"criterion": {"kind": "crash", "signature": "a\tb"}}),
        ("criterion", {"profile": "no-default"}),
        ("criterion.capacity_bytes", {"profile": "no-default", "criterion": {"kind": "out_of_memory"}}),
    ],
)
def test_a_value_that_cannot_be_used_is_named_with_its_field(
    still: ServiceScene, field: str, changed: dict[str, Any]
) -> None:
    assert refused(still, field, **changed)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_none_are_refused(still: ServiceScene, number: str) -> None:
    body = json.dumps(REQUEST | {"budget": {"seconds": 0}}).replace('"seconds": 0', f'"seconds": {number}')
    answer = post(still, body.encode())
    assert problem(answer, 422, "invalid-request")["errors"][0]["field"] == "budget.seconds"


def test_all_faults_of_a_request_are_told_at_once(scene: ServiceScene) -> None:
    answer = scene.client.post("/v1/bisections", json={"good": "-x", "parallel": 0})
    fields = {error["field"] for error in problem(answer, 422, "invalid-request")["errors"]}
    assert fields == {"profile", "good", "bad", "parallel"}


@pytest.mark.parametrize("body", [b"{", b"\xff\xfe", b'{"a": ' + b"9" * 5000 + b"}", b"[" * 100_000])
def test_a_body_that_is_no_json_is_malformed(still: ServiceScene, body: bytes) -> None:
    problem(post(still, body), 400, "malformed-body")


@pytest.mark.parametrize("body", [b"[]", b'"text"', b"null", b"1", b""])
def test_json_that_is_no_object_is_refused(still: ServiceScene, body: bytes) -> None:
    answer = post(still, body)
    assert problem(answer, 422, "invalid-request")["errors"][0]["field"] == "the body"


def test_a_body_of_another_type_is_refused_with_the_type_to_send(scene: ServiceScene) -> None:
    answer = post(scene, b'{"profile": "x"}', "text/plain")
    assert "application/json" in problem(answer, 422, "invalid-request")["detail"]


def test_a_body_that_is_too_large_is_refused(scene: ServiceScene) -> None:
    answer = scene.client.post("/v1/bisections", json=REQUEST | {"overrides": {"a": "x" * 200_000}})
    problem(answer, 413, "body-too-large")
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_body_without_a_length_is_not_read_to_its_end(scene: ServiceScene) -> None:
    answer = scene.client.post("/v1/bisections", content=(b"x" * 1000 for _ in range(1000)))
    problem(answer, 413, "body-too-large")


def test_too_many_overrides_are_refused(scene: ServiceScene) -> None:
    assert refused(scene, "overrides", overrides={f"k{i}": i for i in range(201)})


# --- reading ------------------------------------------------------------------------------------


def test_a_running_bisection_shows_its_plan_and_what_its_trials_mean(scene: ServiceScene) -> None:
    bisection_id = scene.create()
    scene.resolve(bisection_id)
    scene.run_trial(bisection_id)
    shown = scene.client.get(f"/v1/bisections/{bisection_id}").json()
    assert shown["status"] == "running"
    assert shown["plan"] == {"commits": 1, "states": 2}
    (trial,) = shown["trials"]
    assert trial["commit"] == BAD
    assert trial["subject"].startswith(HOSTILE)
    assert trial["outcome"] == "out_of_memory"
    assert trial["verdict"] == "bad"
    assert trial["limit"] == CAPACITY
    assert trial["value"] == CAPACITY + 2**30


def test_a_rejected_request_tells_the_repair_in_its_finding(scene: ServiceScene) -> None:
    bisection_id = scene.create()
    why = "ref 'main' does not exist; push it, or name another"
    scene.bisections.conclude(
        bisection_id, Finding(kind=FindingKind.REJECTED, why=why, problem="unknown-ref")
    )
    finding = scene.client.get(f"/v1/bisections/{bisection_id}").json()["finding"]
    assert (finding["kind"], finding["why"]) == ("rejected", why)


def test_an_unchanged_bisection_is_not_sent_again(scene: ServiceScene) -> None:
    path = f"/v1/bisections/{scene.create()}"
    etag = scene.client.get(path).headers["etag"]
    unchanged = scene.client.get(path, headers={"If-None-Match": f'"other", W/{etag}'})
    assert unchanged.status_code == 304
    assert unchanged.content == b""
    scene.client.post(f"{path}/cancel")
    assert scene.client.get(path, headers={"If-None-Match": etag}).status_code == 200


@pytest.mark.parametrize("bisection_id", [UNKNOWN_ID, "nonsense", "%00", "..", "x" * 500])
@pytest.mark.parametrize("rest", ["", "/report", "/trials", "/events", "/trials/1/artifacts/a.txt"])
def test_an_unknown_bisection_is_not_found(still: ServiceScene, bisection_id: str, rest: str) -> None:
    problem(still.client.get(f"/v1/bisections/{bisection_id}{rest}"), 404, "not-found")


def test_pages_of_a_list_hold_every_bisection_once_while_others_are_added(scene: ServiceScene) -> None:
    made = [scene.create(seed=number) for number in range(5)]
    seen: list[str] = []
    cursor: str | None = None
    while True:
        query = {"limit": "2"} | ({"cursor": cursor} if cursor else {})
        page = scene.client.get("/v1/bisections", params=query).json()
        seen += [item["id"] for item in page["items"]]
        scene.create(seed=100 + len(seen))
        cursor = page["next"]
        if cursor is None:
            break
    assert seen == made[::-1]


def test_a_list_that_ends_with_a_full_page_says_so(scene: ServiceScene) -> None:
    for number in range(2):
        scene.create(seed=number)
    page = scene.client.get("/v1/bisections", params={"limit": 2}).json()
    assert len(page["items"]) == 2
    assert page["next"] is None


def test_a_list_can_be_narrowed_to_a_status_and_a_profile(scene: ServiceScene) -> None:
    running, waiting = scene.create(), scene.create(seed=1)
    scene.resolve(running)

    def ids(**query: str) -> list[str]:
        return [item["id"] for item in scene.client.get("/v1/bisections", params=query).json()["items"]]

    assert ids(status="running") == [running]
    assert ids(profile=PROFILE) == [waiting, running]
    assert ids(profile="no-default") == []


@pytest.mark.parametrize(
    "query",
    ["cursor=x", "cursor=AAAA", "cursor=%C3%BC", "limit=0", "limit=1001", "status=lost", "profile=A%00"],
)
def test_a_list_refuses_parameters_that_it_did_not_give(still: ServiceScene, query: str) -> None:
    body = problem(still.client.get(f"/v1/bisections?{query}"), 422, "invalid-request")
    assert body["errors"][0]["field"] == query.split("=")[0]


def test_what_is_registered_is_listed_without_the_operators_secrets(scene: ServiceScene) -> None:
    profiles = scene.client.get("/v1/profiles")
    assert [item["name"] for item in profiles.json()["items"]] == ["elsewhere", "no-default", PROFILE]
    assert profiles.json()["items"][2]["criterion"]["capacity_bytes"] == CAPACITY
    repositories = scene.client.get("/v1/repositories")
    assert [(r["name"], r["webhook"]) for r in repositories.json()["items"]] == [
        ("megatron-bridge", True),
        ("megatron-lm", False),
    ]
    for hidden in ("/operators/own", "/mirrors", str(scene.secret_file)):
        assert hidden not in profiles.text + repositories.text


def test_workers_that_live_are_listed(scene: ServiceScene) -> None:
    Roster(scene.database).seen("worker-1@host", "pool")
    (worker,) = scene.client.get("/v1/workers").json()["items"]
    assert (worker["name"], worker["queue"]) == ("worker-1@host", "pool")


# --- confirming and cancelling ------------------------------------------------------------------


def test_a_preview_starts_when_it_is_confirmed(scene: ServiceScene) -> None:
    bisection_id = scene.create(preview=True)
    early = scene.client.post(f"/v1/bisections/{bisection_id}/confirm")
    assert "Wait for the plan" in problem(early, 409, "wrong-state")["detail"]
    scene.resolve(bisection_id, preview=True)
    confirmed = scene.client.post(f"/v1/bisections/{bisection_id}/confirm")
    assert confirmed.status_code == 202
    assert confirmed.json()["status"] == "running"
    again = scene.client.post(f"/v1/bisections/{bisection_id}/confirm")
    assert "is running" in problem(again, 409, "wrong-state")["detail"]


def test_cancelling_is_asked_for_once_or_more_until_the_search_has_ended(scene: ServiceScene) -> None:
    bisection_id = scene.create()
    for _ in range(2):
        answer = scene.client.post(f"/v1/bisections/{bisection_id}/cancel")
        assert answer.status_code == 202
        assert answer.json()["cancel_requested"] is True
    scene.finish(bisection_id, {})
    problem(scene.client.post(f"/v1/bisections/{bisection_id}/cancel"), 409, "wrong-state")


# --- who may -------------------------------------------------------------------------------------


PATHS = [
    ("POST", "/v1/bisections"), ("GET", "/v1/bisections"), ("GET", f"/v1/bisections/{UNKNOWN_ID}"),
    ("POST", f"/v1/bisections/{UNKNOWN_ID}/confirm"), ("POST", f"/v1/bisections/{UNKNOWN_ID}/cancel"),
    ("GET", f"/v1/bisections/{UNKNOWN_ID}/report"), ("GET", f"/v1/bisections/{UNKNOWN_ID}/trials"),
    ("GET", f"/v1/bisections/{UNKNOWN_ID}/trials/1/artifacts/a.txt"),
    ("GET", f"/v1/bisections/{UNKNOWN_ID}/events"),
    ("GET", "/v1/profiles"), ("GET", "/v1/repositories"), ("GET", "/v1/workers"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path"), PATHS)
def test_strangers_learn_nothing_but_that_a_token_is_needed(
    still: ServiceScene, method: str, path: str
) -> None:
    for client in (still.anonymous, still.client_with("fb_guessed")):
        answer = client.request(method, path, json={})
        problem(answer, 401, "unauthenticated")
        assert answer.headers["www-authenticate"].startswith('Bearer realm="firstbad"')


@pytest.mark.parametrize(("method", "path"), PATHS)
def test_a_token_without_the_scope_is_forbidden(still: ServiceScene, method: str, path: str) -> None:
    lacking = Scope.WRITE if method == "GET" else Scope.READ
    answer = still.client_with(still.tokens[lacking]).request(method, path, json=REQUEST)
    body = problem(answer, 403, "forbidden")
    assert ("'read'" if method == "GET" else "'write'") in body["detail"]
    assert 'error="insufficient_scope"' in answer.headers["www-authenticate"]


def test_a_token_that_only_writes_can_start_and_cancel(scene: ServiceScene) -> None:
    writer = scene.client_with(scene.tokens[Scope.WRITE])
    created = writer.post("/v1/bisections", json=REQUEST)
    assert created.status_code == 202
    assert writer.post(f"{created.headers['location']}/cancel").status_code == 202


def test_the_token_of_a_cookie_only_reads(scene: ServiceScene) -> None:
    browser = scene.client_with(None)
    browser.cookies.set("firstbad_token", scene.token)
    assert browser.get("/v1/bisections").status_code == 200
    problem(browser.post("/v1/bisections", json=REQUEST), 401, "unauthenticated")


# --- evidence ------------------------------------------------------------------------------------


def test_the_evidence_of_a_trial_is_its_measurement_and_its_artifacts(scene: ServiceScene) -> None:
    bisection_id = scene.create()
    scene.resolve(bisection_id)
    trial_id = scene.run_trial(bisection_id, {"log.txt": b"<b>\xff", "snapshot.pickle": b"\x80\x04."})
    (trial,) = scene.client.get(f"/v1/bisections/{bisection_id}/trials").json()["items"]
    assert trial["measurement"]["oom"]["component"] == "experts"
    assert set(trial["artifacts"]) == {"log.txt", "snapshot.pickle"}
    log = scene.client.get(trial["artifacts"]["log.txt"])
    assert log.content == b"<b>\xff"
    assert log.headers["content-type"] == "text/plain; charset=utf-8"
    pickle = scene.client.get(trial["artifacts"]["snapshot.pickle"])
    assert pickle.headers["content-type"] == "application/octet-stream"
    assert pickle.headers["content-disposition"] == 'attachment; filename="snapshot.pickle"'
    for answer in (log, pickle):
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-security-policy"].startswith("sandbox")
    path = f"/v1/bisections/{bisection_id}/trials/{trial_id}/artifacts"
    missing = scene.client.get(f"{path}/other.txt")
    assert "log.txt" in problem(missing, 404, "not-found")["repair"]
    for name in ("..%2f..%2fetc%2fpasswd", "%00", "log.txt%0d%0aX: y"):
        problem(scene.client.get(f"{path}/{name}"), 404, "not-found")


def test_an_artifact_is_only_found_under_its_own_bisection(scene: ServiceScene) -> None:
    mine, other = scene.create(), scene.create(seed=1)
    scene.resolve(mine)
    trial_id = scene.run_trial(mine, {"log.txt": b"mine"})
    problem(scene.client.get(f"/v1/bisections/{other}/trials/{trial_id}/artifacts/log.txt"), 404, "not-found")


def events_of(text: str) -> list[dict[str, str]]:
    blocks = [block for block in text.split("\n\n") if block and not block.startswith(":")]
    return [dict(line.split(": ", 1) for line in block.split("\n")) for block in blocks]


def test_the_events_of_an_ended_bisection_are_told_to_their_end(scene: ServiceScene) -> None:
    bisection_id = scene.create()
    scene.resolve(bisection_id)
    scene.run_trial(bisection_id)
    scene.finish(bisection_id, {})
    answer = scene.client.get(f"/v1/bisections/{bisection_id}/events")
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = events_of(answer.text)
    kinds = [event["event"] for event in events]
    assert kinds[:2] == ["created", "resolved"]
    assert kinds[-2:] == ["finding", "ended"]
    after = {"Last-Event-ID": events[-2]["id"]}
    rest = events_of(scene.client.get(f"/v1/bisections/{bisection_id}/events", headers=after).text)
    assert [event["event"] for event in rest] == ["ended"]


@pytest.mark.parametrize("after", ["x", "-1", str(2**63)])
def test_an_event_id_that_was_never_given_is_refused(scene: ServiceScene, after: str) -> None:
    path = f"/v1/bisections/{scene.create()}/events"
    answer = scene.client.get(path, headers={"Last-Event-ID": after})
    assert problem(answer, 422, "invalid-request")["errors"][0]["field"] == "last-event-id"


# --- health, and what no endpoint answers --------------------------------------------------------


def test_the_process_says_that_it_lives(scene: ServiceScene) -> None:
    assert scene.anonymous.get("/healthz").json() == {"status": "ok", "version": "1.2.3"}


def test_the_service_is_ready_without_a_broker(scene: ServiceScene) -> None:
    answer = scene.anonymous.get("/readyz")
    assert answer.status_code == 200
    assert answer.json() == {"status": "ready", "broker": "away"}


def test_a_broken_catalogue_is_told_by_file_but_not_by_the_path_of_the_machine(scene: ServiceScene) -> None:
    (scene.catalogue_folder / "profiles" / f"{PROFILE}.yaml").write_text("name: [")
    ready = scene.anonymous.get("/readyz")
    assert problem(ready, 503, "not-ready")["errors"][0]["field"] == "catalogue"
    listed = scene.client.get("/v1/profiles")
    problem(listed, 503, "bad-catalogue")
    created = scene.client.post("/v1/bisections", json=REQUEST)
    assert f"profiles/{PROFILE}.yaml" in problem(created, 503, "bad-catalogue")["detail"]
    assert str(scene.catalogue_folder) not in ready.text + listed.text + created.text


def test_a_schema_that_was_never_migrated_is_not_ready(scene: ServiceScene, tmp_path: Path) -> None:
    empty = Database(f"sqlite:///{tmp_path}/empty.sqlite")
    object.__setattr__(scene.app.state.parts, "database", empty)
    body = problem(scene.anonymous.get("/readyz"), 503, "not-ready")
    assert body["errors"][0]["field"] == "database"
    problem(scene.client.get("/v1/bisections"), 503, "database-unavailable")
    empty.close()


def test_a_fault_of_the_service_is_told_without_its_insides(
    scene: ServiceScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_query: object) -> None:
        raise RuntimeError("the password is hunter2")

    monkeypatch.setattr(scene.app.state.parts.summaries, "page", fail)
    with capture_logs() as logs:
        answer = scene.client.get("/v1/bisections")
    detail = problem(answer, 500, "internal-error")["detail"]
    assert "hunter2" not in answer.text
    assert logs[0]["reference"] in detail
    assert "hunter2" in str(logs[0]["exc_info"])


def test_unknown_paths_and_methods_are_problems_too(scene: ServiceScene) -> None:
    problem(scene.client.get("/v1/nothing"), 404, "not-found")
    answer = scene.client.delete("/v1/bisections")
    problem(answer, 405, "method-not-allowed")
    assert answer.headers["allow"] == "GET, POST"


def test_every_status_of_a_bisection_can_be_listed(scene: ServiceScene) -> None:
    for status in Status:
        assert scene.client.get("/v1/bisections", params={"status": status.value}).status_code == 200


def test_a_faulty_workers_measurements_are_retracted_by_whoever_may_write(scene: ServiceScene) -> None:
    assert scene.client.post("/v1/measurements/retract", json={"worker": "worker-1"}).json() == {
        "retracted": 0
    }
    reader = scene.client_with(scene.tokens[Scope.READ])
    assert reader.post("/v1/measurements/retract", json={"worker": "worker-1"}).status_code == 403
    answer = scene.client.post("/v1/measurements/retract", json={})
    assert answer.status_code == 422
    assert "names neither a worker nor a key" in answer.text
