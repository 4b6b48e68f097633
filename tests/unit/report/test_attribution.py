"""Which component, which category and which kind: from measured bytes alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bisection.attribution import attribute, choose_measurement, explained_share
from bisection.criteria import CriterionKind
from bisection.headline import growth_words
from bisection.measurement import Measurement, Outcome, Retained
from bisection.regression import Origin, RegressionKind
from memory_models.breakdown import (
    MIB,
    Activity,
    Category,
    Component,
    MemoryBreakdown,
    Phase,
    TimeBreakdown,
)
from tests.unit.report import samples
from tests.unit.report.samples import C, K, PlantedComparison, measurement, peak, refused, steps

PARENT = measurement()


def grown(cell: tuple[Component, Category], mib: float) -> Measurement:
    return measurement(delta={cell: mib})


@pytest.mark.parametrize("component", [c for c in Component if c is not C.RUNTIME])
def test_the_component_whose_activations_grew_is_named(component: Component) -> None:
    regression = attribute(PARENT, grown((component, K.ACTIVATIONS), 33.0))
    assert regression.component is component
    assert regression.category is K.ACTIVATIONS
    assert regression.delta_bytes == regression.component_delta_bytes == 33 * MIB
    assert regression.confidence == "strong"


def test_more_weights_are_a_layout_whatever_follows_them() -> None:
    deeper = measurement(delta={(C.VISION, K.PARAMETERS): 2.0, (C.VISION, K.ACTIVATIONS): 15.0})
    regression = attribute(PARENT, deeper)
    assert regression.kind is RegressionKind.LAYOUT
    assert growth_words(regression) == (
        "vision grew by 17.0 MiB: 2.0 MiB of parameters, gradients and optimizer states, "
        "and the activations that come with them"
    )


@pytest.mark.parametrize("category", [K.GRADIENTS, K.OPTIMIZER_STATES])
def test_more_bytes_for_as_many_weights_are_states(category: Category) -> None:
    regression = attribute(PARENT, grown((C.EXPERTS, category), 20.0))
    assert (regression.kind, regression.category) == (RegressionKind.STATES, category)


def test_the_answer_does_not_depend_on_the_configuration() -> None:
    culprit = grown((C.DECODER, K.ACTIVATIONS), 21.0)
    known = attribute(PARENT, culprit, changed_keys=["a", "b"])
    hidden = attribute(PARENT, culprit, changed_keys=None)
    assert (known.component, known.category, known.kind) == (hidden.component, hidden.category, hidden.kind)
    assert (known.origin, hidden.origin) == (Origin.CONFIGURATION, Origin.UNKNOWN)


def test_more_patches_enter_by_the_vision_tower_though_the_decoder_grows_by_more() -> None:
    regression = attribute(PARENT, samples.larger_images())
    assert regression.by_component[C.DECODER] > regression.by_component[C.VISION]
    assert (regression.component, regression.kind) == (C.VISION, RegressionKind.IMAGE_LOAD)
    assert any("1836 image patches, 1024 before" in sentence for sentence in regression.evidence)


def test_a_few_more_patches_do_not_excuse_experts_that_grew_out_of_proportion() -> None:
    culprit = measurement(delta={(C.EXPERTS, K.ACTIVATIONS): 60.0, (C.VISION, K.ACTIVATIONS): 1.5})
    culprit = culprit.evolve(steps=steps(231 * MIB, patches=1100, image_tokens=275))
    assert attribute(PARENT, culprit).component is C.EXPERTS


def test_more_image_tokens_from_as_many_patches_enter_by_the_projector() -> None:
    culprit = measurement(delta={(C.PROJECTOR, K.ACTIVATIONS): 9.0, (C.DECODER, K.ACTIVATIONS): 30.0}).evolve(
        steps=steps(210 * MIB, image_tokens=1024)
    )
    regression = attribute(PARENT, culprit)
    assert (regression.component, regression.kind) == (C.PROJECTOR, RegressionKind.IMAGE_LOAD)


def test_when_the_peak_moves_to_another_phase_temporaries_do_not_choose_the_component() -> None:
    moved = peak(
        {(C.EMBEDDING_AND_LOSS, K.TEMPORARY): 30.0, (C.VISION, K.ACTIVATIONS): 12.0},
        phase="forward",
        instant="output_layer forward",
    )
    regression = attribute(PARENT, measurement(peak=moved))
    assert regression.component is C.VISION
    assert regression.by_component[C.EMBEDDING_AND_LOSS] == 30 * MIB
    assert any("moved from backward to forward" in sentence for sentence in regression.evidence)


def test_a_peak_that_moved_is_compared_with_the_highest_instant_of_its_new_phase() -> None:
    """Forward ended lower by the decoder's gradients of scores, which backward makes."""
    end = {(C.DECODER, K.ACTIVATIONS): -20.0, (C.EMBEDDING_AND_LOSS, K.TEMPORARY): 4.0}
    parent = PARENT.evolve(summits=(peak(end, phase="forward"), peak()))
    culprit = peak(
        {**end, (C.EMBEDDING_AND_LOSS, K.TEMPORARY): 34.0}, phase="forward", instant="output_layer forward"
    )
    regression = attribute(parent, measurement(peak=culprit))
    assert (regression.component, regression.kind) == (C.EMBEDDING_AND_LOSS, RegressionKind.LOSS)
    assert regression.component_delta_bytes == 30 * MIB
    assert regression.delta_bytes == 14 * MIB == sum(regression.by_component.values())
    assert any("compared within forward" in sentence for sentence in regression.evidence)


def test_within_one_phase_temporaries_count() -> None:
    regression = attribute(PARENT, grown((C.EMBEDDING_AND_LOSS, K.TEMPORARY), 30.0))
    assert (regression.component, regression.kind) == (C.EMBEDDING_AND_LOSS, RegressionKind.LOSS)


def test_temporaries_count_after_a_move_if_nothing_else_grew() -> None:
    moved = peak({(C.EMBEDDING_AND_LOSS, K.TEMPORARY): 30.0}, phase="forward", instant="output_layer forward")
    assert attribute(PARENT, measurement(peak=moved)).component is C.EMBEDDING_AND_LOSS


def test_bytes_that_stay_after_the_step_are_a_retention() -> None:
    culprit = grown((C.EXPERTS, K.ACTIVATIONS), 25.0)
    leaking = culprit.evolve(steps=steps(196 * MIB, growth_mib=8.0))
    kept = culprit.evolve(steps=steps(196 * MIB, retained_mib=120.0))
    assert attribute(PARENT, leaking).kind is RegressionKind.RETENTION
    assert attribute(PARENT, kept).kind is RegressionKind.RETENTION


def kept_after_the_last_step(*cells: tuple[tuple[Component, Category], float]) -> tuple[Retained, ...]:
    rows = {cell: round(count * MIB) for cell, count in (((C.VISION, K.PARAMETERS), 80.0), *cells)}
    return (Retained(step=3, breakdown=MemoryBreakdown(cells=rows)),)


def test_states_that_stay_after_the_step_are_no_retention() -> None:
    """Of the total alone nobody could tell; the cells of what stays do."""
    parent = PARENT.evolve(retained=kept_after_the_last_step())
    culprit = grown((C.EXPERTS, K.ACTIVATIONS), 5.0).evolve(steps=steps(196 * MIB, retained_mib=116.0))
    leak = kept_after_the_last_step(((C.EXPERTS, K.ACTIVATIONS), 20.0))
    states = kept_after_the_last_step(((C.EXPERTS, K.OPTIMIZER_STATES), 20.0))
    assert attribute(parent, culprit.evolve(retained=leak)).kind is RegressionKind.RETENTION
    assert attribute(parent, culprit.evolve(retained=states)).kind is RegressionKind.STATES


def test_what_stays_from_one_step_on_a_gpu_is_a_captured_graph() -> None:
    parent = PARENT.evolve(device="cuda")
    culprit = grown((C.RUNTIME, K.TEMPORARY), 30.0).evolve(device="cuda")
    rows = steps(201 * MIB)
    captured = tuple(
        replace(row, retained_bytes=row.retained_bytes + 30 * MIB * (row.step >= 2)) for row in rows
    )
    assert attribute(parent, culprit.evolve(steps=captured)).kind is RegressionKind.GRAPH_CAPTURE
    at_once = culprit.evolve(steps=steps(201 * MIB, retained_mib=126.0))
    graphs = ["model.cuda_graph_impl"]
    assert attribute(parent, at_once, changed_keys=graphs).kind is RegressionKind.GRAPH_CAPTURE
    assert attribute(parent, at_once, changed_keys=[]).kind is RegressionKind.RETENTION
    leaking = culprit.evolve(steps=steps(201 * MIB, growth_mib=10.0))
    assert attribute(parent, leaking).kind is RegressionKind.RETENTION


def test_a_peak_that_grew_in_the_first_step_alone_is_a_first_step() -> None:
    first = peak({(C.DECODER, K.ACTIVATIONS): 40.0}, step=0)
    base = PARENT.peak
    assert base is not None
    rows = steps(base.allocated_bytes)
    high = type(rows[0])(**{**rows[0].__dict__, "peak_bytes": first.allocated_bytes})
    regression = attribute(PARENT, measurement(peak=first, steps=(high, *rows[1:])))
    assert regression.kind is RegressionKind.FIRST_STEP


def test_experts_whose_peak_swings_at_equal_tokens_are_unevenly_loaded() -> None:
    culprit = grown((C.EXPERTS, K.ACTIVATIONS), 25.0).evolve(steps=steps(196 * MIB, swing_mib=20.0))
    assert attribute(PARENT, culprit).kind is RegressionKind.IMBALANCE


def loaded(measured: Measurement, rank: float, expert: float = 0.0) -> Measurement:
    return measured.evolve(
        steps=tuple(replace(row, rank_load=rank, expert_load=expert) for row in measured.steps)
    )


def test_a_rank_whose_experts_get_more_of_the_tokens_keeps_more_for_backward() -> None:
    culprit = grown((C.EXPERTS, K.ACTIVATIONS), 15.0)
    regression = attribute(loaded(PARENT, 1.05), loaded(culprit, 1.9))
    assert (regression.component, regression.kind) == (C.EXPERTS, RegressionKind.IMBALANCE)
    assert any("busiest rank gets 1.90 times the mean" in text for text in regression.evidence)


def test_an_expert_that_gets_more_of_the_tokens_needs_more_at_once() -> None:
    working = measurement(delta={(C.EXPERTS, K.TEMPORARY): 10.0})
    culprit = measurement(delta={(C.EXPERTS, K.TEMPORARY): 30.0})
    alone = attribute(loaded(working, 1.0, 1.1), loaded(culprit, 1.0, 3.3))
    assert alone.kind is RegressionKind.IMBALANCE
    assert any("busiest expert gets 3.30 times the mean" in text for text in alone.evidence)
    kept = grown((C.EXPERTS, K.ACTIVATIONS), 20.0)
    assert attribute(loaded(PARENT, 1.0, 1.1), loaded(kept, 1.0, 3.3)).kind is RegressionKind.ACTIVATIONS


def test_a_spread_that_explains_little_of_the_growth_is_not_its_kind() -> None:
    """18.7 MiB of activations, and a tenth more tokens on the busiest rank."""
    culprit = grown((C.EXPERTS, K.ACTIVATIONS), 15.0)
    assert attribute(loaded(PARENT, 1.0), loaded(culprit, 1.1)).kind is RegressionKind.ACTIVATIONS


def test_reserved_bytes_that_allocated_ones_do_not_explain_are_fragmentation() -> None:
    culprit = measurement(peak=peak({(C.DECODER, K.ACTIVATIONS): 1.0}, unusable=60.0), device="cuda")
    regression = attribute(PARENT.evolve(device="cuda"), culprit)
    assert (regression.component, regression.category) == (C.RUNTIME, K.FRAGMENTATION)
    assert regression.category_delta_bytes == 60 * MIB
    assert regression.delta_bytes == 61 * MIB


def test_growth_in_no_module_after_moving_only_pins_is_the_environments() -> None:
    culprit = grown((C.RUNTIME, K.CONTEXT), 18.0)
    assert attribute(PARENT, culprit, changed_keys=[], pins_moved=True).kind is RegressionKind.ENVIRONMENT
    assert attribute(PARENT, culprit, changed_keys=[]).kind is RegressionKind.ACTIVATIONS


def test_components_that_grew_alike_are_told_and_lower_the_claim() -> None:
    culprit = measurement(delta={(C.EXPERTS, K.ACTIVATIONS): 20.0, (C.DECODER, K.ACTIVATIONS): 19.5})
    regression = attribute(PARENT, culprit)
    assert regression.component is C.EXPERTS
    assert regression.confidence == "moderate"
    assert any("decoder grew by nearly as much" in sentence for sentence in regression.evidence)


def test_a_whole_peak_is_chosen_over_a_truncated_one_whatever_the_order() -> None:
    whole = measurement(delta=samples.EXPERTS_DELTA)
    cut = refused("0" * 40, samples.EXPERTS_DELTA)
    assert choose_measurement([cut, whole, cut]) is whole
    assert choose_measurement([cut]) is cut
    assert choose_measurement([]) is None


def test_a_truncated_peak_still_names_the_component_and_says_that_it_is_a_lower_bound() -> None:
    regression = attribute(PARENT, refused("0" * 40, samples.EXPERTS_DELTA))
    assert regression.component is C.EXPERTS
    assert regression.truncated
    assert regression.confidence != "strong"
    assert any("lower bound" in sentence for sentence in regression.evidence)


def test_a_difference_below_the_grain_is_a_weak_claim() -> None:
    assert attribute(PARENT, grown((C.EXPERTS, K.ACTIVATIONS), 0.1)).confidence == "weak"


def test_slower_dispatch_is_named_in_seconds() -> None:
    slow = {**samples.BASE_TIME, (Activity.DISPATCH, Phase.BACKWARD): 0.323}
    regression = attribute(
        PARENT, measurement(time=TimeBreakdown(cells=slow)), criterion=CriterionKind.THROUGHPUT
    )
    assert (regression.kind, regression.activity) == (RegressionKind.THROUGHPUT, Activity.DISPATCH)
    assert regression.phase == "backward"
    assert regression.delta_seconds == pytest.approx(0.3)
    assert regression.delta_bytes is None


def test_a_slower_machine_is_nobodys_fault_and_a_slower_activity_on_it_still_is() -> None:
    throughput = CriterionKind.THROUGHPUT
    pace = {part: 1.6 * seconds for part, seconds in samples.BASE_TIME.items()}
    slow = {**pace, (Activity.DISPATCH, Phase.FORWARD): 0.12}
    regression = attribute(PARENT, measurement(time=TimeBreakdown(cells=slow)), criterion=throughput)
    assert regression.activity is Activity.DISPATCH
    assert regression.confidence == "strong"
    assert any("1.60 times as long" in sentence for sentence in regression.evidence)
    alone = attribute(PARENT, measurement(time=TimeBreakdown(cells=pace)), criterion=throughput)
    assert alone.confidence == "weak"


def test_a_faster_machine_does_not_hide_a_slower_activity() -> None:
    pace = {part: 0.5 * seconds for part, seconds in samples.BASE_TIME.items()}
    culprit = measurement(time=TimeBreakdown(cells={**pace, (Activity.EXPERTS, Phase.BACKWARD): 0.09}))
    regression = attribute(PARENT, culprit, criterion=CriterionKind.THROUGHPUT)
    assert regression.activity is Activity.EXPERTS


def test_fewer_useful_tokens_at_equal_seconds_are_the_datas() -> None:
    culprit = measurement(steps=steps(171 * MIB, image_tokens=64, patches=256))
    regression = attribute(PARENT, culprit, criterion=CriterionKind.THROUGHPUT)
    assert regression.activity is Activity.DATA


def test_a_crash_has_no_bytes_but_its_signature() -> None:
    crashed = Measurement(
        outcome=Outcome.CRASHED,
        state=PARENT.state,
        device="cpu",
        signature="TypeError bridge.vlm_step:forward",
    )
    regression = attribute(PARENT, crashed, criterion=CriterionKind.CRASH)
    assert (regression.kind, regression.component) == (RegressionKind.FAILURE, None)
    assert "TypeError bridge.vlm_step:forward" in regression.evidence[0]


def test_measurements_of_two_devices_do_not_compare() -> None:
    with pytest.raises(ValueError, match="on one kind of device"):
        attribute(PARENT, PARENT.evolve(device="cuda"))


def test_the_explained_share_is_one_only_for_the_right_component() -> None:
    measured = {C.EXPERTS: 40 * MIB}
    assert explained_share(measured, {(C.EXPERTS, K.ACTIVATIONS): 40 * MIB}) == 1.0
    assert explained_share(measured, {(C.EXPERTS, K.ACTIVATIONS): 30 * MIB}) == 0.75
    assert explained_share(measured, {(C.VISION, K.ACTIVATIONS): 40 * MIB}) == 0.0
    assert explained_share({C.EXPERTS: 0}, {}) is None


def test_without_a_model_no_share_is_claimed() -> None:
    culprit = grown((C.EXPERTS, K.ACTIVATIONS), 20.0)
    assert attribute(PARENT, culprit).explained_share is None
    planted = PlantedComparison(delta={(C.EXPERTS, K.ACTIVATIONS): 10 * MIB})
    assert attribute(PARENT, culprit, comparison=planted).explained_share == pytest.approx(0.5)


@settings(deadline=None)
@given(
    st.dictionaries(
        st.tuples(st.sampled_from(Component), st.sampled_from([K.PARAMETERS, K.ACTIVATIONS, K.TEMPORARY])),
        st.floats(min_value=0, max_value=80),
        max_size=8,
    )
)
def test_the_components_deltas_always_sum_to_the_peaks(
    delta: dict[tuple[Component, Category], float],
) -> None:
    regression = attribute(PARENT, measurement(delta=delta))
    assert sum(regression.by_component.values()) == regression.delta_bytes
    assert sum(cell.delta_bytes for cell in regression.cells) == regression.delta_bytes


@pytest.mark.parametrize("outcome", [Outcome.CRASHED, Outcome.INVALID, Outcome.TIMED_OUT])
def test_only_a_refused_allocation_cuts_a_peak_off(outcome: Outcome) -> None:
    whole = samples.measurement(delta=samples.EXPERTS_DELTA)
    regression = attribute(samples.measurement(), whole.evolve(outcome=outcome))
    assert not regression.truncated
    assert not any("refused" in sentence for sentence in regression.evidence)
    assert any(f"ended {outcome.value.replace('_', ' ')}" in sentence for sentence in regression.evidence)
    assert regression.confidence == "moderate"
    assert attribute(samples.measurement(), whole).confidence == "strong"
