"""What the queue takes: thousands of trials over several worker processes, without the training.

usage: python -m benchmarks.queue_scale [--json] [--database sqlite|postgresql] [--trials 5000] [--workers 8]

Database, Valkey, Celery and the worker processes are real, with their leases, beats and hints; only what a
trial does is left out: it ends at once, with the measurement and the log of an ordinary one. No search runs
behind it, so the hints for the control worker are sent and not taken. The figures:

- trials_per_second: all trials are queued at the start, and as many workers as there are empty the queue;
- gap_p50_ms, gap_p99_ms: from the end of a worker's trial to the start of its next one, under that load;
- start_p50_ms, start_p99_ms: from the moment at which a trial is queued to its start, when trials come at the
  given rate and workers are free;
- beats_per_second: heartbeats of running trials, by as many processes as there are workers. A worker makes
  0.2 a second while it has a trial, and 0.1 more to show that it lives;
- bytes_per_trial, database_bytes: what the database has grown by, with its indexes and events.

Every process runs on this machine, the database and the load too.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from itertools import groupby, pairwise
from pathlib import Path
from statistics import quantiles
from typing import Any

from sqlalchemy import func, insert, select, text

from bisection.adapters.queue import Queue, make_celery
from bisection.adapters.storage.claims import Claim, Claims
from bisection.adapters.storage.database import Database, now
from bisection.adapters.storage.roster import Roster
from bisection.adapters.storage.schema import bisections, trials
from bisection.adapters.storage.trials import TrialStatus
from bisection.commits import State
from bisection.ledger import Purpose, Trial
from bisection.measurement import Measurement, Outcome, Step
from firstbad import broker
from firstbad.bootstrap import worker_context
from firstbad.settings import Settings, read_settings
from tests.postgresql import PostgreSQL
from workers.application import run_worker
from workers.context import WorkerContext
from workers.pulse import Lease
from workers.trial_run import TrialResult

POOL = "pool"
TRIALS_OF_A_BISECTION = 20
#: A trial's artifacts are its log and its configuration; this is about what the demo's compress to.
_LOG = secrets.token_bytes(20_000)


def stub(_context: WorkerContext, claim: Claim, _lease: Lease, _leaving: threading.Event) -> TrialResult:
    """The result of a trial of a hundred steps, at once."""
    step = Step(step=1, peak_bytes=60 * 2**30, retained_bytes=9 * 2**30, seconds=1.5, loss_tokens=4096,
                image_tokens=1024, padding_tokens=0)  # fmt: skip
    measurement = Measurement(
        outcome=Outcome.COMPLETED, state=claim.trial.state, steps=(step,) * 100, seconds=0.0
    )
    return TrialResult(measurement=measurement, artifacts={"log.txt": _LOG})


def serve(settings: Settings, number: int, log: Path) -> None:
    os.setsid()
    with log.open("ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    run_worker(make_celery(settings.broker_url), worker_context(settings, POOL, f"w{number}"), stub)


def queue_trials(database: Database, count: int) -> list[str]:
    """Ids of so many new trials of bisections that nobody advances."""
    made = []
    for first in range(0, count, TRIALS_OF_A_BISECTION):
        bisection = secrets.token_hex(8)
        rows: list[dict[str, Any]] = []
        for ordinal in range(min(TRIALS_OF_A_BISECTION, count - first)):
            trial = Trial(state=State(commit=secrets.token_hex(20)), attempt=1, purpose=Purpose.SEARCH)
            rows.append(
                {
                    "id": secrets.token_hex(8), "bisection_id": bisection, "key": trial.key,
                    "ordinal": ordinal, "trial": trial.to_json(), "queue": POOL,
                    "status": TrialStatus.QUEUED.value,
                    "created_at": now(), "queued_at": time.time(), "claim": 0, "progress": "",
                }
            )  # fmt: skip
        with database.write() as connection:
            connection.execute(
                insert(bisections).values(
                    id=bisection, created_at=now(), updated_at=now(), status="ended", version=0, request={},
                    profile={}, source="benchmark", request_digest="",
                )
            )  # fmt: skip
            connection.execute(insert(trials), rows)
        made += [row["id"] for row in rows]
    return made


def _wait_for(happens: Callable[[], bool], seconds: float, complaint: str) -> None:
    deadline = time.monotonic() + seconds
    while not happens():
        if time.monotonic() > deadline:
            raise SystemExit(complaint)
        time.sleep(0.2)


def _left(database: Database) -> int:
    query = select(func.count()).select_from(trials).where(trials.c.status != TrialStatus.DONE.value)
    with database.read() as connection:
        return int(connection.execute(query).scalar_one())


def _database_bytes(database: Database) -> int:
    sqlite = database.url.get_backend_name() == "sqlite"
    query = (
        "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"
        if sqlite
        else "SELECT pg_database_size(current_database())"
    )
    with database.read() as connection:
        return int(connection.execute(text(query)).scalar_one())


def _moment(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp()


def _p50_p99_ms(seconds: list[float]) -> tuple[float, float]:
    cuts = quantiles(seconds, n=100)
    return round(cuts[49] * 1000, 1), round(cuts[98] * 1000, 1)


@contextmanager
def workers_of(settings: Settings, count: int) -> Iterator[None]:
    fork = multiprocessing.get_context("fork")
    log = settings.home / "workers.log"
    processes = [fork.Process(target=serve, args=(settings, number, log)) for number in range(count)]
    for process in processes:
        process.start()
    try:
        roster = Roster(database := Database(settings.database_url))
        _wait_for(lambda: len(roster.alive(POOL)) == count, 120, f"the workers do not start; see {log}")
        yield
        database.close()
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join(30)


def empty_the_queue(database: Database, queue: Queue, count: int, workers: int) -> dict[str, float]:
    before = _database_bytes(database)
    made = set(queue_trials(database, count))
    for _ in range(workers):  # each worker passes the hint on, as long as there is something to do
        queue.work(POOL)
    _wait_for(lambda: not _left(database), 1800, "the trials do not end")
    with database.read() as connection:
        query = select(trials.c.id, trials.c.worker, trials.c.started_at, trials.c.ended_at, trials.c.claim)
        rows = [row for row in connection.execute(query) if row.id in made]
    if len(rows) != count or any(row.claim != 1 for row in rows):
        raise SystemExit("a trial was lost, or run twice")
    rows.sort(key=lambda row: (row.worker, row.started_at))
    gaps = [
        _moment(after.started_at) - _moment(earlier.ended_at)
        for _, own in groupby(rows, key=lambda row: row.worker)
        for earlier, after in pairwise(own)
    ]
    seconds = max(_moment(row.ended_at) for row in rows) - min(_moment(row.started_at) for row in rows)
    grown = _database_bytes(database) - before
    p50, p99 = _p50_p99_ms(gaps)
    return {
        "trials_per_second": round(count / seconds, 1),
        "gap_p50_ms": p50,
        "gap_p99_ms": p99,
        "bytes_per_trial": round(grown / count),
        "database_bytes": _database_bytes(database),
    }


def start_delays(database: Database, queue: Queue, rate: float, seconds: float) -> dict[str, float]:
    made = []
    start = time.monotonic()
    for number in range(int(rate * seconds)):
        time.sleep(max(0.0, start + number / rate - time.monotonic()))
        made += queue_trials(database, 1)
        queue.work(POOL)
    _wait_for(lambda: not _left(database), 120, "the trials do not end")
    with database.read() as connection:
        query = select(trials.c.started_at, trials.c.queued_at).where(trials.c.id.in_(made))
        p50, p99 = _p50_p99_ms([_moment(row.started_at) - row.queued_at for row in connection.execute(query)])
    return {"start_p50_ms": p50, "start_p99_ms": p99}


def _beat(url: str, number: int, seconds: float, count: Any) -> None:
    database = Database(url)
    claims = Claims(database)
    claim = claims.claim(POOL, f"beating-{number}")
    if claim is None:
        raise SystemExit("there is no trial to beat for")
    deadline = time.monotonic() + seconds
    beats = 0
    while time.monotonic() < deadline:
        claims.beat(claim)
        beats += 1
    with count.get_lock():
        count.value += beats
    database.close()


def beats(database: Database, workers: int, seconds: float) -> dict[str, float]:
    queue_trials(database, workers)
    fork = multiprocessing.get_context("fork")
    count = fork.Value("q", 0)
    url = database.url.render_as_string(hide_password=False)
    processes = [fork.Process(target=_beat, args=(url, n, seconds, count)) for n in range(workers)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return {"beats_per_second": round(count.value / seconds)}


def measure(database_url: str, arguments: argparse.Namespace) -> dict[str, float]:
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="firstbad-queue-"))) / "home"
        environment = {"FIRSTBAD_HOME": str(home)}
        if database_url:
            environment["FIRSTBAD_DATABASE_URL"] = database_url
        settings = read_settings(environment)
        log = stack.enter_context((home.parent / "valkey.log").open("ab"))
        server: subprocess.Popen[bytes] = broker.start(
            home / "valkey", Path(settings.broker_url.removeprefix("redis+socket://")), log
        )
        stack.callback(server.wait)
        stack.callback(server.terminate)
        database = Database(settings.database_url)
        database.migrate()
        stack.callback(database.close)
        queue = Queue(make_celery(settings.broker_url))
        with workers_of(settings, arguments.workers):
            figures = empty_the_queue(database, queue, arguments.trials, arguments.workers)
            figures |= start_delays(database, queue, arguments.rate, arguments.seconds)
        return figures | beats(database, arguments.workers, arguments.seconds)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--database", choices=("sqlite", "postgresql"), help="only this one")
    parser.add_argument("--trials", type=int, default=5000)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--rate", type=float, default=5.0, help="trials a second, of the steady load")
    parser.add_argument("--seconds", type=float, default=20.0, help="of the steady load, and of the beats")
    arguments = parser.parse_args()
    result: dict[str, dict[str, float]] = {}
    if arguments.database in (None, "sqlite"):
        result["sqlite"] = measure("", arguments)
    if arguments.database in (None, "postgresql"):
        with ExitStack() as stack:
            try:
                server = PostgreSQL()
            except FileNotFoundError as error:
                sys.exit(f"{error}: install it, or measure with --database sqlite")
            stack.callback(server.close)
            result["postgresql"] = measure(server.new_database(), arguments)
    if arguments.json:
        print(json.dumps({"host_cores": os.cpu_count(), **result}))
        return
    for name, figures in result.items():
        print(name)
        for figure, value in figures.items():
            print(f"  {figure:20}{value:>14}")


if __name__ == "__main__":
    main()
