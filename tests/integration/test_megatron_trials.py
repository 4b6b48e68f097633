"""Trials of the demo's training on real Megatron Bridge, as a worker runs them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from bisection.adapters.catalogue import Catalogue
from bisection.commits import State
from bisection.ledger import Purpose, Trial
from bisection.measurement import Measurement, Outcome
from firstbad.demo import Nightly, generate, plan, write_profile
from memory_models.breakdown import Category, Component
from workers.trial_run import run_trial


class Host:
    """A worker host with the demo's repository, sharing the tests' training environment."""

    def __init__(self, root: Path, nightly: Nightly) -> None:
        self.root = root
        self.nightly = nightly
        self.profile = write_profile(nightly, root / "catalogue")
        self.said: list[str] = []

    def processes(self, count: int) -> None:
        path = self.root / "catalogue" / "profiles" / f"{self.profile}.yaml"
        row = yaml.safe_load(path.read_text())
        row["launch"][0]["processes"] = count
        path.write_text(yaml.safe_dump(row))

    def run(
        self, commit: str, overrides: Mapping[str, Any], capacity_bytes: int | None = None
    ) -> Measurement:
        catalogue = Catalogue(self.root / "catalogue")
        profile = catalogue.profile(self.profile)
        return run_trial(
            Trial(state=State(commit=commit), attempt=1, purpose=Purpose.SEARCH),
            profile=profile,
            repository=catalogue.repository(profile.repository),
            catalogue=catalogue,
            root=self.root,
            overrides=overrides,
            capacity_bytes=capacity_bytes,
            worker="test",
            pseudonym_key=b"of a test",
            cancelled=lambda: False,
            progress=self.said.append,
        ).measurement


@pytest.fixture
def host(tmp_path: Path) -> Host:
    shared = os.environ.get("FIRSTBAD_TEST_HOME")
    if not shared:
        pytest.skip("the training environment is missing; `make test` makes it")
    (tmp_path / "environments").symlink_to(Path(shared) / "environments")
    nightly = generate(plan("none", 1), tmp_path / "nightly")
    return Host(tmp_path, nightly)


def test_two_ranks_share_the_experts(host: Host) -> None:
    host.processes(2)
    overrides = {
        "model.expert_model_parallel_size": 2,
        "train.micro_batch_size": 1,
    }
    measured = host.run(host.nightly.good, overrides)
    assert measured.outcome is Outcome.COMPLETED, measured.reason
    assert measured.peak is not None
    alone = host.run(host.nightly.good, {"train.micro_batch_size": 1})
    assert alone.peak is not None
    cell = (Component.EXPERTS, Category.PARAMETERS)
    routed = measured.peak.breakdown.cells[cell]
    assert routed < 0.6 * alone.peak.breakdown.cells[cell]
    assert measured.images == alone.images
    assert len(measured.steps) == 3
    assert any("steps taken, peak" in text for text in host.said), host.said


def test_a_simulated_capacity_is_a_real_out_of_memory_with_its_place(host: Host) -> None:
    capacity = 200 * 2**20
    measured = host.run(host.nightly.good, {}, capacity_bytes=capacity)
    assert measured.outcome is Outcome.OUT_OF_MEMORY, measured.reason
    assert measured.oom is not None
    assert measured.oom.allocated_bytes + measured.oom.requested_bytes > capacity
    assert measured.peak is not None
    assert measured.peak.allocated_bytes <= capacity
    assert measured.oom.component in {component.value for component in Component}
    assert measured.patches, "a CPU's figures must say what stood in for a GPU"
