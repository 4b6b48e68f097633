"""What is said of results: at a stand-in of GitHub and to a webhook, over real HTTP; once, and taken back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from fastapi import FastAPI, Request, Response

from bisection.adapters.standard_webhooks import is_signed
from bisection.adapters.storage.announcements import Announcement, Announcements, Channel
from bisection.commits import Commit
from bisection.criteria import Criterion
from bisection.report import build_report
from bisection.specification import BisectionSpec
from firstbad.github_stand_in import Fault
from tests.integration.nightly_scene import NightlyScene, serving
from tests.unit.report import samples
from tests.unit.service.scene import GITHUB, PROFILE
from workers.announcing import announce, plan_announcements

OUT_SECRET = b"what the receiver knows"


class Receiver:
    """A webhook's other side, which keeps what it was sent and refuses the first few."""

    def __init__(self, refusals: int = 0) -> None:
        self.refusals = refusals
        self.taken: list[tuple[str, dict[str, Any]]] = []
        self.app = FastAPI()

        @self.app.post("/hook")
        async def hook(request: Request) -> Response:
            body = await request.body()
            names = ("webhook-id", "webhook-timestamp", "webhook-signature")
            message_id, stamp, signature = (request.headers[name] for name in names)
            if not is_signed(OUT_SECRET, message_id, stamp, body, signature):
                return Response(status_code=401)
            if self.refusals:
                self.refusals -= 1
                return Response(status_code=503)
            self.taken.append((message_id, json.loads(body)))
            return Response(status_code=204)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[NightlyScene]:
    with NightlyScene(tmp_path) as scene:
        yield scene


def use_app(scene: NightlyScene) -> None:
    """Sign in as an App: GitHub lets nobody else write check runs."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    (scene.folder / "app.pem").write_bytes(private)
    scene.world.app_id, scene.world.app_public_key = "Iv1.test", public.decode()


def end_with(scene: NightlyScene, sample: samples.Sample, *, github: Any = None, **wanted: Any) -> str:
    """A nightly's bisection that ended with a sample's answer, as a worker ends it."""
    scene.write(announce=wanted, github=github)
    commits: list[Commit] = list(sample.spec.range.commits)
    scene.deliver_run(scene.run(100, commits[0].hash, ("train", "success")))
    scene.deliver_run(scene.run(200, commits[-1].hash, ("train", "failure")))
    bisection_id = str(scene.bisections()[0]["id"])
    bisections = scene.context.bisections
    spec: BisectionSpec = sample.spec
    assert isinstance(spec.criterion, Criterion)
    assert bisections.resolve(bisection_id, spec, {}, preview=False)
    assert bisections.conclude(bisection_id, sample.finding)
    report = build_report(spec, sample.ledger, sample.finding, sample.evidence)
    plan_announcements(scene.context, bisections.get(bisection_id))
    assert bisections.finish(bisection_id, report.to_json())
    return bisection_id


def outbox(scene: NightlyScene, bisection_id: str) -> dict[Channel, Announcement]:
    return {one.channel: one for one in Announcements(scene.database).of(bisection_id)}


def due_again(scene: NightlyScene, bisection_id: str) -> None:
    """As if the pause after a failed try were over."""
    from sqlalchemy import update

    from bisection.adapters.storage.nightly_schema import announcements

    with scene.database.write() as connection:
        connection.execute(update(announcements).values(due_at=0.0))


def retract(scene: NightlyScene, bisection_id: str) -> None:
    told = {"by": "ada", "at": "2026-11-30T10:00:00+00:00", "reason": "the card was <b>faulty</b> @everyone"}
    row = scene.context.bisections
    assert row.get(bisection_id).status.value == "ended"
    from sqlalchemy import update

    from bisection.adapters.storage.schema import bisections

    with scene.database.write() as connection:
        connection.execute(update(bisections).where(bisections.c.id == bisection_id).values(retraction=told))


def test_a_culprit_is_told_on_the_bad_end_on_its_pull_request_and_in_an_issue(scene: NightlyScene) -> None:
    use_app(scene)
    app = {"id": "Iv1.test", "installation": 7, "private_key_file": str(scene.folder / "app.pem")}
    sample = samples.experts()
    culprit, bad = sample.finding.commits[0], sample.spec.range.bad.hash
    scene.world.pulls = [
        {"number": 3, "commits": [culprit], "merged_at": None},
        {"number": 4, "commits": [culprit], "merged_at": "2026-11-29T00:00:00Z"},
    ]
    bisection = end_with(
        scene, sample, github={"token_file": None, "app": app}, check_run=True, pull_request=True, issue=True
    )
    scene.announce_all()
    (check,), (comment,), (issue,) = scene.world.check_runs, scene.world.comments, scene.world.issues
    assert (check["head_sha"], check["conclusion"], check["status"]) == (bad, "neutral", "completed")
    assert check["details_url"] == f"https://firstbad.example/reports/{bisection}"
    assert comment["number"] == 4
    for text in (check["output"]["summary"], comment["body"], issue["body"]):
        assert "is the first bad commit (confidence 99" in text
        assert "It would be disproved by a run of the commit that passes" in text
        assert f"(https://firstbad.example/reports/{bisection})" in text
        assert "why `train` at" in text
        assert culprit[:8] in text
    assert issue["title"].startswith("firstbad: First bad commit")
    assert {one.status.value for one in outbox(scene, bisection).values()} == {"said"}
    scene.announce_all()
    assert (len(scene.world.check_runs), len(scene.world.comments), len(scene.world.issues)) == (1, 1, 1)


@pytest.mark.parametrize("channel", ["pull_request", "issue"])
def test_an_answer_that_was_lost_after_the_writing_leads_to_no_second_one(
    scene: NightlyScene, channel: str
) -> None:
    sample = samples.experts()
    scene.world.pulls = [{"number": 4, "commits": [sample.finding.commits[0]], "merged_at": "2026-11-29"}]
    scene.world.faults = [Fault(method="POST", path="/issues", status=502, after=True)]
    bisection = end_with(scene, sample, **{channel: True})
    scene.announce_all()
    assert outbox(scene, bisection)[Channel(channel)].status.value == "waiting"
    assert outbox(scene, bisection)[Channel(channel)].place is None
    due_again(scene, bisection)
    scene.announce_all()
    assert outbox(scene, bisection)[Channel(channel)].status.value == "said"
    assert len(scene.world.comments) + len(scene.world.issues) == 1


def test_a_claimed_announcement_is_said_by_one_worker_alone(scene: NightlyScene) -> None:
    bisection = end_with(scene, samples.experts(), issue=True)
    claimed = Announcements(scene.database).claim(outbox(scene, bisection)[Channel.ISSUE].id)
    assert claimed is not None
    announce(scene.context, claimed.id)
    assert scene.world.issues == []


def test_a_retraction_edits_what_was_said_and_accuses_nobody(scene: NightlyScene) -> None:
    sample = samples.experts()
    scene.world.pulls = [{"number": 4, "commits": [sample.finding.commits[0]], "merged_at": "2026-11-29"}]
    bisection = end_with(scene, sample, pull_request=True, issue=True)
    scene.announce_all()
    retract(scene, bisection)
    scene.announce_all()
    (comment,), (issue,) = scene.world.comments, scene.world.issues
    assert issue["title"] == "firstbad: Retracted"
    for text in (comment["body"], issue["body"]):
        assert "## Retracted" in text
        assert "No commit is accused any more" in text
        assert "<b>" not in text
        assert "@everyone" not in text
    assert all(one.retracted for one in outbox(scene, bisection).values())
    requests = len(scene.world.requests)
    scene.announce_all()
    assert len(scene.world.requests) == requests


def test_what_was_retracted_before_it_was_said_is_never_said(scene: NightlyScene) -> None:
    bisection = end_with(scene, samples.experts(), issue=True)
    retract(scene, bisection)
    scene.announce_all()
    assert scene.world.issues == []


@pytest.mark.parametrize(
    ("sample", "confidence"), [(samples.experts, 0.99999), (samples.nothing, 0.6)], ids=["unsure", "nothing"]
)
def test_below_the_configured_confidence_nothing_is_said(
    scene: NightlyScene, sample: Any, confidence: float
) -> None:
    bisection = end_with(scene, sample(), issue=True, confidence=confidence)
    scene.announce_all()
    assert scene.world.issues == []
    assert outbox(scene, bisection)[Channel.ISSUE].status.value == "needless"


def test_a_set_is_told_in_an_issue_and_on_nobodys_pull_request(scene: NightlyScene) -> None:
    sample = samples.credible_set()
    scene.world.pulls = [{"number": 4, "commits": list(sample.finding.commits), "merged_at": "2026-11-29"}]
    end_with(scene, sample, issue=True, pull_request=True, confidence=0.6)
    scene.announce_all()
    body = scene.world.issues[0]["body"]
    assert all(commit[:10] in body for commit in sample.finding.commits)
    assert "A run of any of these commits narrows the set." in body
    assert scene.world.comments == []


def test_a_persons_own_bisection_is_told_to_nobody(scene: NightlyScene) -> None:
    scene.write(announce={"issue": True})
    request = {"profile": PROFILE, "good": "a", "bad": "b"}
    made = scene.service.client.post("/v1/bisections", json=request).json()["id"]
    plan_announcements(scene.context, scene.context.bisections.get(made))
    assert outbox(scene, made) == {}


def test_a_token_that_may_not_write_is_told_as_an_event_with_its_repair(scene: NightlyScene) -> None:
    bisection = end_with(scene, samples.experts(), check_run=True)
    scene.announce_all()
    told = scene.context.bisections.last_event(bisection, "announced")
    assert told is not None
    assert told.payload["status"] == "failed"
    assert "docs/how-to/github.md lists them" in told.payload["text"]
    assert f"POST /repos/{GITHUB}/check-runs: 403" in told.payload["text"]


def test_a_webhook_is_told_until_it_takes_it_with_one_id_and_told_of_the_retraction(
    scene: NightlyScene,
) -> None:
    receiver = Receiver(refusals=1)
    (scene.folder / "out-secret").write_bytes(b"the new one\n" + OUT_SECRET + b"\n")  # it is being rotated
    with serving(receiver.app) as url:
        hook = {"url": f"{url}/hook", "secret_file": str(scene.folder / "out-secret")}
        bisection = end_with(scene, samples.experts(), webhook=hook)
        scene.announce_all()
        assert receiver.taken == []
        assert outbox(scene, bisection)[Channel.WEBHOOK].tries == 1
        due_again(scene, bisection)
        scene.announce_all()
        retract(scene, bisection)
        scene.announce_all()
    (first_id, first), (second_id, second) = receiver.taken
    row = outbox(scene, bisection)[Channel.WEBHOOK].id
    assert (first_id, second_id) == (f"{row}.result.found", f"{row}.result.retracted")
    assert first["data"]["commits"] == list(samples.experts().finding.commits)
    assert first["data"]["disproof"]
    assert first["data"]["retraction"] is None
    assert second["data"]["retraction"]["by"] == "ada"
