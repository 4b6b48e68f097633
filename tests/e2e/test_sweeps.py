"""Sweeps through a running `firstbad up`: with a small job in seconds, and with real Megatron Bridge."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from bisection.sweep_report import PointResult, Standing, SweepReport
from firstbad.command_line import app
from firstbad.demo import generate, plan, write_profile
from service.access import COOKIE
from service.client import Client
from tests.e2e.installation import JOB, Installation, Training, wait_until
from tests.unit.memory_models.bridge_configurations import qwen_recipe

#: The small job, with the configuration of a Bridge recipe that a sweep can change.
SWEPT = JOB.replace('known = {"train.', 'known = {"train.global_batch_size", "train.').replace(
    'json.dump({"train": {"micro_batch_size": 1}},', 'json.dump(json.load(open("resolved.json")),'
)


def started(home: Path) -> Iterator[Installation]:
    installation = Installation(home)
    installation.up(workers=1)
    yield installation
    installation.down()
    wait_until(lambda: not installation.processes(), "processes were left behind", 30)


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    yield from started(tmp_path_factory.mktemp("sweeps") / "home")


def swept(installation: Installation, *arguments: str) -> tuple[SweepReport, dict[str, Any]]:
    done = installation.firstbad("sweep", *arguments, "--json")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    row = json.loads(done.stdout)
    return SweepReport.from_json(row["report"]), row


def by_words(report: SweepReport) -> dict[tuple[str, ...], PointResult]:
    return {tuple(row.settings.values()): row for row in report.points}


def test_changed_keys_reach_the_job_and_its_report_is_told_in_every_format(
    installation: Installation, tmp_path: Path
) -> None:
    training = Training(installation, tmp_path / "training")
    training.scene.commit(
        "Train",
        train__py=SWEPT,
        plan__json=json.dumps({"bytes": 400}),
        resolved__json=json.dumps(qwen_recipe(model__expert_model_parallel_size=1)),
    )
    asked = ["--profile", "small", "--at", "main", "--micro-batch", "1,2,4,3"]
    report, row = swept(installation, *asked)
    rows = by_words(report)
    assert rows["1",].is_base
    assert (rows["1",].peak_bytes, rows["2",].peak_bytes) == (400, 800)
    assert rows["4",].standing is Standing.OUT_OF_MEMORY
    assert rows["3",].standing is Standing.ILLEGAL
    assert report.best is not None
    assert installation.firstbad("sweep", "--show", row["id"]).stdout.startswith("Sweep of small at ")
    server = installation.wait_for_server()
    with Client(server.url, server.token) as client:
        assert "| # | point |" in client.sweep_report(row["id"], "markdown")
        html = client.sweep_report(row["id"], "html")
    assert "<svg" in html
    page = httpx.get(f"{server.url}/sweeps/{row['id']}", cookies={COOKIE: server.token})
    assert page.text == html
    assert "script" not in page.headers["content-security-policy"]


def test_what_cannot_be_asked_is_said(installation: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    server = installation.wait_for_server()
    monkeypatch.setenv("FIRSTBAD_URL", server.url)
    monkeypatch.setenv("FIRSTBAD_TOKEN", server.token)
    for arguments, words in (
        (["--profile", "small"], "name what to sweep"),
        (["--profile", "small", "--at", "main", "--micro-batch", "one"], "takes whole numbers"),
        (["--profile", "small", "--at", "main"], "names nothing to vary"),
        (["--show", "x" * 16], "There is no sweep"),
    ):
        done = CliRunner().invoke(app, ["sweep", *arguments])
        assert done.exit_code != 0
        assert words in " ".join(f"{done.stderr} {done.exception}".split())


@pytest.mark.long
def test_real_megatron_bridge_is_swept_on_this_machines_cpu(tmp_path: Path) -> None:
    shared = os.environ.get("FIRSTBAD_TEST_HOME")
    if not shared:
        pytest.skip("the training environment is missing; `make test` makes it")
    home = tmp_path / "home"
    home.mkdir()
    (home / "environments").symlink_to(Path(shared) / "environments")
    for installation in started(home):
        nightly = generate(plan("experts", 6), tmp_path / "repository")
        profile = write_profile(nightly, installation.settings.catalogue)
        asked = [
            "--micro-batch",
            "1,2,4",
            "--recompute",
            "none,selective,full",
            "--dispatcher",
            "alltoall,flex",
        ]
        report, _ = swept(installation, "--profile", profile, "--at", nightly.good, *asked)
        rows = by_words(report)
        base = rows["2", "selective", "alltoall"]
        assert base.is_base
        for row in report.points:
            if row.standing is Standing.MEASURED:
                assert row.incomparable == ""
                assert abs(row.off_bytes or 0) < 0.01 * (row.peak_bytes or 0)
                assert row.trainable_parameters == base.trainable_parameters
        assert rows["2", "none", "alltoall"].standing is Standing.OUT_OF_MEMORY
        assert "Bridge 0.3.1 cannot recompute fully with images" in rows["1", "full", "alltoall"].why
        assert "does not divide" in rows["4", "none", "alltoall"].why
        refused = rows["1", "none", "flex"]
        assert refused.standing is Standing.REFUSED
        assert "withheld" not in refused.why
        assert report.best is not None
