"""What Prometheus scrapes: GET /metrics, with a token of the scope read.

Everything comes from the database, which all workers write to: one scrape of the API tells of the whole
installation, and no worker needs a port. What is there now is read anew at each scrape. What happened is
counted from the events since this process started, as counters are.

Labels are few, and their values come from us or from the catalogue, never from a request.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from enum import StrEnum
from itertools import accumulate
from pathlib import Path

from fastapi import APIRouter, Response
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from bisection.adapters.storage.announcements import AnnouncementStatus
from bisection.adapters.storage.bisections import Status
from bisection.adapters.storage.census import Census
from bisection.adapters.storage.database import Database
from bisection.adapters.storage.deliveries import DeliveryStatus
from bisection.adapters.storage.pools import Pools
from bisection.adapters.storage.roster import Roster
from bisection.measurement import Outcome
from service.access import Reader

#: A trial takes from seconds (it does not import) to hours (a build and a slow step).
BUCKETS_SECONDS = (10, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400)


class Meter(Collector):
    """Reads an installation's numbers when it is asked for them."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._census = Census(database)
        self._lock = threading.Lock()
        self._last: int | None = None  #: the event up to which is counted; None: nothing was counted yet
        self._ended: Counter[str] = Counter()
        self._started: Counter[bool] = Counter()
        self._taken_over = 0
        self._buckets: Counter[float] = Counter()
        self._seconds = 0.0

    def collect(self) -> Iterator[Metric]:
        yield from self._present()
        yield from self._happened()

    def _present(self) -> Iterator[Metric]:
        census = self._census
        yield _gauge("bisections", "Bisections by status.", "status", census.bisections(), Status)
        yield _gauge(
            "deliveries", "CI deliveries by what was decided.", "status", census.deliveries(), DeliveryStatus
        )
        yield _gauge(
            "announcements", "Results to be told, by status.", "status", census.announcements(),
            AnnouncementStatus,
        )  # fmt: skip
        yield GaugeMetricFamily(
            "firstbad_announcement_overdue_seconds",
            "Since when the oldest announcement of an ended bisection waits; 0: none does.",
            census.overdue_announcement_seconds(),
        )
        yield GaugeMetricFamily(
            "firstbad_leases_expired",
            "Running trials whose worker is not heard of, and that nobody took back yet.",
            census.expired_leases(),
        )
        loads = Pools(self._database).loads()
        alive = Counter(row.queue for row in Roster(self._database).alive())
        queues = sorted({*loads, *alive})
        yield _by_queue("trials_queued", "Trials that wait for a worker.", queues,
                        {queue: load.queued for queue, load in loads.items()})  # fmt: skip
        yield _by_queue("trials_running", "Trials that a worker has.", queues,
                        {queue: load.running for queue, load in loads.items()})  # fmt: skip
        yield _by_queue(
            "trial_oldest_wait_seconds", "How long the trial that waits longest has waited.", queues,
            {name: max(0.0, time.time() - load.oldest_queued)
             for name, load in loads.items() if load.oldest_queued},
        )  # fmt: skip
        yield _by_queue("workers", "Workers that were seen within the last half minute.", queues, alive)
        yield GaugeMetricFamily(
            "firstbad_database_bytes", "What the database takes on its disk.", census.database_bytes()
        )
        free = self._free_bytes()
        if free is not None:
            yield GaugeMetricFamily("firstbad_database_free_bytes", "Free beside the SQLite file.", free)

    def _happened(self) -> Iterator[Metric]:
        with self._lock:
            self._count()
            ended = CounterMetricFamily(
                "firstbad_trials_ended", "Trials that ended, by outcome.", labels=["outcome"]
            )
            for outcome in Outcome:
                ended.add_metric([outcome.value], self._ended[outcome.value])
            yield ended
            yield CounterMetricFamily(
                "firstbad_trials_started", "Trials that a worker claimed.", self._started.total()
            )
            yield CounterMetricFamily(
                "firstbad_trials_started_again",
                "Of these, claims after one that came to nothing: its worker went away, or handed it back.",
                self._started[True],
            )
            yield CounterMetricFamily(
                "firstbad_trials_taken_over", "Trials that another bisection had measured.", self._taken_over
            )
            counts = accumulate(self._buckets[limit] for limit in (*BUCKETS_SECONDS, float("inf")))
            limits = [*(f"{limit}.0" for limit in BUCKETS_SECONDS), "+Inf"]
            yield HistogramMetricFamily(
                "firstbad_trial_seconds", "Wall time of the trials that ended.",
                buckets=list(zip(limits, counts, strict=True)), sum_value=self._seconds,
            )  # fmt: skip

    def _count(self) -> None:
        if self._last is None:
            self._last = self._census.newest_event()
        for happening in self._census.since(self._last):
            self._last = happening.id
            if happening.kind == "trial_started":
                self._started[happening.payload.get("claim", 1) > 1] += 1
            elif happening.kind == "trial_taken_over":
                self._taken_over += 1
            else:
                seconds = float(happening.payload["seconds"])
                self._ended[happening.payload["outcome"]] += 1
                self._seconds += seconds
                self._buckets[
                    next((limit for limit in BUCKETS_SECONDS if seconds <= limit), float("inf"))
                ] += 1

    def _free_bytes(self) -> int | None:
        url = self._database.url
        if url.get_backend_name() != "sqlite" or not url.database:
            return None
        return shutil.disk_usage(Path(url.database).absolute().parent).free


def _gauge(
    name: str, text: str, label: str, values: Mapping[str, float], known: type[StrEnum]
) -> GaugeMetricFamily:
    """One sample for each member: what there is none of is 0, so that its series does not vanish."""
    family = GaugeMetricFamily(f"firstbad_{name}", text, labels=[label])
    for member in known:
        family.add_metric([member.value], values.get(member.value, 0))
    return family


def _by_queue(name: str, text: str, queues: list[str], values: Mapping[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"firstbad_{name}", text, labels=["queue"])
    for queue in queues:
        family.add_metric([queue], values.get(queue, 0))
    return family


def metrics_router(database: Database) -> APIRouter:
    """The endpoint. It is no part of the described API: its format is Prometheus' own."""
    router = APIRouter(include_in_schema=False)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Meter(database))

    @router.get("/metrics", response_class=Response)
    def metrics(_caller: Reader) -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    return router
