"""The demo on real Megatron Bridge: undisturbed, and while its parts are killed one after another."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from firstbad.demo import SCENARIOS
from service.client import Client
from tests.e2e.installation import Installation, wait_until

SCENARIO, SEED = "experts", 6
UNSEEN_SEEDS = range(100, 120)
#: Two dozen trials on a busy machine.
DEMO_SECONDS = 1500.0


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A new home that shares only the training environment with other tests."""
    shared = os.environ.get("FIRSTBAD_TEST_HOME")
    if not shared:
        pytest.skip("the training environment is missing; `make test` makes it")
    home = tmp_path / "home"
    home.mkdir()
    (home / "environments").symlink_to(Path(shared) / "environments")
    return home


@pytest.fixture
def installation(home: Path) -> Iterator[Installation]:
    installation = Installation(home)
    yield installation
    installation.down()
    wait_until(lambda: not installation.processes(), "processes were left behind", 30)


def demo(installation: Installation, scenario: str, seed: int) -> dict[str, Any]:
    done = installation.firstbad("demo", "--scenario", scenario, "--seed", str(seed), "--json")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def report_of(result: dict[str, Any]) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(Path(result["report"]).read_text())
    return report


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, Any]:
    """Filled by the first test, so that the second can be compared with it."""
    return {}


def test_the_planted_culprit_is_found_explained_and_reported(
    installation: Installation, undisturbed: dict[str, Any]
) -> None:
    result = demo(installation, SCENARIO, SEED)
    report = report_of(result)
    assert report["finding"]["commits"] == [result["planted"]]
    assert report["regression"]["component"] == "experts"
    assert report["simulated"] is True
    assert report["way_back"]
    assert Path(result["html"]).read_text().startswith("<!doctype html>")
    undisturbed.update(report)


def training_processes(installation: Installation) -> list[int]:
    return [pid for pid, command in installation.processes().items() if "firstbad_probe" in command]


def wait_for_training(installation: Installation) -> None:
    wait_until(lambda: bool(training_processes(installation)), "no training starts", 300)
    time.sleep(3)  # well inside of it


def test_killed_parts_change_nothing_in_the_answer(
    installation: Installation, undisturbed: dict[str, Any]
) -> None:
    installation.up()
    client = subprocess.Popen(
        [sys.executable, "-m", "firstbad", "demo", "--scenario", SCENARIO, "--seed", str(SEED), "--json"],
        env=installation.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    for part in ("worker --queue local", "firstbad api", "valkey-server"):
        wait_for_training(installation)
        installation.kill(part)
    wait_for_training(installation)
    assert installation.process is not None
    # Now everything at once: the parent, and with it whoever follows it.
    installation.process.send_signal(signal.SIGKILL)
    installation.process.wait()
    wait_until(lambda: not training_processes(installation), "training outlived its owner", 30)
    installation.up()
    output, _ = client.communicate(timeout=DEMO_SECONDS)
    assert client.returncode == 0, output[-4000:]
    result = json.loads(output)
    report = report_of(result)
    if undisturbed:
        assert report["finding"]["commits"] == undisturbed["finding"]["commits"]
        assert report["regression"]["component"] == undisturbed["regression"]["component"]
    keys = [(trial["state"]["commit"], trial["attempt"]) for trial in report["trials"]]
    assert len(keys) == len(set(keys)), "a trial was counted twice"
    server = installation.wait_for_server()
    with Client(server.url, server.token) as api:
        sequences = [
            row["sequence"] for row in api.trials(result["bisection"]) if row["sequence"] is not None
        ]
    assert sorted(sequences) == list(range(len(sequences)))
    assert not training_processes(installation)


@pytest.mark.long
@pytest.mark.parametrize("scenario", tuple(SCENARIOS))
def test_every_scenario_gives_the_right_answer(installation: Installation, scenario: str) -> None:
    assert demo(installation, scenario, SEED)["problems"] == []


@pytest.mark.long
@pytest.mark.parametrize("seed", UNSEEN_SEEDS)
def test_seeds_that_nobody_looked_at_give_the_right_answer(installation: Installation, seed: int) -> None:
    scenario = tuple(SCENARIOS)[seed % len(SCENARIOS)]
    assert demo(installation, scenario, seed)["problems"] == []
