"""A service, a worker and the stand-in of GitHub, over real HTTP; a worker's tasks are called by hand."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import uvicorn
from fastapi import FastAPI

from bisection.adapters.catalogue import Catalogue
from bisection.adapters.queue import CONTROL, Queue, make_celery
from bisection.adapters.storage.announcements import Announcements
from bisection.adapters.storage.deliveries import Deliveries, Delivery
from firstbad.github_stand_in import GitHubWorld, create_stand_in
from tests.unit.service.scene import GITHUB, PROFILE, REPOSITORY, ServiceScene
from workers.announcing import announce
from workers.context import WorkerContext
from workers.settling import settle

TOKEN = "github_pat_" + "x" * 40
CI_SECRET = b"what the other CI signs with"


@contextmanager
def serving(app: FastAPI) -> Iterator[str]:
    """The address of an application that listens on loopback until the end of the block."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


class NightlyScene:
    """Use it in a `with` block. ``write`` says what the repository's file adds to webhook and ci."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.world = GitHubWorld(repository=GITHUB, token=TOKEN)
        self.service = ServiceScene(folder)
        self.database = self.service.database
        self.context = WorkerContext(
            name="control@test",
            queue=CONTROL,
            database=self.database,
            hints=Queue(make_celery("redis+socket:///nonexistent/broker.sock")),
            catalogue=Catalogue(self.service.catalogue_folder),
            root=folder / "root",
            public_url="https://firstbad.example",
        )
        (folder / "token").write_text(TOKEN + "\n")
        (folder / "ci-secret").write_bytes(CI_SECRET + b"\n")
        self._serving = serving(create_stand_in(self.world))

    def __enter__(self) -> Self:
        self.url = self._serving.__enter__()
        self.write()
        return self

    def __exit__(
        self, type_: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._serving.__exit__(type_, error, trace)
        self.service.__exit__(type_, error, trace)

    def write(
        self,
        *,
        webhook: dict[str, Any] | None = None,
        ci: dict[str, Any] | None = None,
        github: dict[str, Any] | None = None,
        **fields: Any,
    ) -> None:
        base = {"branches": ["main"], "profile": PROFILE}
        row = {
            "name": REPOSITORY,
            "url": "/mirrors/bridge",
            "webhook": {
                **base,
                "github": GITHUB,
                "workflows": ["nightly"],
                "secret_file": str(self.service.secret_file),
                **(webhook or {}),
            },
            "ci": {**base, "secret_file": str(self.folder / "ci-secret"), **(ci or {})},
            "github": {
                "repository": GITHUB,
                "api": self.url,
                "token_file": str(self.folder / "token"),
                "log_hosts": ["127.0.0.1"],
                **(github or {}),
            },
            **fields,
        }
        self.service.write("repositories", row)

    def run(
        self, run_id: int, head_sha: str, *jobs: tuple[str, str] | tuple[str, str, Any], **fields: Any
    ) -> dict[str, Any]:
        """A finished run at GitHub: jobs are (name, conclusion) or (name, conclusion, log)."""
        row: dict[str, Any] = {
            "id": run_id,
            "name": "nightly",
            "head_branch": "main",
            "head_sha": head_sha,
            "run_attempt": 1,
            "conclusion": "failure" if any(job[1] == "failure" for job in jobs) else "success",
            **fields,
        }
        attempt = int(row["run_attempt"])
        row["jobs"] = [
            {
                "id": run_id * 1000 + attempt * 100 + number,
                "name": job[0],
                "conclusion": job[1],
                "log": job[2] if len(job) > 2 else "",
            }
            for number, job in enumerate(jobs)
        ]
        self.world.runs.append(row)
        return row

    def deliver_run(self, row: dict[str, Any], *, delivery: str = "") -> Delivery:
        """GitHub tells of a run, and the worker decides."""
        payload = {
            "action": "completed",
            "workflow_run": {
                **{key: value for key, value in row.items() if key != "jobs"},
                "head_repository": {"full_name": GITHUB},
            },
            "repository": {"full_name": GITHUB},
        }
        name = delivery or f"d-{row['id']}-{row['run_attempt']}"
        answer = self.service.deliver(payload, delivery=name)
        assert answer.json()["decision"] == "accepted", answer.text
        return self.settled(name)

    def settled(self, name: str) -> Delivery:
        settle(self.context, REPOSITORY)
        found = Deliveries(self.database).get(name)
        assert found is not None
        return found

    def report(self, *, delivery: str = "r-1", when: float | None = None, **fields: Any) -> Any:
        """The answer to a signed report of another CI."""
        body = json.dumps(
            {"job": "perf", "run": 7, "conclusion": "failure", "branch": "main", **fields}
        ).encode()
        stamp = str(int(time.time() if when is None else when))
        content = f"{delivery}.{stamp}.".encode() + body
        signature = base64.b64encode(hmac.new(CI_SECRET, content, hashlib.sha256).digest()).decode()
        return self.service.anonymous.post(
            f"/v1/webhooks/ci/{REPOSITORY}",
            content=body,
            headers={
                "webhook-id": delivery,
                "webhook-timestamp": stamp,
                "webhook-signature": f"v1,{signature}",
            },
        )

    def bisections(self) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self.service.client.get("/v1/bisections").json()["items"]
        return items

    def announce_all(self) -> None:
        outbox = Announcements(self.database)
        outbox.renew_retracted()
        for announcement_id in outbox.due():
            announce(self.context, announcement_id)
