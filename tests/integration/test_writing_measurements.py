"""A measurement that cannot be written yet, and beats that go wrong once."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from sqlalchemy.exc import DBAPIError

from bisection.adapters.storage import database as database_module
from bisection.measurement import Measurement, Outcome
from tests.integration.two_hosts import Hosts, history
from workers import pool
from workers.pulse import Pulse
from workers.trial_run import TrialResult


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hosts:
    monkeypatch.setattr(database_module, "_BUSY_SECONDS", 0.1)
    monkeypatch.setattr(pool, "WRITE_AGAIN_SECONDS", 0.1)
    hosts = Hosts(tmp_path)
    hashes = history(hosts.scene)
    hosts.create(hashes[0], hashes[-1])
    return hosts


def test_a_measurement_waits_for_a_database_that_is_away(hosts: Hosts, tmp_path: Path) -> None:
    claim = hosts.worker.claims.claim("local", "w")
    assert claim is not None
    result = TrialResult(measurement=Measurement(outcome=Outcome.COMPLETED, state=claim.trial.state))
    other = database_module.Database(f"sqlite:///{tmp_path}/firstbad.sqlite")
    leaving = threading.Event()
    with other.write():  # locks it
        leaving.set()
        with pytest.raises(DBAPIError, match="locked"):  # no reason to wait for longer than the worker
            pool._write(hosts.worker, claim, result, leaving)
        leaving.clear()
        written: list[bool] = []
        writer = threading.Thread(
            target=lambda: written.append(pool._write(hosts.worker, claim, result, leaving))
        )
        writer.start()
        writer.join(timeout=1)
        assert writer.is_alive()
    writer.join(timeout=30)
    assert written == [True]
    assert pool._write(hosts.worker, claim, result, leaving) is False  # its answer was lost: it counts once
    other.close()


def test_a_beat_goes_on_whatever_went_wrong_with_one() -> None:
    beats: list[int] = []
    twice = threading.Event()

    def beat() -> None:
        beats.append(len(beats))
        if len(beats) == 1:
            raise RuntimeError("once")
        twice.set()

    pulse = Pulse("test", 0.01, beat)
    pulse.start()
    try:
        assert twice.wait(timeout=30)
    finally:
        pulse.stop()
