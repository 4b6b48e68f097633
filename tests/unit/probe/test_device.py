"""What the probe tells of a GPU, held against what following every operation tells of the same program.

The programs are in `device_scenes.py`; a device that counts the CPU's tensors stands for the GPU, and torch,
its autograd and its functions for reading peaks are the real ones. One matrix is 4096 bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Scene = Callable[[str], Any]

MATRIX = 4096
HOW = ["kept", "reentrant", "not reentrant"]


def _of(cells: dict[str, int], component: str) -> int:
    return sum(size for cell, size in cells.items() if cell.split()[0] == component)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("phase", ["forward", "backward", "step"])
def test_the_peak_of_each_phase_is_that_of_every_operation(device_scene: Scene, how: str, phase: str) -> None:
    counted, followed = (device_scene(f"{how}, {way}")[phase] for way in ("counted", "followed"))
    assert counted["bytes"] == followed["bytes"] == sum(counted["cells"].values())


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("component", ["vision", "projector", "decoder", "experts"])
def test_each_component_has_the_bytes_that_every_operation_tells(
    device_scene: Scene, how: str, component: str
) -> None:
    for phase in ("forward", "backward"):
        counted, followed = (device_scene(f"{how}, {way}")[phase]["cells"] for way in ("counted", "followed"))
        # The batch is the vision tower's while it is used: a past peak is not written anew after the step.
        batch = MATRIX if component == "vision" else 0
        # At the experts' own peak one matrix of theirs is a gradient that the loss's last scope began with.
        slack = MATRIX if how != "kept" else 0
        assert abs(_of(counted, component) - _of(followed, component) - batch) <= slack


def test_recomputed_experts_keep_nothing_in_forward(device_scene: Scene) -> None:
    kept, recomputed = (device_scene(f"{how}, counted")["forward"]["cells"] for how in ("kept", "reentrant"))
    assert kept["experts activations"] == 8 * MATRIX
    assert "experts activations" not in recomputed


def test_two_microbatches_in_flight_keep_twice_as_much(device_scene: Scene) -> None:
    one, two = device_scene("kept, counted")["backward"]["cells"], device_scene("in flight")["cells"]
    for component in ("vision", "projector", "decoder", "experts"):
        assert two[f"{component} activations"] == 2 * one[f"{component} activations"]


def test_the_job_reads_its_own_peaks_as_if_nobody_else_set_them_back(device_scene: Scene) -> None:
    read = device_scene("read by the job")
    assert read["beside the probe"] == read["alone"] == [4 * 512, 4 * 512, 512]


def test_the_probe_loses_no_peak_that_the_job_sets_back(device_scene: Scene) -> None:
    assert device_scene("read by the job")["own"] == [2 * 512, 3 * 512]


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_a_refused_allocation_is_recorded_before_it_raises(device_scene: Scene, phase: str) -> None:
    refused = device_scene(f"refused in {phase}")
    assert "out of memory" in refused["message"]
    (event,) = refused["events"]
    assert event["phase"] == phase
    assert event["component"] == {"forward": "experts", "backward": "embedding_and_loss"}[phase]
    assert event["allocated_bytes"] + event["requested_bytes"] > event["capacity_bytes"]
    assert event["device_free_bytes"] == event["capacity_bytes"] - event["allocated_bytes"]


def test_looks_that_cost_too_much_become_fewer_and_peaks_stay_exact(device_scene: Scene) -> None:
    scene = device_scene("many steps")
    assert scene["watch"]["host_share"] > scene["allowed"]
    assert 2 <= scene["watch"]["steps_watched"] < len(scene["steps"])
    peaks = [{phase["phase"]: phase["peak_bytes"] for phase in step["phases"]} for step in scene["steps"]]
    assert all(peak == peaks[1] for peak in peaks[1:])
    assert [step["peak_bytes"] for step in scene["steps"]] == [max(peak.values()) for peak in peaks]


def test_seconds_by_component_sum_to_the_watched_steps(device_scene: Scene) -> None:
    scene = device_scene("many steps")
    assert {"vision forward", "experts backward", "optimizer step"} <= set(scene["seconds"])
    assert all(value >= 0 for value in scene["seconds"].values())
    steady = [step["seconds"] for step in scene["steps"][1:]]
    assert min(steady) <= sum(scene["seconds"].values()) <= max(steady)


def test_backward_on_a_thread_of_its_own_comes_to_the_same_modules(device_scene: Scene) -> None:
    seen = device_scene("threads")
    assert seen["own"] == seen["other"]
    assert seen["own"].count("language_model.decoder.1.mlp.experts") == 1
    assert seen["own"].index("language_model.decoder.1") < seen["own"].index("language_model.decoder.0")


def test_no_module_inside_the_model_carries_a_hook(device_scene: Scene) -> None:
    assert device_scene("hooks") == {"before": 0, "after": 0, "backward": 0}


def test_a_compiled_module_stays_one_graph_and_what_is_inside_is_told_as_unseen(device_scene: Scene) -> None:
    compiled = device_scene("compiled")
    assert compiled["steps"] == 2
    (unseen,) = [told for told in compiled["unseen"] if "never announced" in told]
    assert "vision_model" in unseen


def test_a_captured_graph_records_no_event_and_silent_modules_are_told(device_scene: Scene) -> None:
    captured = device_scene("captured")
    text = " ".join(captured["unseen"])
    for told in (
        "CUDA graphs were captured",
        "fell silent, from step 2",
        "the seconds of 1 steps are the host's",
    ):
        assert told in text
    assert all(seconds > 0 for seconds in captured["seconds"])


def test_a_sharded_parameter_keeps_its_owner_while_its_memory_comes_and_goes(device_scene: Scene) -> None:
    assert device_scene("resharded") == [1024, 0, 1024]
