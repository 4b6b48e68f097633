"""What may be changed from a page, by whom, and from where."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bisection.adapters.storage.bisections import Status
from bisection.adapters.storage.tokens import Scope
from service.configuration_texts import has_aliases, parse_configuration
from tests.unit.service.scene import PROFILE, ServiceScene

OURS = "http://testserver"


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[ServiceScene]:
    with ServiceScene(tmp_path) as scene:
        yield scene


def person(scene: ServiceScene, token: str, origin: str | None = OURS) -> Any:
    """Signed in; every form comes from a page of this origin."""
    client = scene.client_with(None)
    client.headers["Accept"] = "text/html"
    client.cookies.set("firstbad_token", token)
    if origin is not None:
        client.headers["Origin"] = origin
    return client


@pytest.mark.parametrize(
    "origin",
    [None, "null", "https://evil.example", "http://testserver.evil.example", "testserver", "file://"],
)
@pytest.mark.parametrize(
    "path", ["/bisections/{}/confirm", "/new", "/new/check", "/compare", "/login", "/logout"]
)
def test_a_form_of_another_site_changes_nothing(scene: ServiceScene, origin: str | None, path: str) -> None:
    planned = scene.create()
    scene.resolve(planned, preview=True)
    answer = person(scene, scene.token, origin).post(path.format(planned), data={"reason": "x"})
    assert answer.status_code == 403
    assert "not sent by a page of this service" in answer.text
    assert "set-cookie" not in answer.headers
    assert scene.bisections.get(planned).status is Status.PLANNED
    assert len(scene.client.get("/v1/bisections").json()["items"]) == 1


def test_behind_a_proxy_the_public_address_is_ours(tmp_path: Path) -> None:
    with ServiceScene(tmp_path, public_url="https://firstbad.example") as scene:
        planned = scene.create()
        scene.resolve(planned, preview=True)
        answer = person(scene, scene.token, "https://firstbad.example").post(f"/bisections/{planned}/confirm")
        assert (answer.status_code, answer.headers["location"]) == (303, f"/bisections/{planned}")
        assert scene.bisections.get(planned).status is Status.RUNNING


@pytest.mark.parametrize(
    "path", ["/bisections/{}/cancel", "/bisections/{}/confirm", "/bisections/{}/approve"]
)
def test_who_only_reads_is_offered_nothing_and_refused(scene: ServiceScene, path: str) -> None:
    planned = scene.create()
    scene.resolve(planned, preview=True)
    reader = person(scene, scene.tokens[Scope.READ])
    shown = reader.get(f"/bisections/{planned}").text
    assert "Confirm" not in shown
    assert "Cancel" not in shown
    answer = reader.post(path.format(planned))
    assert answer.status_code == 403
    assert "has the scopes read" in answer.text
    assert scene.bisections.get(planned).status is Status.PLANNED


def test_nobody_decides_without_being_signed_in(scene: ServiceScene) -> None:
    planned = scene.create()
    scene.resolve(planned, preview=True)
    answer = person(scene, "fb_guessed").post(f"/bisections/{planned}/confirm")
    assert answer.headers["location"].startswith("/login")
    assert scene.bisections.get(planned).status is Status.PLANNED


def test_a_decision_that_is_not_possible_now_is_told_with_its_repair(scene: ServiceScene) -> None:
    answer = person(scene, scene.token).post(f"/bisections/{scene.create()}/confirm")
    assert answer.status_code == 409
    assert "Wait for the plan." in answer.text


def test_a_result_is_not_taken_back_without_a_reason(scene: ServiceScene) -> None:
    ended = scene.create()
    scene.finish(ended, {})
    visitor = person(scene, scene.token)
    assert visitor.post(f"/bisections/{ended}/retract", data={"reason": " "}).status_code == 422
    assert scene.bisections.get(ended).retraction is None
    assert visitor.post(f"/bisections/{ended}/retract", data={"reason": "a hot node"}).status_code == 303
    assert "a hot node" in visitor.get("/").text


FORM = {"profile": PROFILE, "good": "v0.3.0", "bad": "main", "trials": "60", "nonce": "n1"}


def test_the_same_form_sent_twice_makes_one_bisection_and_an_edited_one_another(scene: ServiceScene) -> None:
    visitor = person(scene, scene.token)
    first = visitor.post("/new", data=FORM).headers["location"]
    assert visitor.post("/new", data=FORM).headers["location"] == first
    assert visitor.post("/new", data=FORM | {"trials": "61"}).headers["location"] != first
    assert scene.bisections.get(first.rsplit("/", 1)[1]).request["preview"] is False


@pytest.mark.parametrize(
    ("fields", "place", "words"),
    [
        ({"good": ""}, "good", "is empty"),
        ({"profile": "nobody"}, "profile", "nobody"),
        ({"trials": "many"}, "trials", "is no whole number"),
        ({"trials": "1"}, "trials", "it should be greater than or equal to 2"),
        ({"gpu_hours": "nan"}, "gpu_hours", "is no number"),
        ({"hours": "-1"}, "hours", "it should be greater than 0"),
        ({"kind": "peak_memory"}, "peak", "threshold"),
        ({"kind": "throughput"}, "rate", "threshold"),
        ({"capacity": "80"}, "capacity", "does not use it"),
        ({"kind": "crash", "capacity": "80"}, "capacity", "crash does not use it"),
        ({"kind": "luck"}, "kind", "none of the kinds"),
        ({"overrides": "train.steps"}, "overrides", "KEY=VALUE"),
        ({"overrides": "9=1"}, "overrides", "is not a configuration key"),
        ({"confidence": "0.2"}, "confidence", "it should be greater than 0.5"),
    ],
)
def test_a_wrong_field_is_told_at_its_place(
    scene: ServiceScene, fields: dict[str, str], place: str, words: str
) -> None:
    visitor = person(scene, scene.token)
    for path, status in (("/new/check", 200), ("/new", 422)):
        answer = visitor.post(path, data=FORM | fields)
        assert answer.status_code == status
        told = answer.text.partition(f'id="{place}-error"')[2].partition("</span>")[0]
        if not (path == "/new/check" and fields == {"good": ""}):  # not typed yet is no error
            assert words in told.replace("&#39;", "'"), answer.text
    assert scene.client.get("/v1/bisections").json()["items"] == []


def test_the_list_is_filtered_and_read_page_by_page(scene: ServiceScene) -> None:
    made = [scene.create(seed=number) for number in range(52)]
    visitor = person(scene, scene.token)
    first = visitor.get("/?status=resolving&text=v0.3").text
    assert made[-1] in first
    assert made[0] not in first
    older = first.partition('rel="next"')[0].rpartition('href="')[2].partition('"')[0].replace("&amp;", "&")
    assert "status=resolving" in older
    rest = visitor.get(older).text
    assert [made[0] in rest, made[1] in rest, made[2] in rest] == [True, True, False]
    assert "Nothing here fits" in visitor.get("/?status=ended").text


def test_of_a_log_the_end_is_shown_and_never_as_markup(scene: ServiceScene) -> None:
    bisection_id = scene.create()
    scene.resolve(bisection_id)
    log = b"".join(b"line %d\n" % number for number in range(40_000)) + b"<script>alert(1)</script>\xff\n"
    trial = scene.run_trial(bisection_id, {"stdout.log": log, "snapshot.pickle": b"\x80"})
    page = person(scene, scene.token).get(f"/bisections/{bisection_id}/trials/{trial}").text
    assert "line 39999" in page
    assert "line 39000\n" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "<script" not in page
    assert f"/v1/bisections/{bisection_id}/trials/{trial}/artifacts/stdout.log" in page
    assert person(scene, scene.token).get(f"/bisections/{bisection_id}/trials/none").status_code == 404


def test_what_did_not_change_is_not_sent_again(scene: ServiceScene) -> None:
    bisection_id = scene.create()
    visitor = person(scene, scene.token)
    asked = visitor.get(f"/bisections/{bisection_id}").text.partition('hx-get="')[2].partition('"')[0]
    asked = asked.replace("&amp;", "&")
    assert visitor.get(asked).status_code == 204
    scene.resolve(bisection_id, preview=True)
    answer = visitor.get(asked)
    assert answer.status_code == 200
    assert "Confirm: run the trials" in answer.text
    assert 'hx-swap-oob="true"' in answer.text


def test_a_signed_out_page_that_asks_again_is_led_to_the_form(scene: ServiceScene) -> None:
    path = f"/bisections/{scene.create()}/live"
    answer = scene.anonymous.get(path, headers={"HX-Request": "true"})
    assert (answer.status_code, answer.headers["hx-refresh"]) == (204, "true")


def test_configurations_are_compared_or_told_what_is_wrong(scene: ServiceScene) -> None:
    visitor = person(scene, scene.tokens[Scope.READ])
    bomb = "a: &a [1, 1]\nb: &b [*a, *a]\n"
    answer = visitor.post("/compare", data={"good": bomb, "bad": "just words", "gpus": "none"})
    assert answer.status_code == 422
    for words in ("YAML aliases", "neither YAML nor JSON", "is no number of GPUs"):
        assert words in answer.text.replace("&#39;", "'")


def test_configuration_texts_are_read_as_people_have_them() -> None:
    assert parse_configuration('{"seq_length": 4096}', "x") == {"seq_length": 4096}
    assert parse_configuration("seq_length: 4096", "x") == {"seq_length": 4096}
    assert parse_configuration("torchrun train.py --seq-length 4096 --bf16", "x")["seq_length"] == 4096
    assert not has_aliases("text: 'two * two'")
    assert has_aliases("a: &a 1\nb: *a")
    with pytest.raises(ValueError, match=r"^x is neither"):
        parse_configuration("[1]", "x")


def test_every_explanation_is_served_and_leads_to_the_next(scene: ServiceScene) -> None:
    index = scene.anonymous.get("/errors").text
    assert 'href="/errors/out-of-memory"' in index
    page = scene.anonymous.get("/errors/drift").text
    assert "<h2>Repair</h2>" in page
    assert '.md"' not in page
    assert "(docs/reference/faults.md)" in scene.anonymous.get("/errors/lost").text
    assert scene.anonymous.get("/errors/..%2F..%2FREADME").status_code == 404
