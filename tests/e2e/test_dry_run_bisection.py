"""A bisection without any device: dry runs of real Megatron Bridge code, through the whole service."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from bisection.rendering.terminal import render_text
from bisection.report import CulpritReport
from firstbad.demo import generate, plan, write_profile
from service.client import ApiProblem, Client
from tests.e2e.installation import Installation, wait_until

#: The plan whose culprit keeps the activations of the experts, at a micro batch of photographs.
SCENARIO, SEED = "experts", 6
PATIENCE_SECONDS = 600.0


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    shared = os.environ.get("FIRSTBAD_TEST_HOME")
    if not shared:
        pytest.skip("the training environment is missing; `make test` makes it")
    installation = Installation(tmp_path / "home")
    (installation.home / "environments").symlink_to(Path(shared) / "environments")
    yield installation
    installation.down()
    wait_until(lambda: not installation.processes(), "processes were left behind", 30)


def make_dry(profile: Path) -> None:
    row: dict[str, Any] = yaml.safe_load(profile.read_text())
    row |= {"device": "dry_run", "dry_run": {"world_size": 1, "images": [[256, 256]]}}
    profile.write_text(yaml.safe_dump(row))


def test_a_planted_regression_is_found_without_any_device_and_nobody_can_mistake_it(
    installation: Installation, tmp_path: Path
) -> None:
    nightly = generate(plan(SCENARIO, SEED), tmp_path / "nightly")
    assert nightly.culprit is not None
    name = write_profile(nightly, installation.settings.catalogue)
    make_dry(installation.settings.catalogue / "profiles" / f"{name}.yaml")
    at = nightly.commits.index(nightly.culprit)
    server = installation.up(workers=2)
    request = {"profile": name, "good": nightly.commits[at - 2], "bad": nightly.culprit}
    with Client(server.url, server.token) as client:
        with pytest.raises(ApiProblem, match="dry runs, which have no seconds"):
            client.create({**request, "criterion": {"kind": "throughput", "threshold": 100.0}})
        bisection = client.create(request)["id"]
        row = client.wait(bisection, timeout_seconds=PATIENCE_SECONDS)
        assert row["status"] == "ended", row
        report = client.report(bisection, "json")
        pages = [client.report(bisection, "html"), client.report(bisection, "markdown")]
    pages.append(render_text(CulpritReport.from_json(report)))
    assert report["finding"]["commits"] == [nightly.culprit], report["finding"]
    assert report["regression"]["component"] == "experts"
    assert report["simulated"] is True
    simulation = report["simulation"]
    assert simulation["devices"] == ["dry_run"]
    assert any("NCCL" in told for told in simulation["not_modelled"])
    assert simulation["patches"]["dry run: microbatches instead of the data set"] >= 1
    for page in pages:
        assert "SIMULATED on DRY RUN, not a GPU" in page
        assert "NCCL" in page
    # The limit was enforced on tensors that are not there.
    refused = [trial for trial in report["trials"] if trial["outcome"] == "out_of_memory"]
    assert {trial["device"] for trial in refused} == {"dry_run"}
    assert {trial["state"]["commit"] for trial in refused} >= {nightly.culprit}
    assert {trial["verdict"] for trial in report["trials"]} <= {"good", "bad"}
