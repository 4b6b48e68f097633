"""A running bisection whose installation is stopped, killed, or robbed of its broker's data."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from firstbad.settings import broker_socket
from service.client import Client
from tests.e2e.installation import Installation, Training, wait_until

GOOD, BAD = {"bytes": 900, "seconds": 2}, {"bytes": 1100, "seconds": 2}


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    installation = Installation(tmp_path / "home")
    yield installation
    installation.down()
    wait_until(lambda: not installation.processes(), "processes were left behind", 30)


@pytest.fixture
def training(installation: Installation, tmp_path: Path) -> Training:
    return Training(installation, tmp_path / "training")


class Running:
    """A bisection of eight commits that was started, and is caught while a trial runs."""

    def __init__(self, installation: Installation, training: Training) -> None:
        self.installation = installation
        installation.up()
        self.hashes = training.commits(*[GOOD] * 5, *[BAD] * 3)
        with self._client() as client:
            request = {"profile": "small", "good": self.hashes[0], "bad": self.hashes[-1]}
            self.id = client.create(request)["id"]
        wait_until(lambda: bool(self.training_processes()), "no trial starts")

    def _client(self) -> Client:
        server = self.installation.wait_for_server()
        return Client(server.url, server.token)

    def training_processes(self) -> list[int]:
        return [pid for pid, command in self.installation.processes().items() if "train.py" in command]

    def ends_as_if_nothing_had_happened(self) -> None:
        with self._client() as client:
            client.wait(self.id, timeout_seconds=180)
            report: dict[str, Any] = client.report(self.id, "json")
            rows = client.trials(self.id)
        assert report["finding"]["commits"] == [self.hashes[5]], report["finding"]
        counted = [row["sequence"] for row in rows if row["sequence"] is not None]
        assert sorted(counted) == list(range(len(counted)))
        keys = [(trial["state"]["commit"], trial["attempt"]) for trial in report["trials"]]
        assert len(keys) == len(set(keys))


def test_ctrl_c_leaves_no_process_and_the_next_up_resumes(
    installation: Installation, training: Training
) -> None:
    running = Running(installation, training)
    installation.down()
    wait_until(lambda: not installation.processes(), "Ctrl-C left processes behind", 10)
    installation.up()
    running.ends_as_if_nothing_had_happened()


def test_an_orphaned_broker_is_used_and_not_doubled(installation: Installation, training: Training) -> None:
    running = Running(installation, training)
    brokers = [pid for pid, command in installation.processes().items() if "valkey-server" in command]
    assert installation.process is not None
    installation.process.send_signal(signal.SIGKILL)
    installation.process.wait()
    wait_until(lambda: not running.training_processes(), "training outlived its owner", 30)
    installation.up()
    found = [pid for pid, command in installation.processes().items() if "valkey-server" in command]
    assert found == brokers
    running.ends_as_if_nothing_had_happened()


def test_a_broker_that_forgets_everything_loses_nothing(
    installation: Installation, training: Training
) -> None:
    running = Running(installation, training)
    client = redis.Redis(unix_socket_path=str(broker_socket(installation.home)))
    client.flushall()
    client.close()
    running.ends_as_if_nothing_had_happened()


def test_damaged_data_of_the_broker_is_set_aside(installation: Installation) -> None:
    damaged = installation.home / "valkey" / "appendonlydir"
    damaged.mkdir(parents=True)
    (damaged / "appendonly.aof.manifest").write_text("this is no manifest\n")
    installation.up()
    assert len(list(installation.home.glob("valkey-damaged-*"))) == 1


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_it_starts_leaves_nothing_behind(
    installation: Installation, signum: signal.Signals
) -> None:
    installation.start()
    assert installation.process is not None
    wait_until(lambda: "valkey-server" in str(installation.processes()), "no broker starts")
    installation.process.send_signal(signum)
    assert installation.process.wait(timeout=60) != 0
    wait_until(lambda: not installation.processes(), "processes were left behind", 10)


@pytest.mark.parametrize("part", ["firstbad api", "worker --queue control", "worker --queue local"])
def test_a_child_that_dies_is_started_again(
    installation: Installation, training: Training, part: str
) -> None:
    running = Running(installation, training)
    dead = installation.kill(part)
    wait_until(
        lambda: any(part in command and pid != dead for pid, command in installation.processes().items()),
        f"{part} was not started again",
    )
    running.ends_as_if_nothing_had_happened()


def test_a_frozen_worker_that_thaws_does_not_count_twice(
    installation: Installation, training: Training
) -> None:
    running = Running(installation, training)
    frozen = installation.kill("worker --queue local", signal.SIGSTOP)
    try:
        running.ends_as_if_nothing_had_happened()
    finally:
        os.kill(frozen, signal.SIGCONT)
    running.ends_as_if_nothing_had_happened()
