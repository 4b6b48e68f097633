"""`firstbad demo`: a client of `up` like any other, that knows what the answer must be."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from bisection.rendering.terminal import render_text
from bisection.report import CulpritReport
from firstbad.demo import Nightly, check, generate, plan, write_profile
from firstbad.embedded import Server, find_running
from firstbad.settings import Settings
from firstbad.watching import watch
from service.client import Client

#: A machine with much else to do needs minutes to start some Python processes.
_START_SECONDS = 600.0
_STOP_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    """What the demo found; ``problems`` is empty if and only if the answer is the planted one."""

    bisection: str
    finding: dict[str, Any]
    component: str | None
    planted: str | None  #: hash of the culprit that was planted
    mechanism: str
    trials: int
    seconds: float
    html: Path
    report: Path
    problems: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {**self.__dict__, "html": str(self.html), "report": str(self.report)}


def demonstrate(settings: Settings, scenario: str, seed: int, workers: int, console: Console) -> DemoResult:
    """Write the repository, register it, ask for the bisection, show it, check the answer."""
    started = time.monotonic()
    folder = settings.home / "demo" / f"{scenario}-{seed}"
    nightly = _write_repository(scenario, seed, folder / "repository")
    profile = write_profile(nightly, settings.catalogue)
    say(console, f"A repository with {len(nightly.commits) + 1} commits is at {nightly.folder}")
    with _server(settings, workers, console) as server, Client(server.url, server.token) as client:
        request = {"profile": profile, "good": nightly.good, "bad": nightly.bad}
        bisection = client.create(request)["id"]
        say(console, f"Bisecting {nightly.good[:10]}..{nightly.bad[:10]} at {server.url}/reports/{bisection}")
        watch(client, bisection, console)
        document = client.report(bisection, "json")
        html = client.report(bisection, "html")
    return _conclude(nightly, bisection, document, html, folder, time.monotonic() - started, console)


def say(console: Console, text: str) -> None:
    console.print(text, markup=False, soft_wrap=True)


def _write_repository(scenario: str, seed: int, folder: Path) -> Nightly:
    """The same plan gives the same commits, so a repository of an earlier run is only made again."""
    planned = plan(scenario, seed)
    if folder.exists():
        shutil.rmtree(folder)
    return generate(planned, folder)


@contextmanager
def _server(settings: Settings, workers: int, console: Console) -> Iterator[Server]:
    """The `up` that serves this home; where none does, one that lives as long as the demo."""
    running = find_running(settings)
    if running is not None:
        yield running
        return
    command = [sys.executable, "-m", "firstbad", "up", "--workers", str(workers)]
    (settings.home / "logs").mkdir(parents=True, exist_ok=True)
    log_path = settings.home / "logs" / "up.log"
    with log_path.open("ab") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield _wait_for(settings, process, log_path)
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            say(console, f"the server (process {process.pid}) does not stop; see {log_path}")


def _wait_for(settings: Settings, process: subprocess.Popen[bytes], log: Path) -> Server:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        server = find_running(settings)
        if server is not None:
            return server
        time.sleep(0.2)
    if process.poll() is None:
        raise RuntimeError(
            f"`firstbad up` (process {process.pid}) is not ready after {_START_SECONDS:.0f} s; {log} and "
            f"the logs beside it may say why"
        )
    raise RuntimeError(f"`firstbad up` ended with exit code {process.returncode}; {log} says why")


def _conclude(
    nightly: Nightly,
    bisection: str,
    document: dict[str, Any],
    html: str,
    folder: Path,
    seconds: float,
    console: Console,
) -> DemoResult:
    html_path, json_path = folder / "report.html", folder / "report.json"
    html_path.write_text(html, encoding="utf-8")
    json_path.write_text(json.dumps(document, indent=2), encoding="utf-8")
    result = DemoResult(
        bisection=bisection,
        finding=document["finding"],
        component=(document.get("regression") or {}).get("component"),
        planted=nightly.culprit,
        mechanism=nightly.plan.mechanism,
        trials=len(document["trials"]),
        seconds=round(seconds, 1),
        html=html_path,
        report=json_path,
        problems=tuple(check(nightly, document)),
    )
    say(console, render_text(CulpritReport.from_json(document)))
    if not result.problems:
        planted = f"{nightly.culprit[:10]}, {result.mechanism}" if nightly.culprit else "nothing"
        say(console, f"Right: what was planted is {planted}.")
    say(console, f"{result.trials} trials in {result.seconds:.0f} s. The report: {html_path} and {json_path}")
    say(console, "`firstbad up` shows it, and every other bisection of this machine, in the browser.")
    return result
