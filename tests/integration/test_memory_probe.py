"""One run of the memory model's grid, made now: the recorded ones say nothing of the probe of today.

Needs an interpreter with Megatron Bridge in FIRSTBAD_TEST_MEGATRON_PYTHON; takes half a minute.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.probe_grid import GRID
from benchmarks.probe_records import cases_of, compare, job_of, recorded
from benchmarks.probe_runs import Run, prepare, train
from benchmarks.probe_storages import rows_of
from tests.unit.memory_models.storage_terms import mismatches

CASE = next(case for case in GRID if case.name == "recompute of core_attn and moe")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    python = os.environ.get("FIRSTBAD_TEST_MEGATRON_PYTHON", "")
    if not python:
        pytest.skip("FIRSTBAD_TEST_MEGATRON_PYTHON names no interpreter with Megatron Bridge")
    folder = tmp_path_factory.mktemp("grid")
    prepare(folder)
    return train(Path(python), folder, CASE, folder / "run")


def test_the_estimate_of_a_run_made_now_is_within_the_tolerance(run: Run) -> None:
    (case,) = cases_of(recorded([run], "this machine"))
    (row,) = compare(case)
    assert row.within, row.to_json()
    assert job_of(case, case["ranks"][0]).recompute.modules == {"core_attn", "moe"}


def test_its_peak_equals_the_storages_that_the_probe_lists_term_by_term(run: Run) -> None:
    (case,) = cases_of(recorded([run], "this machine"))
    (row,), (storages,) = compare(case), run.storages
    assert list(mismatches(row.answer.parts, rows_of(storages["summits"]["backward"]))) == []
