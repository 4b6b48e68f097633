"""GET /metrics tells Prometheus what the installation holds and what happened in it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import update

from bisection.adapters.storage.claims import Claims
from bisection.adapters.storage.database import Database
from bisection.adapters.storage.schema import events, trials
from bisection.adapters.storage.tokens import Scope
from bisection.measurement import Measurement, Outcome
from tests.integration.test_service_registry import queue_two
from tests.unit.service.scene import ServiceScene


@pytest.fixture
def scene(tmp_path: Path, database_url: str) -> Iterator[ServiceScene]:
    with ServiceScene(tmp_path, database_url=database_url) as scene:
        yield scene


def scrape(scene: ServiceScene) -> dict[str, float]:
    """Samples by name and labels, as Prometheus' own parser reads them."""
    answer = scene.client.get("/metrics")
    assert answer.status_code == 200, answer.text
    return {
        sample.name
        + "".join(f"{{{label}={value}}}" for label, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def settle_events(database: Database) -> None:
    """As if what happened had happened some seconds ago."""
    with database.write() as connection:
        connection.execute(update(events).values(at="2026-01-01T00:00:00.000000+00:00"))


def test_what_is_there_is_told_at_every_scrape(scene: ServiceScene) -> None:
    empty = scrape(scene)
    assert empty["firstbad_bisections{status=running}"] == 0
    assert empty["firstbad_database_bytes"] > 10_000
    queue_two(scene)
    claim = Claims(scene.database).claim("pool", "w1")
    assert claim is not None
    with scene.database.write() as connection:
        waiting = trials.c.id != claim.trial_id
        connection.execute(update(trials).where(waiting).values(queued_at=time.time() - 500))
    told = scrape(scene)
    assert told["firstbad_bisections{status=running}"] == 1
    assert told["firstbad_trials_queued{queue=pool}"] == 1
    assert told["firstbad_trials_running{queue=pool}"] == 1
    assert told["firstbad_workers{queue=pool}"] == 2
    assert 500 <= told["firstbad_trial_oldest_wait_seconds{queue=pool}"] < 600
    assert told["firstbad_leases_expired"] == 0
    with scene.database.write() as connection:
        connection.execute(update(trials).where(trials.c.id == claim.trial_id).values(lease_until=1.0))
    assert scrape(scene)["firstbad_leases_expired"] == 1


def test_what_happens_is_counted_from_the_first_scrape_on(scene: ServiceScene) -> None:
    queue_two(scene)
    assert scrape(scene)["firstbad_trials_started_total"] == 0
    claims = Claims(scene.database)
    first = claims.claim("pool", "w1")
    assert first is not None
    claims.hand_back(first)
    for worker in ("w1", "w2"):
        claim = claims.claim("pool", worker)
        assert claim is not None
        lost = Measurement(outcome=Outcome.CRASHED, state=claim.trial.state, seconds=90.0)
        assert claims.complete(claim, lost, {})
    assert (
        scrape(scene)["firstbad_trials_started_total"] == 0
    )  # not settled yet: others may still be on their way
    settle_events(scene.database)
    counted = scrape(scene)
    assert counted["firstbad_trials_started_total"] == 3
    assert counted["firstbad_trials_started_again_total"] == 1
    assert counted["firstbad_trials_ended_total{outcome=crashed}"] == 2
    assert counted["firstbad_trials_ended_total{outcome=completed}"] == 0
    assert counted["firstbad_trial_seconds_bucket{le=60.0}"] == 0
    assert counted["firstbad_trial_seconds_bucket{le=120.0}"] == counted["firstbad_trial_seconds_count"] == 2
    assert counted["firstbad_trial_seconds_sum"] == 180
    assert scrape(scene) == pytest.approx(counted, rel=0.2)


def test_a_scrape_needs_a_token_that_may_read(scene: ServiceScene) -> None:
    assert scene.anonymous.get("/metrics").status_code == 401
    assert scene.client_with(scene.tokens[Scope.APPROVE]).get("/metrics").status_code == 403
    assert scene.client_with(scene.tokens[Scope.READ]).get("/metrics").status_code == 200
