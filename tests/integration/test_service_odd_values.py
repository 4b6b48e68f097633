"""What was stored before anybody refused it can still be sent, in every format."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bisection.finding import Finding, FindingKind
from bisection.report import build_report
from tests.unit.report import samples
from tests.unit.service.scene import ServiceScene


@pytest.fixture
def scene(tmp_path: Path, database_url: str) -> Iterator[ServiceScene]:
    with ServiceScene(tmp_path, database_url=database_url) as scene:
        yield scene


def refuse(word: str) -> None:
    raise AssertionError(f"{word} is not JSON")


def strictly(content: bytes) -> Any:
    text = content.decode("utf-8")
    assert "\\ud" not in text
    return json.loads(text, parse_constant=refuse)


def test_a_stored_report_with_values_that_json_does_not_know_is_sent(scene: ServiceScene) -> None:
    bisection_id = scene.create()
    odd = {"lr": [float("inf"), float("-inf"), float("nan"), 1.5], "n\ud800": "a\udfff", "big": 10**400}
    scene.finish(bisection_id, {"configuration": odd})
    answer = scene.client.get(f"/v1/bisections/{bisection_id}/report")
    assert answer.status_code == 200
    expected = {"lr": [None, None, None, 1.5], "n\ufffd": "a\ufffd", "big": 10**400}
    assert strictly(answer.content) == {"configuration": expected}


@pytest.mark.parametrize("format", ["json", "markdown", "html"])
def test_a_whole_report_with_odd_values_is_sent_in_every_format(scene: ServiceScene, format: str) -> None:
    sample = samples.experts(subject="half a pair: \ud800")
    report = build_report(sample.spec, sample.ledger, sample.finding, sample.evidence).to_json()
    bisection_id = scene.create()
    scene.finish(bisection_id, report)
    answer = scene.client.get(f"/v1/bisections/{bisection_id}/report", params={"format": format})
    assert answer.status_code == 200
    assert "half a pair" in answer.content.decode("utf-8")


def test_a_bisection_and_its_lists_and_events_with_odd_values_are_sent(scene: ServiceScene) -> None:
    bisection_id = scene.create()
    scene.resolve(bisection_id)
    finding = Finding(kind=FindingKind.NONE, why="half a pair: \ud800")
    assert scene.bisections.conclude(bisection_id, finding)
    assert scene.bisections.finish(bisection_id, {})
    for path in ("", f"/{bisection_id}", f"/{bisection_id}/trials", f"/{bisection_id}/events"):
        answer = scene.client.get("/v1/bisections" + path)
        assert answer.status_code == 200, path
        answer.content.decode("utf-8")
    shown = strictly(scene.client.get(f"/v1/bisections/{bisection_id}").content)
    assert shown["finding"]["why"] == "half a pair: \ufffd"
