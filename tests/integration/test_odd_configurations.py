"""A report is made and sent whatever a training job wrote as its resolved configuration."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from bisection.adapters.catalogue import Catalogue
from bisection.adapters.queue import Queue, make_celery
from bisection.adapters.storage.claims import Claims
from bisection.commits import State
from bisection.finding import Finding, FindingKind
from bisection.ledger import Purpose, Trial
from bisection.measurement import Measurement, Outcome, Step
from tests.unit.service.scene import BAD, GOOD, ServiceScene
from workers.context import WorkerContext
from workers.reporting import make_report


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[ServiceScene]:
    with ServiceScene(tmp_path) as scene:
        yield scene


def ended(scene: ServiceScene, folder: Path, bad_configuration: bytes) -> str:
    """A bisection that found the bad end guilty and has its report; its id."""
    bisection_id = scene.create()
    scene.resolve(bisection_id)
    for commit, configuration in ((GOOD, b'{"train": {}}'), (BAD, bad_configuration)):
        trial = Trial(state=State(commit=commit), attempt=1, purpose=Purpose.END, why="an end")
        version = scene.bisections.get(bisection_id).version
        assert scene.trials.apply(bisection_id, version, queue="pool", add=[trial])
        claim = Claims(scene.database).claim("pool", "worker-1")
        assert claim is not None
        step = Step(
            step=0, peak_bytes=1, retained_bytes=1, seconds=1.0,
            loss_tokens=1, image_tokens=1, padding_tokens=0, patches=4,
        )  # fmt: skip
        measured = Measurement(
            outcome=Outcome.COMPLETED, state=State(commit=commit), steps=(step,), seconds=2.0
        )
        assert Claims(scene.database).complete(claim, measured, {"config.json": configuration})
    finding = Finding(kind=FindingKind.FOUND, commits=(BAD,), parent=GOOD, confidence=0.99)
    assert scene.bisections.conclude(bisection_id, finding)
    context = WorkerContext(
        name="worker-1",
        queue="control",
        database=scene.database,
        hints=Queue(make_celery("redis+socket:///nonexistent/broker.sock")),
        catalogue=Catalogue(scene.catalogue_folder),
        root=folder / "work",
    )
    report = make_report(context, scene.bisections.get(bisection_id))
    assert scene.bisections.finish(bisection_id, report.to_json())
    return bisection_id


@pytest.mark.parametrize(
    ("configuration", "said"),
    [
        (b"[1]", "the recorded configuration is not a mapping"),
        (b'{"train": {"lr": 1e400}}', "the recorded configuration cannot be read"),
        (b'{"a":' * 900 + b"1" + b"}" * 900, "the recorded configuration cannot be read"),
        (b'{"train": 5}', "No estimate: the memory model cannot follow this configuration"),
        (b'{"train": {"global_batch_size": "x"}}', "No estimate"),
        (b'{"model": null, "train": null}', "No estimate"),
        (b'{"train": {"n\\ud800": "\\udfff"}}', "No estimate"),
    ],
)
def test_an_odd_configuration_leaves_a_report_with_a_note_that_is_sent_in_every_format(
    scene: ServiceScene, tmp_path: Path, configuration: bytes, said: str
) -> None:
    path = f"/v1/bisections/{ended(scene, tmp_path, configuration)}/report"
    for name in ("json", "markdown", "html"):
        answer = scene.client.get(path, params={"format": name})
        assert answer.status_code == 200, name
        text = answer.content.decode("utf-8")
        assert name != "json" or said in json.dumps(json.loads(text)["notes"])
