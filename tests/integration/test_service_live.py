"""The service as a process would run it: uvicorn on loopback, the client, and events as they happen."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import uvicorn

from bisection.report import build_report
from service.client import ApiProblem, Client
from tests.unit.report import samples
from tests.unit.service.scene import PROFILE, REQUEST, ServiceScene


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[ServiceScene]:
    with ServiceScene(tmp_path) as scene:
        yield scene


@contextmanager
def serve(scene: ServiceScene) -> Iterator[str]:
    """The URL of the scene's application, served by uvicorn in a thread."""
    listener = socket.create_server(("127.0.0.1", 0))
    settings = uvicorn.Config(scene.app, log_level="error", timeout_graceful_shutdown=1)
    server = uvicorn.Server(settings)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    # The socket listens already: the first request waits for the server, not the test.
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


@pytest.fixture
def url(scene: ServiceScene) -> Iterator[str]:
    with serve(scene) as url:
        yield url


@pytest.fixture
def client(scene: ServiceScene, url: str) -> Iterator[Client]:
    with Client(url, scene.token) as client:
        yield client


def test_a_bisection_is_created_watched_and_read_to_its_report(scene: ServiceScene, client: Client) -> None:
    created = client.create(REQUEST, idempotency_key="once")
    assert client.create(REQUEST, idempotency_key="once")["id"] == created["id"]
    events = client.events(created["id"])
    first = next(events)
    assert (first.kind, first.payload) == ("created", {"source": "token:both"})

    sample = samples.experts()
    report = build_report(sample.spec, sample.ledger, sample.finding, sample.evidence)

    def work() -> None:
        scene.resolve(created["id"])
        scene.run_trial(created["id"], {"log.txt": b"out of memory"})
        scene.finish(created["id"], report.to_json())

    worker = threading.Thread(target=work)
    worker.start()
    seen = [first, *events]
    worker.join()
    kinds = [event.kind for event in seen]
    assert kinds[0] == "created"
    assert {"resolved", "trial_started", "trial_ended", "finding"} < set(kinds)
    assert kinds[-1] == "ended"
    assert [event.id for event in seen] == sorted({event.id for event in seen})

    rest = list(client.events(created["id"], after=seen[-2].id))
    assert rest == seen[-1:]
    assert client.wait(created["id"], timeout_seconds=60)["status"] == "ended"
    (trial,) = client.trials(created["id"])
    assert client.artifact(created["id"], trial["id"], "log.txt") == b"out of memory"
    assert client.report(created["id"]) == report.to_json()
    assert client.report(created["id"], "markdown").startswith("#")
    assert client.report(created["id"], "html").startswith("<!doctype html>")


def test_a_preview_is_waited_for_confirmed_and_cancelled(scene: ServiceScene, client: Client) -> None:
    bisection_id = client.create(REQUEST | {"preview": True})["id"]
    scene.resolve(bisection_id, preview=True)
    assert client.wait(bisection_id, timeout_seconds=60)["status"] == "planned"
    assert client.confirm(bisection_id)["status"] == "running"
    assert client.cancel(bisection_id)["cancel_requested"] is True


def test_waiting_ends_when_the_time_is_over(client: Client) -> None:
    bisection_id = client.create(REQUEST)["id"]
    with pytest.raises(TimeoutError, match="still resolving"):
        client.wait(bisection_id, timeout_seconds=0, poll_seconds=0)


def test_a_list_is_read_over_its_pages(scene: ServiceScene, client: Client) -> None:
    made = [client.create(REQUEST | {"seed": number})["id"] for number in range(3)]
    assert [row["id"] for row in client.list()] == made[::-1]
    assert [row["id"] for row in client.list(limit=2)] == made[:0:-1]
    assert client.list(status="ended") == []
    assert len(client.list(profile=PROFILE)) == 3
    assert [profile["name"] for profile in client.profiles()][-1] == PROFILE
    assert len(client.repositories()) == 2
    assert client.workers() == []


def test_a_problem_is_raised_with_what_is_wrong_and_how_to_mend_it(client: Client) -> None:
    with pytest.raises(ApiProblem, match="is not valid") as caught:
        client.create(REQUEST | {"good": "-x", "seed": -1})
    assert caught.value.status == 422
    assert {error["field"] for error in caught.value.errors} == {"good", "seed"}
    assert caught.value.repair in caught.value.detail
    with pytest.raises(ApiProblem, match="no bisection"):
        list(client.events("0123456789abcdef"))
    with pytest.raises(ApiProblem, match="no such thing"):
        client.get("../../openapi.json")


def test_a_wrong_token_is_told_so(url: str) -> None:
    with Client(url, "fb_guessed") as client, pytest.raises(ApiProblem, match="Authorization: Bearer"):
        client.list()


def test_an_answer_that_is_not_ours_names_the_url_as_the_suspect() -> None:
    request = httpx.Request("GET", "http://proxy.example/v1/bisections")
    answer = httpx.Response(502, text="<html>", request=request)
    assert "Check the URL" in str(ApiProblem.of(answer))
