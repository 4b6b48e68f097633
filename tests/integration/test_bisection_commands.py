"""`firstbad retry`, `extend`, `replay`, `approve` and the others, against a service that runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from bisection.adapters.storage.bisections import Status
from bisection.adapters.storage.tokens import Scope
from firstbad.command_line import app
from tests.integration.test_service_derived import ended, held
from tests.integration.test_service_live import serve
from tests.unit.service.scene import BAD, GOOD, ServiceScene

Run = Callable[..., Result]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[ServiceScene]:
    with ServiceScene(tmp_path) as scene:
        yield scene


@pytest.fixture
def run(scene: ServiceScene) -> Iterator[Run]:
    with serve(scene) as url:

        def call(*words: str, scope: Scope | None = None) -> Result:
            token = scene.tokens[scope] if scope else scene.token
            return CliRunner(env={"FIRSTBAD_URL": url, "FIRSTBAD_TOKEN": token}).invoke(app, words)

        yield call


def test_a_replay_shows_what_is_missing_and_is_made_a_bisection_when_asked(
    scene: ServiceScene, run: Run
) -> None:
    first = ended(scene)
    shown = run("replay", first, "--capacity", "160GiB")
    assert shown.exit_code == 0, shown.output
    assert "No answer yet." in shown.output
    assert "would be started next:" in shown.output
    made = run("replay", first, "--capacity", "160GiB", "--start", "--no-wait", "--json")
    row = json.loads(made.stdout)
    assert row["request"]["criterion"] == {
        "kind": "out_of_memory", "capacity_bytes": 160 * 2**30, "threshold": None, "signature": "",
    }  # fmt: skip
    assert row["request"]["ancestor"] == {"bisection": first, "derivation": "replay"}
    slow = run("replay", first, "--kind", "throughput", "--threshold", "1500.5", "--json")
    (changed,) = json.loads(slow.stdout)["changed"]
    assert (changed["before"], changed["after"]) == ("bad", "skip")
    assert "say what changes" in run("replay", first).stderr
    assert run("replay", first, "--kind", "peak_memory", "--threshold", "much").exit_code != 0


def test_a_retry_and_an_extension_are_asked_for(scene: ServiceScene, run: Run) -> None:
    first = ended(scene)
    again = json.loads(run("retry", first, "--anew", "--no-wait", "--json").stdout)
    assert again["request"]["ancestor"] == {"bisection": first, "derivation": "anew"}
    longer = json.loads(run("extend", first, "--good", "v0.1", "--no-wait", "--json").stdout)
    assert (longer["request"]["good"], longer["request"]["bad"]) == ("v0.1", BAD)
    assert longer["request"]["good"] != GOOD
    assert "name the end that moves" in run("extend", first).stderr


def test_a_held_bisection_is_approved_by_whoever_may(scene: ServiceScene, run: Run) -> None:
    bisection_id = held(scene)
    refused = run("approve", bisection_id)
    assert refused.exit_code != 0
    assert run("approve", bisection_id, "--reason", "now", scope=Scope.APPROVE).exit_code == 0
    row = scene.bisections.get(bisection_id)
    assert (row.status, (row.approval or {})["reason"]) == (Status.RUNNING, "now")
    other = held(scene)
    assert run("refuse", other, "--reason", "later", scope=Scope.APPROVE).exit_code == 0
    assert (scene.bisections.get(other).approval or {})["decision"] == "refused"


def test_a_result_is_retracted(scene: ServiceScene, run: Run) -> None:
    first = ended(scene)
    assert run("retract-result", first, "--reason", "a throttled node").exit_code == 0
    assert (scene.bisections.get(first).retraction or {})["reason"] == "a throttled node"
