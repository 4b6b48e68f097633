"""How fast the service answers, and how soon a free worker has its next trial, on SQLite and on PostgreSQL.

usage: python -m benchmarks.service [--json] [--database sqlite|postgresql] [--seconds 5]

All of it is real: `firstbad up` with its API, its broker and its workers as processes on this machine, HTTP
on loopback, a repository in git, trials that run a small script. The figures:

- reads_per_second, read_p99_ms: GET of one bisection, by four connections that never pause;
- versus_bare_fastapi: the same load on an endpoint of a bare FastAPI application that sends the same bytes,
  served by the same uvicorn, in turns with ours: our reads a second over its;
- webhook_p99_ms: signed deliveries at 50 a second for the given seconds, each timed from the moment at which
  it was due;
- list_1000_ms: a thousand open bisections on one page, the median of twenty;
- next_trial_delay_p50_ms: from the end of a trial to the start of the next one of the same bisection, with
  one worker.

The load is made on the same cores, so the figures are of a machine that is busy with both sides.
"""

from __future__ import annotations

import argparse
import hashlib
import hmac
import http.client
import json
import multiprocessing
import os
import secrets
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from urllib.parse import urlsplit

import uvicorn
from fastapi import FastAPI, Response
from sqlalchemy import insert, select

from bisection.adapters.storage.database import Database
from bisection.adapters.storage.schema import bisections
from bisection.adapters.storage.tokens import Scope, Tokens
from service.client import Client
from tests.e2e.installation import Installation, Training, wait_until
from tests.postgresql import PostgreSQL
from tests.unit.service.scene import run_payload

OPEN, LISTED, CONNECTIONS = 1000, 20, 4
WEBHOOKS_PER_SECOND, SENDERS = 50, 10
SECRET = b"a secret that the benchmark shares"
GITHUB = "example-org/training"
#: A token may make 500 requests at once; each connection changes its token before that.
_READS_PER_TOKEN = 400
#: A workflow_run's payload at GitHub is about so long.
_PAYLOAD_BYTES = 20_000


class Load:
    """One connection that is kept open."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)

    def send(self, method: str, path: str, headers: dict[str, str], body: bytes | None = None) -> bytes:
        self._connection.request(method, path, body, headers)
        answer = self._connection.getresponse()
        content = answer.read()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path} answered {answer.status}: {content[:300]!r}")
        return content

    def close(self) -> None:
        self._connection.close()


def hammer(url: str, path: str, tokens: list[str], seconds: float) -> tuple[float, list[float]]:
    """Reads a second by all connections, and how long each read took (seconds)."""
    durations: list[list[float]] = [[] for _ in range(CONNECTIONS)]
    started = time.perf_counter()

    def read(number: int) -> None:
        load, taken = Load(url), durations[number]
        own = tokens[number::CONNECTIONS]
        while time.perf_counter() < started + seconds:
            token = own[len(taken) // _READS_PER_TOKEN % len(own)]
            before = time.perf_counter()
            load.send("GET", path, {"Authorization": f"Bearer {token}"})
            taken.append(time.perf_counter() - before)
        load.close()

    _in_threads(read, CONNECTIONS)
    elapsed = time.perf_counter() - started
    every = [duration for taken in durations for duration in taken]
    return len(every) / elapsed, every


def _in_threads(work: Callable[[int], None], count: int) -> None:
    faults: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]


def _serve_bare(listener: socket.socket, content: bytes) -> None:
    os.setsid()  # as our server has: Linux shares the processor out among sessions
    app = FastAPI()

    @app.get("/v1/bisections/{bisection_id}")
    def read(bisection_id: str) -> Response:
        assert bisection_id
        return Response(content, media_type="application/json")

    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])


@contextmanager
def bare(content: bytes) -> Iterator[str]:
    """The URL of a bare FastAPI application in a process of its own."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as our server's
    process = multiprocessing.get_context("fork").Process(
        target=_serve_bare, args=(listener, content), daemon=True
    )
    process.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        process.terminate()
        process.join()
        listener.close()


def measure_reads(url: str, bisection_id: str, tokens: list[str], seconds: float) -> dict[str, float]:
    path = f"/v1/bisections/{bisection_id}"
    content = Load(url).send("GET", path, {"Authorization": f"Bearer {tokens[0]}"})
    ours: list[tuple[float, list[float]]] = []
    theirs: list[float] = []
    with bare(content) as bare_url:
        hammer(bare_url, path, tokens, 0.5)
        hammer(url, path, tokens, 0.5)
        for _ in range(2):  # in turns, so that what else the machine does meets both
            theirs.append(hammer(bare_url, path, tokens, seconds / 2)[0])
            ours.append(hammer(url, path, tokens, seconds / 2))
    durations = [duration for _, taken in ours for duration in taken]
    rate = sum(rate for rate, _ in ours) / len(ours)
    return {
        "reads_per_second": round(rate, 1),
        "read_p99_ms": _p99_ms(durations),
        "versus_bare_fastapi": round(rate / (sum(theirs) / len(theirs)), 3),
    }


def measure_webhooks(url: str, seconds: float) -> float:
    """The 99th percentile in ms of deliveries that come at an even pace, whatever the answers take."""
    count = int(WEBHOOKS_PER_SECOND * seconds)
    started = time.perf_counter() + 0.2
    durations: list[float] = []

    def deliver(number: int) -> None:
        load = Load(url)
        for index in range(number, count, SENDERS):
            due = started + index / WEBHOOKS_PER_SECOND
            body, headers = _delivery(index)
            time.sleep(max(0.0, due - time.perf_counter()))
            load.send("POST", "/v1/webhooks/github", headers, body)
            durations.append(time.perf_counter() - due)
        load.close()

    _in_threads(deliver, SENDERS)
    return _p99_ms(durations)


def _delivery(index: int) -> tuple[bytes, dict[str, str]]:
    payload = run_payload(
        run_id=1000 + index,
        conclusion="success" if index % 2 else "failure",
        head_sha=f"{index:040x}",
        repository=GITHUB,
        head_repository=GITHUB,
    )
    body = json.dumps({**payload, "padding": "x" * _PAYLOAD_BYTES}).encode()
    return body, {
        "Content-Type": "application/json",
        "X-GitHub-Event": "workflow_run",
        "X-GitHub-Delivery": secrets.token_hex(16),
        "X-Hub-Signature-256": f"sha256={hmac.new(SECRET, body, hashlib.sha256).hexdigest()}",
    }


def measure_list(url: str, token: str) -> float:
    """The median in ms of a page with a thousand open bisections."""
    load, durations = Load(url), []
    for _ in range(LISTED):
        before = time.perf_counter()
        content = load.send(
            "GET", f"/v1/bisections?status=planned&limit={OPEN}", {"Authorization": f"Bearer {token}"}
        )
        durations.append(time.perf_counter() - before)
    assert len(json.loads(content)["items"]) == OPEN
    return round(median(durations) * 1000, 1)


def measure_delays(client: Client, training: Training) -> tuple[str, float]:
    """An ended bisection's id, and the median in ms from a trial's end to the next one's start."""
    sizes = [900] * 20 + [1100] * 12
    hashes = training.commits(*({"bytes": size} for size in sizes))
    delays: list[float] = []
    for seed in range(3):
        request = {
            "profile": "small", "good": hashes[0], "bad": hashes[-1],
            "reuse": False, "parallel": 1, "seed": seed,
        }  # fmt: skip
        made = client.create(request)["id"]
        row = client.wait(made, timeout_seconds=300, poll_seconds=2.0)
        assert row["finding"]["commits"] == [hashes[20]], row["finding"]
        trials = sorted(row["trials"], key=lambda trial: trial["started_at"])
        for before, after in pairwise(trials):
            delays.append(_moment(after["started_at"]) - _moment(before["ended_at"]))
    return made, round(median(delays) * 1000, 1)


def _moment(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp()


def _p99_ms(durations: list[float]) -> float:
    return round(quantiles(durations, n=100)[98] * 1000, 1)


def open_bisections(database: Database, ended: str) -> None:
    """A thousand more like the ended one, each waiting for its confirmation: no worker touches them."""
    with database.write() as connection:
        row = connection.execute(select(bisections).where(bisections.c.id == ended)).one()._asdict()
        new = {"status": "planned", "finding": None, "report": None, "ended_at": None}
        connection.execute(
            insert(bisections), [{**row, **new, "id": f"{number:016x}"} for number in range(1, OPEN + 1)]
        )


def measure(database_url: str, seconds: float) -> dict[str, float]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="firstbad-service-")))
        installation = Installation(folder / "home")
        if database_url:
            installation.environment["FIRSTBAD_DATABASE_URL"] = database_url
        training = Training(installation, folder / "training")
        (folder / "secret").write_bytes(SECRET)
        webhook = {
            "github": GITHUB, "workflows": ["nightly"], "branches": ["main"], "profile": "small",
            "secret_file": str(folder / "secret"),
        }  # fmt: skip
        entry = {"name": "training", "url": training.scene.url, "webhook": webhook}
        training.register("repositories", "training", entry)
        server = installation.up(workers=1)
        stack.callback(installation.down)
        database = Database(database_url or installation.settings.database_url)
        stack.callback(database.close)
        client = stack.enter_context(Client(server.url, server.token))
        ended, delay = measure_delays(client, training)
        open_bisections(database, ended)
        issue = Tokens(database).issue
        tokens = [issue(f"reader {n}", frozenset({Scope.READ})) for n in range(8 * CONNECTIONS)]
        listed = measure_list(server.url, tokens[0])
        reads = measure_reads(server.url, ended, tokens[1:], seconds)
        webhooks = measure_webhooks(server.url, seconds)
        wait_until(lambda: bool(client.workers()), "the workers are gone")
        return {
            **reads,
            "webhook_p99_ms": webhooks,
            "list_1000_ms": listed,
            "next_trial_delay_p50_ms": delay,
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--database", choices=("sqlite", "postgresql"), help="only this one")
    parser.add_argument("--seconds", type=float, default=5.0, help="of load, of each kind")
    arguments = parser.parse_args()
    result: dict[str, dict[str, float]] = {}
    if arguments.database in (None, "sqlite"):
        result["sqlite"] = measure("", arguments.seconds)
    if arguments.database in (None, "postgresql"):
        with ExitStack() as stack:
            try:
                server = PostgreSQL()
            except FileNotFoundError as error:
                sys.exit(f"{error}: install it, or measure with --database sqlite")
            stack.callback(server.close)
            result["postgresql"] = measure(server.new_database(), arguments.seconds)
    if arguments.json:
        print(json.dumps(result))
        return
    for name, figures in result.items():
        print(name)
        for figure, value in figures.items():
            print(f"  {figure:26}{value:>10}")


if __name__ == "__main__":
    main()
