"""Reports in three formats, and the pages that people open in a browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from bisection.progress import ANSWER_SO_FAR, progress
from bisection.report import CulpritReport, build_report
from service.problems import KINDS
from tests.unit.report import samples
from tests.unit.service.scene import HOSTILE, REQUEST, ServiceScene


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[ServiceScene]:
    with ServiceScene(tmp_path) as scene:
        yield scene


@pytest.fixture(scope="module")
def report() -> CulpritReport:
    sample = samples.experts(subject=HOSTILE)
    return build_report(sample.spec, sample.ledger, sample.finding, sample.evidence)


@pytest.fixture
def ended(scene: ServiceScene, report: CulpritReport) -> str:
    bisection_id = scene.create()
    scene.finish(bisection_id, report.to_json())
    return bisection_id


def person(scene: ServiceScene) -> Any:
    """Somebody who sends forms from the service's own pages, not signed in."""
    client = scene.client_with(None)
    client.headers["Origin"] = "http://testserver"
    return client


def browser(scene: ServiceScene) -> Any:
    """Signed in, as a person is."""
    client = person(scene)
    client.headers["Accept"] = "text/html,application/xhtml+xml,*/*;q=0.8"
    answer = client.post("/login", data={"token": scene.token})
    assert answer.status_code == 303
    return client


# --- the report over REST --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("accept", "media_type"),
    [
        ("", "application/json"),
        ("*/*", "application/json"),
        ("application/json", "application/json"),
        ("text/markdown", "text/markdown; charset=utf-8"),
        ("text/html,application/xhtml+xml,*/*;q=0.8", "text/html; charset=utf-8"),
        ("text/html;q=0.1, text/markdown;q=0.9", "text/markdown; charset=utf-8"),
        ("image/png", "application/json"),
        ("text/html;q=x", "application/json"),
    ],
)
def test_a_report_comes_in_the_format_that_is_accepted(
    scene: ServiceScene, ended: str, accept: str, media_type: str
) -> None:
    answer = scene.client.get(f"/v1/bisections/{ended}/report", headers={"Accept": accept})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == media_type
    assert answer.headers["vary"] == "Accept"


def test_the_json_report_is_the_stored_one(scene: ServiceScene, ended: str, report: CulpritReport) -> None:
    answer = scene.client.get(f"/v1/bisections/{ended}/report", params={"format": "json"})
    assert CulpritReport.from_json(answer.json()) == report


def test_the_asked_format_goes_before_the_accepted_one(scene: ServiceScene, ended: str) -> None:
    path = f"/v1/bisections/{ended}/report?format=markdown"
    answer = scene.client.get(path, headers={"Accept": "text/html"})
    assert answer.headers["content-type"].startswith("text/markdown")


def test_an_unknown_format_is_refused(scene: ServiceScene, ended: str) -> None:
    answer = scene.client.get(f"/v1/bisections/{ended}/report?format=pdf")
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == "format"


@pytest.mark.parametrize("format", ["json", "markdown", "html"])
def test_while_there_is_no_report_the_answer_says_how_to_wait(scene: ServiceScene, format: str) -> None:
    answer = scene.client.get(f"/v1/bisections/{scene.create()}/report?format={format}")
    assert answer.status_code == 409
    assert "resolving" in answer.json()["detail"]
    assert "/events" in answer.json()["repair"]


def test_a_report_that_a_fault_cut_short_is_still_read_as_json(scene: ServiceScene) -> None:
    bisection_id = scene.create()
    scene.finish(bisection_id, {"finding": {"kind": "none"}})
    path = f"/v1/bisections/{bisection_id}/report"
    assert scene.client.get(path).json() == {"finding": {"kind": "none"}}
    answer = scene.client.get(path, params={"format": "html"})
    assert answer.status_code == 409
    assert "format=json" in answer.json()["repair"]


def test_the_words_of_commits_are_never_markup(scene: ServiceScene, ended: str) -> None:
    page = scene.client.get(f"/v1/bisections/{ended}/report?format=html").text
    markdown = scene.client.get(f"/v1/bisections/{ended}/report?format=markdown").text
    for text in (page, MarkdownIt("commonmark", {"html": True}).render(markdown)):
        assert "alert(" in text
        assert "<script>" not in text


# --- pages -----------------------------------------------------------------------------------------


def test_a_person_signs_in_once_and_is_led_back_to_the_report(scene: ServiceScene, ended: str) -> None:
    visitor = person(scene)
    asked = visitor.get(f"/reports/{ended}")
    assert asked.status_code == 303
    form = visitor.get(asked.headers["location"])
    assert f'name="next" value="/reports/{ended}"' in form.text
    answer = visitor.post("/login", data={"token": scene.token, "next": f"/reports/{ended}"})
    assert answer.headers["location"] == f"/reports/{ended}"
    cookie = answer.headers["set-cookie"]
    for property in ("HttpOnly", "SameSite=strict", "Path=/"):
        assert property in cookie
    page = visitor.get(answer.headers["location"])
    assert page.status_code == 200
    assert "first bad commit found" in page.text
    visitor.post("/logout")
    assert visitor.get(f"/reports/{ended}").status_code == 303


def test_over_https_the_cookie_is_never_sent_in_the_clear(tmp_path: Path) -> None:
    with ServiceScene(tmp_path, public_url="https://firstbad.example") as scene:
        form = {"token": scene.token}
        answer = scene.anonymous.post("/login", data=form, headers={"Origin": "https://firstbad.example"})
        assert "Secure" in answer.headers["set-cookie"]


@pytest.mark.parametrize("next", ["https://evil.example", "//evil.example", "/\\evil.example", "/login", "x"])
def test_signing_in_never_leads_elsewhere(scene: ServiceScene, next: str) -> None:
    answer = person(scene).post("/login", data={"token": scene.token, "next": next})
    assert answer.headers["location"] == "/"


@pytest.mark.parametrize("token", ["", "fb_guessed", "\x00"])
def test_a_wrong_token_is_told_so_and_sets_no_cookie(scene: ServiceScene, token: str) -> None:
    answer = person(scene).post("/login", data={"token": token})
    assert answer.status_code == 401
    assert "unknown, expired or revoked" in answer.text
    assert "set-cookie" not in answer.headers


def test_a_token_that_may_not_read_cannot_sign_in(scene: ServiceScene) -> None:
    answer = person(scene).post("/login", data={"token": scene.tokens["write"]})  # type: ignore[index]
    assert answer.status_code == 401


def test_the_list_shows_what_callers_wrote_as_text(scene: ServiceScene) -> None:
    scene.create(good=HOSTILE)
    page = browser(scene).get("/")
    assert page.status_code == 200
    assert "&lt;script&gt;" in page.text
    assert "<script>" not in page.text


def test_an_empty_list_says_how_to_start(scene: ServiceScene) -> None:
    assert "firstbad submit" in browser(scene).get("/").text


def test_before_the_report_the_page_shows_the_trials_so_far(scene: ServiceScene) -> None:
    bisection_id = scene.create()
    scene.resolve(bisection_id)
    scene.run_trial(bisection_id)
    page = browser(scene).get(f"/reports/{bisection_id}").text
    assert "the allocator refused" in page
    assert "\\u202e" in page
    assert "\u202e" not in page
    assert "&lt;script&gt;" in page
    assert "<script>" not in page


def test_no_page_can_run_a_foreign_script_be_framed_or_be_sniffed(scene: ServiceScene, ended: str) -> None:
    visitor = browser(scene)
    running = scene.create(seed=1)
    still = ["/", "/login", f"/reports/{ended}", "/errors/not-found", "/x", "/compare"]
    live = [f"/reports/{running}", f"/bisections/{ended}", f"/bisections/{running}", "/new", "/workers"]
    for path in [*still, *live]:
        answer = visitor.get(path)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert ("script-src 'self';" in policy) is (path in live)
        assert ("script-src" in policy) is (path in live)
        assert answer.headers["x-content-type-options"] == "nosniff"
        scripts = re.findall(r"<script[^>]*>.*?</script>", answer.text)
        assert scripts == ['<script src="/static/htmx.min.js" defer></script>'] * (path in live), path
        assert not re.search(r"\son\w+=|\sstyle=", answer.text), path


def test_a_page_names_its_language_title_and_heading(scene: ServiceScene) -> None:
    scene.create()
    person = browser(scene)
    for path in ("/", "/login", "/errors/forbidden", "/x"):
        page = person.get(path).text
        assert '<html lang="en">' in page
        assert re.search(r"<title>.+ - firstbad</title>", page)
        assert page.count("<h1>") == 1


def test_a_browser_gets_a_page_where_a_program_gets_a_problem(scene: ServiceScene) -> None:
    page = browser(scene).get("/reports/0123456789abcdef")
    assert page.status_code == 404
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "There is no bisection" in page.text


def test_the_type_of_every_problem_leads_to_a_page(scene: ServiceScene) -> None:
    for name, kind in KINDS.items():
        page = scene.anonymous.get(f"/errors/{name}")
        assert page.status_code == 200
        assert kind.title in page.text.replace("&#39;", "'")


def test_the_style_is_served_from_here(scene: ServiceScene) -> None:
    answer = scene.anonymous.get("/static/firstbad.css")
    assert answer.headers["content-type"] == "text/css; charset=utf-8"
    assert "prefers-color-scheme: dark" in answer.text


def test_a_cookie_never_writes(scene: ServiceScene) -> None:
    assert browser(scene).post("/v1/bisections", json=REQUEST).status_code == 401


def test_a_sign_in_with_a_crowd_of_fields_is_refused(scene: ServiceScene) -> None:
    form = "&".join(["a=b"] * 50)
    answer = person(scene).post("/login", content=form)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["type"].endswith("/errors/invalid-request")
    assert "more than 30 fields" in answer.json()["detail"]
    page = person(scene).post("/login", content=form, headers={"Accept": "text/html"})
    assert page.status_code == 422
    assert "more than 30 fields" in page.text


# --- the answer so far -----------------------------------------------------------------------------


def test_the_page_and_the_api_tell_the_answer_so_far(scene: ServiceScene) -> None:
    bisection_id = scene.create()
    scene.resolve(bisection_id)
    assert scene.client.get(f"/v1/bisections/{bisection_id}").json()["answer_so_far"] is None
    scene.run_trial(bisection_id)
    row = scene.bisections.get(bisection_id)
    ledger = scene.trials.ledger(scene.trials.of(bisection_id))
    assert row.specification is not None
    told = progress(row.specification, ledger, ()).to_json()
    scene.bisections.note(bisection_id, ANSWER_SO_FAR, told)
    shown = scene.client.get(f"/v1/bisections/{bisection_id}").json()["answer_so_far"]
    assert shown == {key: value for key, value in told.items() if key != "version"}
    page = browser(scene).get(f"/reports/{bisection_id}").text
    assert "1 trial, 12 s spent, about" in page
    assert "the one suspect left" in page
    assert "None of them is confirmed" in page
    assert HOSTILE not in page
