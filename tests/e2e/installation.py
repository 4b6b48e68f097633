"""A real `firstbad up` in a home of its own, and a small training job that it can bisect in seconds.

The job stands for another training script than Megatron Bridge's: it writes what the
probe would. All that is ours runs unchanged: API, database, broker, workers, git,
supervisor.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from firstbad.embedded import Server, find_running
from firstbad.settings import Settings, read_settings
from service.client import Client
from tests.repository_scene import RepositoryScene

PATIENCE_SECONDS = 120.0

#: Reads what it takes from the commit's files; a capacity that is enforced refuses it.
JOB = """
import json, os, sys, time
known = {"train.micro_batch_size", "model.num_layers"}
settings = dict(word.split("=", 1) for word in sys.argv[1:])
for key in settings:
    if key not in known:
        raise SystemExit(f"the configuration has no key {key!r}")
plan = json.load(open("plan.json"))
time.sleep(plan.get("seconds", 0))
if plan.get("breaks"):
    raise RuntimeError(plan["breaks"])
size = plan["bytes"] * int(settings.get("train.micro_batch_size", "1"))
capacity = int(os.environ.get("FIRSTBAD_CAPACITY_BYTES", "0"))
refused = bool(capacity) and size > capacity
half = size // 2
row = {
    "version": 1, "rank": 0, "world_size": 1, "device": "cpu", "hardware": "cpu", "torch": "",
    "status": "out_of_memory" if refused else "completed",
    "error": {"type": "OutOfMemoryError", "message": "full", "frames": []} if refused else None,
    "invalid": [plan["invalid"]] if plan.get("invalid") else [],
    "peak": {"rank": 0, "step": 1, "phase": "backward", "instant": "experts",
             "allocated_bytes": size, "reserved_bytes": size,
             "breakdown": [{"component": "experts", "category": "activations", "bytes": half},
                           {"component": "decoder", "category": "parameters", "bytes": size - half}]},
    "steps": [{"step": n, "peak_bytes": size, "retained_bytes": 9, "seconds": 0.1, "loss_tokens": 80,
               "image_tokens": 20, "padding_tokens": 0, "patches": 80} for n in range(3)],
    "time": [], "data": {"real": True, "images": 3}, "trainable": {}, "patches": {}, "notes": [],
    "imports": {}, "instants": [],
    "oom": {"component": "experts", "phase": "backward", "requested_bytes": 1, "allocated_bytes": size,
            "reserved_bytes": size} if refused else None,
}
folder = os.environ["FIRSTBAD_PROBE_DIRECTORY"]
json.dump(row, open(os.path.join(folder, "rank-0.json"), "w"))
json.dump({"train": {"micro_batch_size": 1}}, open(os.path.join(folder, "config.json"), "w"))
sys.exit(1 if refused else 0)
"""

CAPACITY_BYTES = 1000


class Installation:
    """One home. Use `up` to start the server, `kill` to be cruel to a part of it."""

    def __init__(self, home: Path) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.environment = {**os.environ, "FIRSTBAD_HOME": str(home)}
        self.settings: Settings = read_settings({"FIRSTBAD_HOME": str(home)})
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def home(self) -> Path:
        return self.settings.home

    def up(self, workers: int = 2) -> Server:
        self.start(workers)
        return self.wait_for_server()

    def start(self, workers: int = 2) -> None:
        log = (self.home / "up.log").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "firstbad", "up", "--workers", str(workers)],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        log.close()

    def wait_for_server(self) -> Server:
        found: list[Server] = []

        def there() -> bool:
            assert self.process is None or self.process.poll() is None, (self.home / "up.log").read_text()
            server = find_running(self.settings)
            if server is not None:
                found.append(server)
            return server is not None

        wait_until(there, "firstbad up does not start")
        return found[0]

    def down(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(timeout=60)

    def processes(self) -> dict[int, str]:
        """Every living process of this home, by id, with its command line."""
        mine = str(self.home).encode()
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                environment = (folder / "environ").read_bytes()
                command = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if command and (mine in environment or mine in command):
                found[int(folder.name)] = command.replace(b"\0", b" ").decode(errors="replace").strip()
        return found

    def kill(self, word: str, signum: signal.Signals = signal.SIGKILL) -> int:
        """Signal the one process whose command line has the word; its id."""
        matching = [pid for pid, command in self.processes().items() if word in command]
        assert matching, f"no process with {word!r} among {self.processes()}"
        os.kill(matching[0], signum)
        return matching[0]

    def firstbad(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "firstbad", *arguments],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )


def wait_until(happens: Callable[[], bool], complaint: str, seconds: float = PATIENCE_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < deadline, complaint
        time.sleep(0.1)


class Training:
    """A registered repository of the small job, and its profile ``small``."""

    def __init__(self, installation: Installation, folder: Path) -> None:
        self.scene = RepositoryScene(folder)
        self.catalogue = installation.settings.catalogue
        self.register("repositories", "training", {"name": "training", "url": self.scene.url})
        self.write_profile("small")

    def write_profile(self, name: str, **changes: Any) -> None:
        row = {
            "name": name,
            "repository": "training",
            "environment": {"kind": "interpreter", "python": sys.executable},
            "launch": [{"command": ["{python}", "train.py"]}],
            "capacity_bytes": CAPACITY_BYTES,
            "criterion": {"kind": "out_of_memory"},
            **changes,
        }
        self.register("profiles", name, row)

    def register(self, kind: str, name: str, row: Mapping[str, Any]) -> None:
        path = self.catalogue / kind / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(dict(row)))

    def commits(self, *plans: Mapping[str, Any]) -> list[str]:
        """One commit a plan, e.g. {"bytes": 900}; their hashes."""
        return [
            self.scene.commit(
                f"Change number {number}",
                train__py=JOB,
                plan__json=json.dumps({"bytes": 500, "number": number, **plan}),
            )
            for number, plan in enumerate(plans)
        ]


def finish(client: Client, request: Mapping[str, Any]) -> dict[str, Any]:
    """The report of a bisection, once it has ended."""
    bisection = client.create(request)["id"]
    row = client.wait(bisection, timeout_seconds=PATIENCE_SECONDS)
    assert row["status"] == "ended", row
    return client.report(bisection, "json")
