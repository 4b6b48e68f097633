"""Estimates against what the probe measured of the real Megatron Bridge on a CPU.

The measurements were recorded once (data/probe_on_bridge_0_3_1.json says on what). The list of
tensors was drawn up on "no recompute", the gradients alive at the peak on the recompute case, and
what frozen weights spare on the frozen cases; nothing was changed for the other five.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memory_models.breakdown import Category, Component, MemoryBreakdown
from memory_models.comparison import compare
from memory_models.estimation import RankEstimate, estimate
from memory_models.job import TrainingJob
from memory_models.parameters import stage_weights
from memory_models.reading import read_bridge_config
from memory_models.shapes import ImageLoad
from memory_models.states import trainable_elements

MIB = 2**20
CASES: dict[str, dict[str, Any]] = {
    case["case"]: case
    for case in json.loads((Path(__file__).parent / "data" / "probe_on_bridge_0_3_1.json").read_text())[
        "cases"
    ]
}
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


def job_of(case: dict[str, Any]) -> TrainingJob:
    images = ImageLoad(patches=case["patches_per_sample"])
    return read_bridge_config(case["config"], world_size=case["world_size"], images=images).job


def estimated(case: dict[str, Any]) -> RankEstimate:
    return estimate(job_of(case)).worst


@each_case
def test_the_total_is_within_one_percent(case: dict[str, Any]) -> None:
    assert estimated(case).allocated_bytes == pytest.approx(case["peak"]["allocated_bytes"], rel=0.01)


@each_case
def test_every_component_above_64_mib_is_within_five_percent(case: dict[str, Any]) -> None:
    measured = MemoryBreakdown.from_json(case["peak"]["breakdown"]).by_component()
    answer = estimated(case).breakdown.by_component()
    large = [component for component in Component if measured[component] > 64 * MIB]
    assert len(large) >= 2
    for component in large:
        assert answer[component] == pytest.approx(measured[component], rel=0.05), component


@each_case
def test_states_are_exact_but_for_the_rounding_of_small_tensors(case: dict[str, Any]) -> None:
    """The allocator hands out multiples of 512 bytes; a norm of 16 elements needs 64."""
    measured = MemoryBreakdown.from_json(case["peak"]["breakdown"]).cells
    answer = estimated(case).breakdown.cells
    for component in (Component.VISION, Component.PROJECTOR, Component.EXPERTS, Component.EMBEDDING_AND_LOSS):
        for category in (Category.PARAMETERS, Category.GRADIENTS, Category.OPTIMIZER_STATES):
            cell = (component, category)
            assert answer.get(cell, 0) == pytest.approx(measured.get(cell, 0), abs=64 * 1024), cell


@each_case
def test_trainable_parameters_are_exact(case: dict[str, Any]) -> None:
    weights = stage_weights(job_of(case), 0)
    for component, count in case["trainable"].items():
        assert trainable_elements(weights, Component(component)) == count


@each_case
def test_the_peak_falls_into_the_attention_of_the_backward_pass(case: dict[str, Any]) -> None:
    assert case["peak"]["phase"] == "backward"
    assert "core_attention" in case["peak"]["instant"]
    assert estimated(case).instant == "attention backward"


def test_the_delta_of_lost_recompute_is_within_three_percent_and_has_one_key() -> None:
    parent, culprit = CASES["selective recompute of attention and experts"], CASES["no recompute"]
    answer = compare(job_of(parent), job_of(culprit))
    measured = culprit["peak"]["allocated_bytes"] - parent["peak"]["allocated_bytes"]
    assert answer.delta_bytes == pytest.approx(measured, rel=0.03)
    assert [effect.key for effect in answer.keys] == ["model.recompute_granularity"]
