"""A whole service for tests: a real SQLite file, a catalogue on disk, tokens, and no broker at all.

The TestClient here speaks to the application in this process; whatever a worker
would do is written into the storage by hand.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml
from fastapi import FastAPI
from fastapi.testclient import TestClient

from bisection.adapters.catalogue import Catalogue
from bisection.adapters.queue import Queue, make_celery
from bisection.adapters.storage.bisections import Bisections
from bisection.adapters.storage.claims import Claims
from bisection.adapters.storage.database import Database
from bisection.adapters.storage.tokens import Scope, Tokens
from bisection.adapters.storage.trials import Trials
from bisection.commits import Commit, CommitRange, State
from bisection.criteria import Criterion, CriterionKind
from bisection.finding import Finding, FindingKind
from bisection.ledger import Purpose, Trial
from bisection.measurement import Measurement, Outcome, OutOfMemory
from bisection.specification import BisectionSpec
from service.application import create_app
from service.settings import ServiceSettings

GOOD, BAD = "a" * 40, "b" * 40
HOSTILE = '<script>alert("subject")</script>'
SECRET = b"a secret that GitHub shares"
GITHUB = "example-org/megatron-bridge"
PROFILE, REPOSITORY = "qwen3-vl-30b-a3b-sft-8gpu", "megatron-bridge"
CAPACITY = 85899345920

REQUEST: dict[str, Any] = {"repository": REPOSITORY, "profile": PROFILE, "good": "v0.3.0", "bad": "main"}


def profile_file(name: str, repository: str = REPOSITORY, **fields: Any) -> dict[str, Any]:
    return {
        "name": name,
        "description": "Fine-tuning on photographs.",
        "repository": repository,
        "environment": {"kind": "interpreter", "python": "/operators/own/python"},
        "launch": [{"command": ["{python}", "train.py"]}],
        **fields,
    }


class ServiceScene:
    """A running service and what the tests need to look behind it. Use it in a `with` block."""

    def __init__(
        self, folder: Path, *, public_url: str = "http://testserver", database_url: str = ""
    ) -> None:
        self.catalogue_folder = folder / "catalogue"
        self.secret_file = folder / "secret"
        self.secret_file.write_bytes(SECRET + b"\n")
        self._write_catalogue()
        self.database = Database(database_url or f"sqlite:///{folder}/firstbad.sqlite")
        self.database.migrate()
        tokens = Tokens(self.database)
        self.tokens = {scope: tokens.issue(f"{scope}r", frozenset({scope})) for scope in Scope}
        self.token = tokens.issue("both", frozenset({Scope.READ, Scope.WRITE}))
        self.bisections, self.trials = Bisections(self.database), Trials(self.database)
        self.app: FastAPI = create_app(
            database=self.database,
            queue=Queue(make_celery("redis+socket:///nonexistent/broker.sock")),
            catalogue=Catalogue(self.catalogue_folder),
            settings=ServiceSettings(public_url=public_url, version="1.2.3", event_poll_seconds=0.05),
        )
        self.anonymous = self.client_with(None)
        self.client = self.client_with(self.token)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.database.close()

    def client_with(self, token: str | None) -> TestClient:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return TestClient(self.app, headers=headers, raise_server_exceptions=False, follow_redirects=False)

    def write(self, kind: str, row: dict[str, Any]) -> None:
        path = self.catalogue_folder / kind / f"{row['name']}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(row))

    def _write_catalogue(self) -> None:
        criterion = {"kind": "out_of_memory"}
        self.write(
            "profiles", profile_file(PROFILE, criterion=criterion, capacity_bytes=CAPACITY, queue="pool")
        )
        self.write("profiles", profile_file("no-default"))
        self.write("profiles", profile_file("elsewhere", repository="megatron-lm", criterion=criterion,
                                            capacity_bytes=1))  # fmt: skip
        self.write("repositories", {"name": "megatron-lm", "url": "/mirrors/lm"})
        self.write_webhook()

    def write_webhook(self, **fields: Any) -> None:
        webhook = {
            "github": GITHUB,
            "workflows": ["nightly"],
            "branches": ["main"],
            "profile": PROFILE,
            "secret_file": str(self.secret_file),
            **fields,
        }
        self.write(
            "repositories",
            {
                "name": REPOSITORY,
                "url": "/mirrors/bridge",
                "pins": {"3rdparty/Megatron-LM": "megatron-lm"},
                "webhook": webhook,
            },
        )

    def create(self, **fields: Any) -> str:
        """Id of a new bisection."""
        answer = self.client.post("/v1/bisections", json=REQUEST | fields)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    def resolve(self, bisection_id: str, *, preview: bool = False) -> None:
        """As a worker does once git has answered."""
        good = Commit(hash=GOOD, subject="A good one")
        bad = Commit(hash=BAD, parents=(GOOD,), subject=HOSTILE + "\u202e")
        spec = BisectionSpec(
            range=CommitRange(commits=(good, bad)),
            criterion=Criterion(kind=CriterionKind.OUT_OF_MEMORY, capacity_bytes=CAPACITY),
        )
        assert self.bisections.resolve(bisection_id, spec, {"commits": 1, "states": 2}, preview=preview)

    def run_trial(self, bisection_id: str, artifacts: dict[str, bytes] | None = None) -> str:
        """As a worker does: one trial at the bad end, out of memory. Gives the trial's id."""
        trial = Trial(state=State(commit=BAD), attempt=1, purpose=Purpose.END, why="is it bad?")
        version = self.bisections.get(bisection_id).version
        assert self.trials.apply(bisection_id, version, queue="pool", add=[trial])
        claim = Claims(self.database).claim("pool", "worker-1")
        assert claim is not None
        refused = OutOfMemory(
            component="experts",
            phase="forward",
            requested_bytes=2**30,
            allocated_bytes=CAPACITY,
            reserved_bytes=CAPACITY,
        )
        measured = Measurement(
            outcome=Outcome.OUT_OF_MEMORY, state=State(commit=BAD), oom=refused, seconds=12.5
        )
        assert Claims(self.database).complete(claim, measured, artifacts or {})
        return claim.trial_id

    def queue_trial(self, bisection_id: str) -> None:
        trial = Trial(state=State(commit=BAD), attempt=1, purpose=Purpose.END, why="is it bad?")
        version = self.bisections.get(bisection_id).version
        assert self.trials.apply(bisection_id, version, queue="pool", add=[trial])

    def finish_with_culprit(self, bisection_id: str) -> None:
        finding = Finding(kind=FindingKind.FOUND, commits=(BAD,), parent=GOOD, confidence=0.99)
        assert self.bisections.conclude(bisection_id, finding)
        assert self.bisections.finish(bisection_id, {})

    def finish(self, bisection_id: str, report: dict[str, Any]) -> None:
        finding = Finding(kind=FindingKind.NONE, why="nothing regressed")
        assert self.bisections.conclude(bisection_id, finding)
        assert self.bisections.finish(bisection_id, report)

    def deliver(
        self,
        payload: dict[str, Any] | bytes,
        *,
        delivery: str = "d-1",
        event: str = "workflow_run",
        secret: bytes = SECRET,
        headers: Mapping[str, str | bytes] | None = None,
    ) -> Any:
        """The answer to a delivery, signed as GitHub signs it."""
        body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        signature = hmac.new(secret, body, hashlib.sha256).hexdigest()
        sent: dict[str, str | bytes] = {
            "Content-Type": "application/json",
            "X-GitHub-Event": event,
            "X-GitHub-Delivery": delivery,
            "X-Hub-Signature-256": f"sha256={signature}",
            **(headers or {}),
        }
        encoded = {
            name.encode(): value if isinstance(value, bytes) else value.encode()
            for name, value in sent.items()
        }
        return self.anonymous.post("/v1/webhooks/github", content=body, headers=encoded)


def run_payload(
    *,
    run_id: int = 200,
    conclusion: str | None = "failure",
    head_sha: str = BAD,
    name: str = "nightly",
    branch: str = "main",
    action: str = "completed",
    repository: str = GITHUB,
    head_repository: str | None = GITHUB,
    attempt: int = 1,
) -> dict[str, Any]:
    """What we read of a `workflow_run` delivery, and some of the hundreds of fields around it."""
    return {
        "action": action,
        "workflow_run": {
            "id": run_id,
            "name": name,
            "head_branch": branch,
            "head_sha": head_sha,
            "run_number": 7,
            "run_attempt": attempt,
            "event": "schedule",
            "status": "completed",
            "conclusion": conclusion,
            "pull_requests": [],
            "head_repository": {"full_name": head_repository} if head_repository else None,
        },
        "repository": {"id": 1, "full_name": repository, "private": False},
        "sender": {"login": "somebody"},
    }
