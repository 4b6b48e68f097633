"""Estimates against what the probe measured of the real Megatron Bridge on a CPU, over a grid of runs.

The measurements were recorded once, by benchmarks/memory_probe.py (data/probe_on_bridge_0_3_1.json says
on what); the estimates are of today.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import memory_probe
from benchmarks.probe_grid import GRID
from benchmarks.probe_records import LARGE_BYTES, cases_of, compare, job_of
from memory_models.breakdown import Category, Component
from memory_models.comparison import compare as compare_jobs
from memory_models.job import Frozen, Granularity

RECORD = Path(__file__).parent / "data" / "probe_on_bridge_0_3_1.json"
CASES = {case["name"]: case for case in cases_of(json.loads(RECORD.read_text()))}
ROWS = {name: compare(case) for name, case in CASES.items()}
each_case = pytest.mark.parametrize("name", CASES)


def test_every_case_of_the_grid_is_recorded_as_it_is_written() -> None:
    assert list(CASES) == [case.name for case in GRID]
    for case in GRID:
        recorded = CASES[case.name]
        assert recorded["world_size"] == case.ranks == len(recorded["ranks"])
        for key, value in case.overrides.items():
            section, *path = key.split(".")
            if "hf_text_config" in path or section == "tokenizer":
                continue  # read by the training alone
            if value is None and path == ["recompute_modules"]:
                continue  # filled in by Bridge
            held = recorded["configuration"][section]
            for name in path:
                held = held.get(name) if held else None
            assert held == value, f"{case.name}: {key}"


@each_case
def test_the_total_is_within_two_percent(name: str) -> None:
    for row in ROWS[name]:
        assert row.estimated.total_bytes == pytest.approx(row.measured.total_bytes, rel=0.02)


@each_case
def test_every_component_above_64_mib_is_within_five_percent(name: str) -> None:
    for row in ROWS[name]:
        assert row.component_errors
        for component, error in row.component_errors.items():
            assert abs(error) <= 0.05, component


@each_case
def test_parameters_are_exactly_what_the_real_code_builds(name: str) -> None:
    assert all(row.parameters_exact for row in ROWS[name])


@each_case
def test_states_are_exact_but_for_the_rounding_of_small_tensors_and_of_shards(name: str) -> None:
    """The allocator hands out multiples of 512 bytes; a norm of 16 elements needs 64."""
    for row in ROWS[name]:
        for component in Component:
            for category in (Category.PARAMETERS, Category.OPTIMIZER_STATES):
                cell = (component, category)
                measured, estimated = row.measured.cells.get(cell, 0), row.estimated.cells.get(cell, 0)
                assert estimated == pytest.approx(measured, abs=128 * 1024), cell


@each_case
def test_the_peak_is_told_in_the_right_phase_and_module(name: str) -> None:
    modules = {
        "attention backward": "self_attention",
        "feed-forward backward": ".mlp",
        "vision backward": "vision_model",
        "loss": "language_model",
        "layer forward": "self_attention",
        "optimizer step": "optimizer",
    }
    for row in ROWS[name]:
        assert modules[row.answer.instant] in row.instant
        assert row.instant.endswith(("backward", "step")) or row.answer.instant in ("layer forward", "loss")


@each_case
def test_the_first_step_is_within_one_percent_and_lacks_the_moments(name: str) -> None:
    """Adam makes its moments at the end of it, which is no wider than the optimizer's step of any other."""
    for row, rank in zip(ROWS[name], CASES[name]["ranks"], strict=True):
        widest = max(
            instant.total_bytes
            for instant in row.answer.instants
            if instant.first_step or instant.name == "optimizer step"
        )
        assert widest == pytest.approx(rank["step_peaks"][0], rel=0.01)


@each_case
def test_the_optimizer_s_step_is_within_one_percent_where_it_is_no_peak_too(name: str) -> None:
    for row, rank in zip(ROWS[name], CASES[name]["ranks"], strict=True):
        (step,) = [each.total_bytes for each in row.answer.instants if each.name == "optimizer step"]
        assert step == pytest.approx(rank["summits"]["step"], rel=0.01)


def test_each_component_and_each_category_is_large_somewhere() -> None:
    """The tolerance of components says nothing of one that is small in every run."""
    rows = [row for found in ROWS.values() for row in found]
    large = {component for row in rows for component in row.component_errors}
    assert large == set(Component) - {Component.RUNTIME}
    kept = {
        component
        for row in rows
        for (component, category), size in row.measured.cells.items()
        if category is Category.ACTIVATIONS and size > LARGE_BYTES
    }
    assert kept == {Component.VISION, Component.DECODER, Component.EXPERTS, Component.EMBEDDING_AND_LOSS}


def test_the_grid_varies_what_it_says() -> None:
    jobs = [job_of(case, rank) for case in CASES.values() for rank in case["ranks"]]
    assert {job.recompute.granularity for job in jobs} == set(Granularity)
    assert {job.recompute.method for job in jobs} == {"uniform", "block"}
    layouts = {(job.layout.tensor, job.layout.expert, job.layout.pipeline) for job in jobs}
    assert layouts == {(1, 1, 1), (2, 1, 1), (1, 2, 1), (2, 2, 1), (1, 1, 2), (2, 1, 2)}
    assert {job.batch.micro for job in jobs} >= {1, 2, 3, 4}
    assert {job.optimizer.distributed for job in jobs} == {True, False}
    assert len({job.frozen for job in jobs}) == 6
    assert Frozen(language=True, vision=True) in {job.frozen for job in jobs}
    assert len({job.batch.images.patches for job in jobs}) >= 4


def test_the_delta_of_lost_recompute_has_the_measured_size_and_one_key() -> None:
    parent, culprit = CASES["recompute of core_attn and moe"], CASES["no recompute"]
    answer = compare_jobs(job_of(parent, parent["ranks"][0]), job_of(culprit, culprit["ranks"][0]))
    sizes = [case["ranks"][0]["peak"]["allocated_bytes"] for case in (culprit, parent)]
    assert answer.delta_bytes == pytest.approx(sizes[0] - sizes[1], rel=0.005)
    assert [effect.key for effect in answer.keys] == ["model.recompute_granularity"]


def test_the_benchmark_reads_the_record_and_ends_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert memory_probe.main(["--recorded", str(RECORD), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["summary"]["within"] == printed["summary"]["ranks"] == len(printed["rows"])


def test_the_benchmark_ends_badly_where_an_estimate_is_off(tmp_path: Path) -> None:
    record = json.loads(RECORD.read_text())
    cells = record["cases"][0]["ranks"][0]["cells"]
    cells["experts activations"] = cells["experts activations"] * 2
    (tmp_path / "off.json").write_text(json.dumps(record))
    assert memory_probe.main(["--recorded", str(tmp_path / "off.json"), "--json"]) == 1
