"""One profile launches whatever the lock of a commit holds: Core alone, or Megatron Bridge with its Core."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.compatibility_runs import COMBINATIONS, NAME, Combination, Versions, generate, row, run
from bisection.adapters.catalogue import Catalogue
from bisection.measurement import Outcome
from memory_models.breakdown import Component
from workers.eras import choose_adapter

#: In CI; the others take as long again and show no more: `make test-long`.
OLDEST = Combination(core="0.12.0")
NEWEST = Combination(core="0.16.1", bridge="0.3.1")


@pytest.fixture(scope="module")
def python() -> Path:
    named = os.environ.get("FIRSTBAD_TEST_MEGATRON_PYTHON")
    if not named:
        pytest.skip("the training environment is missing; `make test` makes it")
    return Path(named)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("versions")


@pytest.fixture(scope="module")
def versions(home: Path, python: Path) -> Versions:
    return generate(COMBINATIONS, home, python)


@pytest.mark.parametrize(
    "combination",
    [
        OLDEST,
        NEWEST,
        *(pytest.param(one, marks=pytest.mark.long) for one in COMBINATIONS if one not in (OLDEST, NEWEST)),
    ],
    ids=lambda one: f"core {one.core}" + (f" under bridge {one.bridge}" if one.bridge else ""),
)
def test_the_profile_trains_under_the_probe_what_the_lock_of_a_commit_holds(
    versions: Versions, home: Path, python: Path, combination: Combination
) -> None:
    measured = run(versions, combination, home)
    assert measured.outcome is Outcome.COMPLETED, measured.reason
    assert f"megatron_core-{combination.core}" in measured.imports["megatron.core"] or (
        f"megatron-core-{combination.core}" in measured.imports["megatron.core"]
    ), "Core comes from the overlay of the commit's lock"
    assert len(measured.steps) == 3
    assert measured.images >= 3, "real photographs"
    assert measured.peak is not None
    held = {component for (component, _), size in measured.peak.breakdown.cells.items() if size}
    assert held >= {Component.VISION, Component.PROJECTOR, Component.DECODER, Component.EXPERTS}
    entered = row(combination, measured, python)
    assert entered["result"].startswith("runs; peak ")


def test_which_job_a_commit_gets_is_read_off_its_lock(tmp_path: Path, versions: Versions) -> None:
    profile = Catalogue(versions.catalogue).profile(NAME)
    for name in ("train.py", "train_core.py"):
        (tmp_path / name).touch()
    for lock, era in (
        ("megatron-core==0.12.0\n", "Megatron Core alone"),
        ("megatron-bridge==0.3.1\n", "Megatron Bridge"),
    ):
        (tmp_path / "requirements.lock").write_text(lock)
        assert choose_adapter(profile, tmp_path).name == era
