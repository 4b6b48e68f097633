"""A failed nightly from GitHub's delivery to the report that people read, and what GitHub is told of it.

Everything is real but GitHub: the API, Valkey, Celery, the workers, git, the trials, Chromium. GitHub's
stand-in serves jobs and logs and takes what is written, over HTTP.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from playwright.sync_api import Browser, sync_playwright

from firstbad.embedded import Server
from firstbad.github_stand_in import GitHubWorld, create_stand_in
from service.client import Client
from tests.e2e.installation import CAPACITY_BYTES, Installation, Training, wait_until
from tests.e2e.test_report_in_chromium import CONTRASTS, OVERFLOWS, chromium
from tests.integration.nightly_scene import serving

GITHUB = "example-org/training"
SECRET = b"what GitHub and we know"
GOOD, BAD = {"bytes": 900}, {"bytes": 1100}
LOG = (
    "2026-11-30T02:11:02.0000000Z [rank0]: Traceback (most recent call last):\n"
    '2026-11-30T02:11:02.0000000Z [rank0]:   File "/w/train.py", line 9, in step\n'
    "2026-11-30T02:11:02.0000000Z [rank0]: torch.OutOfMemoryError: CUDA out of memory.\n"
    "2026-11-30T02:11:03.0000000Z ##[error]Process completed with exit code 1.\n"
)


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    installation = Installation(tmp_path / "home")
    installation.environment["FIRSTBAD_PUBLIC_URL"] = "https://firstbad.example"
    yield installation
    installation.down()
    assert not installation.processes(), "Ctrl-C left processes behind"


def world_and_key() -> tuple[GitHubWorld, bytes]:
    """A GitHub with our App installed, and the App's private key."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    world = GitHubWorld(repository=GITHUB, token="nobody's", app_id="7", app_public_key=public.decode())
    return world, private


def nightly(number: int, head_sha: str, conclusion: str) -> dict[str, Any]:
    """A run as GitHub stores it, with an unrelated job that is always red."""
    return {
        "id": number,
        "name": "nightly",
        "head_branch": "main",
        "head_sha": head_sha,
        "run_attempt": 1,
        "conclusion": "failure",
        "jobs": [
            {"id": number * 10, "name": "L2_Launch_vlm", "conclusion": conclusion, "log": LOG},
            {"id": number * 10 + 1, "name": "lint", "conclusion": "failure", "log": "E501 too long"},
        ],
    }


def deliver(server: Server, run: dict[str, Any], name: str) -> dict[str, Any]:
    """A `workflow_run` as GitHub sends it: the shape of octokit's examples, with values of our own."""
    payload = {
        "action": "completed",
        "workflow_run": {
            **{key: value for key, value in run.items() if key != "jobs"},
            "node_id": "WFR_x",
            "check_suite_id": 3,
            "run_number": 12,
            "event": "schedule",
            "status": "completed",
            "workflow_id": 4,
            "html_url": f"https://github.com/{GITHUB}/actions/runs/{run['id']}",
            "pull_requests": [],
            "created_at": "2026-11-30T00:00:00Z",
            "run_started_at": "2026-11-30T00:00:00Z",
            "jobs_url": "https://attacker.example/jobs",
            "logs_url": "https://attacker.example/logs",
            "head_commit": {"id": run["head_sha"], "message": "A change", "author": {"name": "Ada"}},
            "head_repository": {"id": 1, "full_name": GITHUB, "fork": False},
        },
        "workflow": {"id": 4, "name": "nightly", "path": ".github/workflows/nightly.yml", "state": "active"},
        "repository": {"id": 1, "full_name": GITHUB, "private": True, "default_branch": "main"},
        "sender": {"login": "ada", "type": "User"},
    }
    body = json.dumps(payload).encode()
    answer = httpx.post(
        f"{server.url}/v1/webhooks/github",
        content=body,
        headers={
            "Content-Type": "application/json",
            "X-GitHub-Event": "workflow_run",
            "X-GitHub-Delivery": name,
            "X-Hub-Signature-256": "sha256=" + hmac.new(SECRET, body, hashlib.sha256).hexdigest(),
        },
    )
    assert answer.status_code == 202, answer.text
    decided: dict[str, Any] = answer.json()
    return decided


def register(training: Training, folder: Path, api: str, key: bytes) -> None:
    (folder / "secret").write_bytes(SECRET)
    (folder / "app.pem").write_bytes(key)
    training.register(
        "repositories",
        "training",
        {
            "name": "training",
            "url": training.scene.url,
            "webhook": {
                "github": GITHUB,
                "workflows": ["nightly"],
                "branches": ["main"],
                "secret_file": str(folder / "secret"),
                "jobs": [{"job": "L2_Launch_*", "profile": "small"}],
            },
            "github": {
                "repository": GITHUB,
                "api": api,
                "app": {"id": "7", "installation": 5, "private_key_file": str(folder / "app.pem")},
                "log_hosts": ["127.0.0.1"],
            },
            "announce": {"check_run": True, "pull_request": True},
        },
    )


def test_a_failed_nightly_becomes_a_report_a_check_run_and_a_comment(
    installation: Installation, tmp_path: Path
) -> None:
    training = Training(installation, tmp_path / "training")
    #   green night  .  CULPRIT  .  red night
    hashes = training.commits(GOOD, GOOD, BAD, {"bytes": 1105}, {"bytes": 1111})
    world, key = world_and_key()
    world.pulls = [{"number": 41, "commits": [hashes[2]], "merged_at": "2026-11-29T00:00:00Z"}]
    green, red = nightly(100, hashes[0], "success"), nightly(200, hashes[4], "failure")
    world.runs = [green, red]
    with serving(create_stand_in(world)) as api:
        register(training, tmp_path, api, key)
        server = installation.up()
        deliver(server, green, "d-100")
        assert deliver(server, red, "d-200")["decision"] == "accepted"
        assert deliver(server, red, "d-200")["decision"] == "duplicate"
        with Client(server.url, server.token) as client:
            wait_until(lambda: bool(client.list()), "no bisection is started")
            (made,) = client.list()
            assert (made["request"]["good"], made["request"]["bad"]) == (hashes[0], hashes[4])
            assert made["request"]["criterion"]["kind"] == "out_of_memory"
            assert made["request"]["criterion"]["capacity_bytes"] == CAPACITY_BYTES
            row = client.wait(made["id"], timeout_seconds=150)
            assert row["finding"]["commits"] == [hashes[2]], row["finding"]
            wait_until(lambda: bool(world.check_runs and world.comments), "nothing is said at GitHub")
            (delivered,) = [one for one in client.deliveries() if one["id"] == "d-200"]
            decided = {one["job"]: one["decision"] for one in delivered["outcomes"]}
            assert decided == {"L2_Launch_vlm": "started", "lint": "ignored"}
            summary = client.report(made["id"], "json")["summary"]
            _read_in_chromium(server, made["id"], summary)
            _retract(client, world, made["id"])
        (check,), (comment,) = world.check_runs, world.comments
    assert check["head_sha"] == hashes[4]
    assert check["details_url"] == f"https://firstbad.example/reports/{made['id']}"
    assert comment["number"] == 41
    assert comment["body"].count("## Retracted") == 1


def _read_in_chromium(server: Server, bisection: str, summary: str) -> None:
    """As a person does: sign in, then read; with JavaScript and without."""
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=chromium(), args=arguments)
        for scripts in (True, False):
            _read(browser, server, bisection, summary, scripts=scripts)
        browser.close()


def _read(browser: Browser, server: Server, bisection: str, summary: str, *, scripts: bool) -> None:
    context = browser.new_context(java_script_enabled=scripts, viewport={"width": 1280, "height": 900})
    context.add_cookies([{"name": "firstbad_token", "value": server.token, "url": server.url}])
    page = context.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    answer = page.goto(f"{server.url}/reports/{bisection}")
    assert answer is not None
    assert answer.status == 200
    assert page.locator("h1").first.inner_text().replace("\n", " ") == summary
    assert said == []
    if scripts:
        assert page.evaluate(OVERFLOWS) == []
        assert page.evaluate(CONTRASTS) == []
    context.close()


def _retract(client: Client, world: GitHubWorld, bisection: str) -> None:
    for row in (world.comments[0]["body"], world.check_runs[0]["output"]["summary"]):
        assert "is the first bad commit (confidence 99" in row
        assert "It would be disproved by" in row
    client.retract_result(bisection, reason="the host was short of memory")
    wait_until(
        lambda: all(
            "## Retracted" in text
            for text in (world.comments[0]["body"], world.check_runs[0]["output"]["summary"])
        ),
        "the retraction is not said at GitHub",
    )
