"""What is alive, whose it is and what for: small torch programs with bytes worked out by hand.

The programs are in `scenes.py`. One [tokens, width] matrix is 4096 bytes, the
experts' inner matrix twice that; a layer keeps, for backward, its attention's
output and its sum (decoder), and the inner matrix and its square (experts).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Scene = Callable[[str], Any]

MATRIX = 4096
PARAMETERS = {
    "vision parameters": 1024,
    "projector parameters": 1024,
    "embedding_and_loss parameters": 2048,
    "decoder parameters": 2048,
    "experts parameters": 10240,
}
GRADIENTS = {
    "vision gradients": 1024,
    "projector gradients": 1024,
    "embedding_and_loss gradients": 2048,
    "decoder gradients": 2048,
    "experts gradients": 8192,  # the router of this toy gets none
}


def test_a_storage_counts_once_rounded_until_its_last_view_is_gone(scene: Scene) -> None:
    assert scene("views") == {
        "rounded": [512, 512, 1024],
        "with_view": MATRIX,
        "view_alone": MATRIX,
        "end": 0,
    }


def test_resized_and_swapped_storages_are_followed(scene: Scene) -> None:
    assert scene("resized") == [MATRIX, 0, 2 * MATRIX, 4 * MATRIX, MATRIX]


def test_storages_freed_on_another_thread_leave_the_books(scene: Scene) -> None:
    assert scene("threads") == 0


def test_a_batch_counts_once_it_is_moved_to_the_device(scene: Scene) -> None:
    on_host, moved, moved_again, is_same = scene("host")
    assert (on_host, moved, moved_again, is_same) == (0, MATRIX, MATRIX, 1)


def test_activations_kept_for_backward_equal_the_arithmetic(scene: Scene) -> None:
    assert scene("kept")["forward"] == {
        **PARAMETERS,
        "vision activations": 2 * MATRIX,  # the pixels and the tanh
        "projector activations": MATRIX,
        "embedding_and_loss activations": 2 * MATRIX,  # embedded tokens and logits
        "decoder activations": 2 * 2 * MATRIX,
        "experts activations": 2 * 2 * 2 * MATRIX,
    }


@pytest.mark.parametrize("how", ["reentrant", "not reentrant"])
def test_recomputed_experts_keep_nothing_in_forward(scene: Scene, how: str) -> None:
    recomputed = {**scene(how)["forward"], "experts activations": 8 * MATRIX}
    assert "experts activations" not in scene(how)["forward"]
    assert recomputed == scene("kept")["forward"]


@pytest.mark.parametrize("how", ["reentrant", "not reentrant"])
def test_what_recompute_makes_again_belongs_to_its_module(scene: Scene, how: str) -> None:
    peak = scene(how)["peak"]
    assert scene(how)["instant"] == "language_model.decoder.1.mlp.experts backward"
    # The inner matrix once more; its square is used up by then. The reentrant kind holds the output too.
    assert peak["experts activations"] == {"reentrant": 3, "not reentrant": 2}[how] * MATRIX
    assert peak["experts temporary"] == scene("kept")["peak"]["experts temporary"]
    assert "runtime temporary" not in peak


def test_what_a_replayed_group_keeps_for_its_earlier_blocks_is_kept_like_any_activation(scene: Scene) -> None:
    """Also what functions of their own make, as fused kernels do."""
    peak = scene("replayed group")
    assert peak["vision activations"] == 2 * 2 * MATRIX  # of each block the product and its square
    assert peak["vision temporary"] == 2 * MATRIX


def test_what_a_replay_does_outside_of_modules_belongs_to_the_module_that_replays(scene: Scene) -> None:
    """The loss holds its sum and a gradient of one element only."""
    peak = scene("replayed outside")
    assert peak["vision temporary"] >= 8 * MATRIX
    assert peak.get("embedding_and_loss temporary", 0) < MATRIX


def test_a_batch_that_outlives_its_step_is_kept_by_no_module(scene: Scene) -> None:
    kept = scene("kept batches")
    assert kept["after"] == {**PARAMETERS, **GRADIENTS, "runtime activations": kept["kept"]}
    assert kept["retained"] == 2


def test_backward_belongs_to_the_module_that_made_the_node(scene: Scene) -> None:
    kept = scene("kept")
    assert kept["instant"] == "language_model.decoder.1.mlp.experts backward"
    assert kept["peak"]["experts temporary"] == 6 * MATRIX
    assert not [cell for cell in kept["peak"] if cell.startswith("runtime")]


def test_the_cells_of_the_peak_sum_to_its_total(scene: Scene) -> None:
    for how in ("kept", "reentrant", "not reentrant"):
        assert sum(scene(how)["peak"].values()) == scene(how)["peak_bytes"]


def test_the_storages_of_each_summit_are_listed_where_asked_and_sum_to_its_cells(scene: Scene) -> None:
    listed = scene("listed")
    assert listed["unasked"] is None
    assert summed(listed["summits"]["forward"]) == listed["forward_summit"]
    assert summed(listed["summits"]["backward"]) == listed["peak_cells"]
    assert {row["phase"] for row in listed["summits"]["backward"]} >= {"build", "forward", "backward"}


def test_what_forward_hands_to_backward_is_listed_by_module_and_operation(scene: Scene) -> None:
    listed = scene("listed")
    assert summed(listed["start_of_backward"]) == listed["forward_cells"]
    inner = [
        (row["operation"], row["bytes"], row["count"])
        for row in listed["start_of_backward"]
        if row["path"] == "language_model.decoder.1.mlp.experts" and row["category"] == "activations"
    ]
    assert inner == [("aten.mul.Tensor", 2 * MATRIX, 1)]


def summed(rows: list[dict[str, Any]]) -> dict[str, int]:
    cells: dict[str, int] = {}
    for row in rows:
        cell = f"{row['component']} {row['category']}"
        cells[cell] = cells.get(cell, 0) + row["bytes"] * row["count"]
    return cells


def test_only_parameters_and_gradients_are_left_after_backward(scene: Scene) -> None:
    assert scene("kept")["backward"] == {**PARAMETERS, **GRADIENTS}


def test_what_dies_within_forward_was_temporary_at_the_peak(scene: Scene) -> None:
    peak = scene("temporaries")
    assert peak["vision temporary"] == 64 * MATRIX + 512
    assert peak["vision activations"] == MATRIX


def test_adam_keeps_eight_bytes_a_parameter_with_the_parameter_s_component(scene: Scene) -> None:
    states = {cell.replace("gradients", "optimizer_states"): 2 * size for cell, size in GRADIENTS.items()}
    assert scene("optimizer")["gradients"] == {**PARAMETERS, **GRADIENTS}
    assert scene("optimizer")["states"] == {**PARAMETERS, **GRADIENTS, **states}
    assert scene("optimizer")["cleared"] == {**PARAMETERS, **states}


@pytest.mark.parametrize(
    ("when", "component"),
    [("build", "embedding_and_loss"), ("forward", "experts"), ("backward", "embedding_and_loss")],
)
def test_the_capacity_refuses_the_allocation_that_would_exceed_it(
    scene: Scene, when: str, component: str
) -> None:
    refused = scene(f"refused in {when}")
    assert (refused["phase"], refused["component"]) == (when, component)
    assert f"Component {component}" in refused["message"]


def test_a_capacity_that_suffices_refuses_nothing(scene: Scene) -> None:
    assert scene("not refused")["peak"] > 100 * 1024


def test_an_interrupted_module_does_not_stay_on_the_stack(scene: Scene) -> None:
    assert scene("interrupted") == "loss function"


def test_the_parts_of_a_step_sum_to_its_seconds(scene: Scene) -> None:
    played = scene("seconds")
    assert sum(played["parts"].values()) == pytest.approx(sum(played["steps"][1:]) / 2)
    assert {"experts forward", "experts backward", "optimizer step", "vision forward"} <= set(played["parts"])


def test_a_pause_between_synchronisation_and_update_is_idle(scene: Scene) -> None:
    parts = scene("pauses")
    assert parts["idle"] > 0.09
    assert parts["optimizer"] > 0.009


def test_tokens_images_and_padding_are_counted(scene: Scene) -> None:
    counted = scene("batches")
    assert (counted["loss_tokens"], counted["image_tokens"], counted["padding_tokens"]) == (3, 5, 3)
    assert (counted["images"], counted["patches"], counted["real"]) == (2, 24, True)


def test_noise_constant_and_missing_images_are_told_from_real_ones(scene: Scene) -> None:
    counted = scene("batches")
    assert (counted["noise"], counted["gradient"]) == (True, False)
    assert (counted["whole_noise"], counted["whole_shaded"]) == ([2, False], [2, True])
    assert counted["constant"] == ["the images are constant: every pixel has one value"]
    assert counted["text"] == ["no batch held an image"]
    assert counted["unseen"] == ["could not see input_ids in the model's arguments: tokens are not counted"]


def test_the_padding_token_is_found_behind_the_data_iterator(scene: Scene) -> None:
    assert scene("batches")["padding_ids"] == [7, 7, None]


def test_mock_data_is_not_real_and_forced_routing_is_noted(scene: Scene) -> None:
    assert scene("doubtful") == {
        "notes": ["moe_router_force_load_balancing is on: routing is not the router's own"],
        "invalid": [
            "the data is not real: it comes from MockVLMConversationProvider",
            "the data is not real: no batch was seen",
        ],
    }


def test_a_configuration_becomes_plain_data(scene: Scene) -> None:
    plain = scene("configuration")
    assert plain["dtype"] == "torch.bfloat16"
    assert plain["function"] == "torch.nn.functional.silu"
    assert (plain["infinite"], plain["set"], plain["object"]) == ("inf", [1, 2], "builtins.object")
    assert plain["settings"]["_target_"] == "firstbad_probe.settings.Settings"
    assert plain["settings"]["directory"] == "there"


def test_the_full_mode_tells_the_lines_behind_the_peak(scene: Scene) -> None:
    located = scene("located")
    assert sum(row["bytes"] for row in located["rows"]) == located["peak_bytes"]
    of_experts = [
        row for row in located["rows"] if row["component"] == "experts" and row["phase"] == "forward"
    ]
    assert (
        sum(row["bytes"] for row in of_experts) == 8 * MATRIX
    )  # of two layers: the inner matrix, its square
    assert {row["frames"][-1].split(":")[0] for row in of_experts} == {"scenes.py"}
    assert all(row["frames"][-1].endswith("forward") for row in of_experts)
