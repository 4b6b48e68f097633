"""Regressions that happened upstream and that the configurations decide: component, key and direction.

Each says where it happened. What was measured then is asserted where it is known.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from memory_models.breakdown import Category, Component
from memory_models.comparison import Comparison, compare
from memory_models.configurations import read_configuration
from memory_models.estimation import estimate
from memory_models.job import (
    Batch,
    Capture,
    Card,
    CrossEntropy,
    Granularity,
    Graphs,
    Precision,
    Recompute,
    Routing,
    Sharding,
    TrainingJob,
)
from memory_models.layout import ParallelLayout
from memory_models.remedies import find_remedies
from memory_models.shapes import (
    AttentionShape,
    ExpertsShape,
    FeedForward,
    GatedDeltaShape,
    ImageLoad,
    Layer,
    Mixer,
    TextShape,
    VisionShape,
)
from memory_models.upstream import Change, Upstream
from tests.unit.memory_models.bridge_configurations import qwen_recipe
from tests.unit.memory_models.jobs import qwen_30b

GIB = 2**30
H100 = 79 * GIB
B200 = 180 * 10**9


def keys(answer: Comparison) -> list[str]:
    return [effect.key for effect in answer.keys]


def largest(answer: Comparison) -> tuple[Component, Category]:
    return max(answer.delta, key=lambda cell: answer.delta[cell])


def qwen35_vl_35b(**fields: Any) -> TrainingJob:
    """Qwen3.5-VL-35B-A3B, full fine-tuning with Megatron FSDP on 16 H100, [4096, 1] tokens."""
    layers = tuple(
        Layer(
            mixer=Mixer.GATED_DELTA if (index + 1) % 4 else Mixer.ATTENTION, feed_forward=FeedForward.EXPERTS
        )
        for index in range(40)
    )
    text = TextShape(
        hidden_size=2048,
        layers=layers,
        attention=AttentionShape(heads=16, groups=2, head_size=256, qk_norm=True, output_gate=True),
        feed_forward_size=2048,
        vocabulary=248_320,
        experts=ExpertsShape(count=256, top_k=8, size=512, shared_size=512, shared_gate=True),
        gated_delta=GatedDeltaShape(key_heads=16, value_heads=32, key_size=128, value_size=128),
    )
    held: dict[str, Any] = {
        "cross_entropy": CrossEntropy.NATIVE,
        "sharding": Sharding.EVERYTHING,
        "double_buffer": True,
        "upstream": Upstream(lacks=frozenset({Change.UNIT_CAP})),
    }
    return TrainingJob(
        text=text,
        vision=VisionShape(
            depth=27,
            hidden_size=1152,
            heads=16,
            feed_forward_size=4304,
            patch_size=16,
            temporal_patch=2,
            channels=3,
            positions=2304,
            merge=2,
            deepstack=0,
            output_size=2048,
        ),
        layout=ParallelLayout(world_size=16, expert=2),
        batch=Batch(micro=1, total=32, sequence_length=4096, images=ImageLoad.of_pixels(448, 448)),
        **held | fields,
    )


def test_row_1_fsdp_defaults_of_qwen35_did_not_fit_and_the_two_fixes_together_do() -> None:
    """Bridge #5508: native loss and no recompute; the loss alone made a float buffer of 3.79 GiB."""
    bad = qwen35_vl_35b()
    good = replace(
        bad,
        cross_entropy=CrossEntropy.TRANSFORMER_ENGINE,
        recompute=Recompute(granularity=Granularity.FULL),
    )
    assert estimate(bad).worst.device_bytes > H100 > estimate(good).worst.device_bytes
    answer = compare(good, bad)
    assert set(keys(answer)) >= {"model.recompute_granularity", "model.cross_entropy_fusion_impl"}
    by_key = {effect.key: effect.delta_bytes for effect in answer.keys}
    assert by_key["model.cross_entropy_fusion_impl"] == 2 * 4 * 4096 * 248_320
    assert pytest.approx(3.79, abs=0.01) == 4 * 4096 * 248_320 / GIB
    assert estimate(bad).worst.instant == "loss"


def test_row_1_the_remedies_name_both_fixes() -> None:
    offered = {key for r in find_remedies(qwen35_vl_35b(), H100) if r.legal for key in r.change}
    assert {"model.cross_entropy_fusion_impl", "model.recompute_granularity"} <= offered


def test_row_2_a_lost_auxiliary_loss_is_told_for_nothing_balances_the_router_then() -> None:
    """Bridge #4909: moe_aux_loss_coeff went from 1e-4 to 0; steps slowed down only after 30 of them."""
    good = read_configuration(qwen_recipe(model__moe_aux_loss_coeff=1e-4), world_size=32)
    bad = read_configuration(qwen_recipe(model__moe_aux_loss_coeff=0), world_size=32)
    assert not any("router balanced" in note for note in good.notes)
    assert any("router balanced" in note for note in bad.notes)
    uneven = replace(bad.job, routing=replace(bad.job.routing, imbalance=1.5))
    assert largest(compare(good.job, uneven))[0] is Component.EXPERTS


def qwen3_30b_text(**fields: Any) -> TrainingJob:
    job = qwen_30b(world_size=8)
    images = ImageLoad(patches=0, images=0)
    return replace(job, vision=None, card=Card.BLACKWELL, batch=replace(job.batch, images=images), **fields)


def test_row_4_a_graph_of_the_whole_iteration_does_not_fit_where_the_eager_run_did() -> None:
    """Bridge #5061: Qwen3-30B on B200 out of memory at every workable configuration."""
    good = qwen3_30b_text(precision=Precision(fp8=True, fp8_recipe="mxfp8", fp8_parameters=True))
    good = replace(good, batch=replace(good.batch, micro=2, total=32))
    bad = replace(good, graphs=Graphs(capture=Capture.FULL_ITERATION))
    assert estimate(good).worst.device_bytes < B200 < estimate(bad).worst.device_bytes
    answer = compare(good, bad)
    assert keys(answer) == ["model.cuda_graph_impl"]
    assert answer.keys[0].device_delta_bytes == answer.device_delta_bytes > 20 * GIB
    narrower = [r for r in find_remedies(bad, B200) if r.fits and "CUDA graphs" in r.title]
    assert narrower


def test_row_5_twice_the_micro_batch_doubles_what_is_kept() -> None:
    """Bridge #5499: MBS 8 in the VR200 recipe of Qwen3-30B with MXFP8, back to 4."""
    precision = Precision(fp8=True, fp8_recipe="mxfp8", fp8_parameters=True)
    good = qwen3_30b_text(precision=precision)
    good = replace(good, batch=replace(good.batch, micro=4, total=64))
    bad = replace(good, batch=replace(good.batch, micro=8))
    answer = compare(good, bad)
    assert keys(answer) == ["train.micro_batch_size"]
    assert largest(answer) == (Component.EXPERTS, Category.ACTIVATIONS)
    kept = answer.before.worst.breakdown.by_category()[Category.ACTIVATIONS]
    grown = sum(b for (_, category), b in answer.delta.items() if category is Category.ACTIVATIONS)
    assert grown == pytest.approx(kept, rel=0.01)


def test_row_9_full_recompute_kept_the_rows_of_the_combine_until_the_next_step() -> None:
    """Megatron-LM #3221 and #5197, verl #5251 with Qwen3-VL-30B: alltoall under full recompute."""
    job = replace(qwen_30b(), recompute=Recompute(granularity=Granularity.FULL))
    fixed = replace(job, routing=replace(job.routing, fused_permutation=False))
    latent = replace(fixed, upstream=Upstream(lacks=frozenset({Change.DISPATCH_RELEASED})))
    answer = compare(fixed, latent)
    assert keys(answer) == ["upstream"]
    assert {component for component, _ in answer.delta} == {Component.EXPERTS}
    assert answer.delta_bytes == 48 * 2 * 4096 * 8 * 2048


def test_row_10_leaving_transformer_engines_loss_makes_float_logits() -> None:
    """Megatron-LM #5115: te refused, so recipes fell back to native."""
    te = read_configuration(qwen_recipe(), world_size=32).job
    native = read_configuration(qwen_recipe(model__cross_entropy_fusion_impl="native"), world_size=32).job
    answer = compare(te, native)
    assert keys(answer) == ["model.cross_entropy_fusion_impl"]
    assert {component for component, _ in answer.delta} == {Component.EMBEDDING_AND_LOSS}
    assert answer.delta_bytes == 2 * 4 * 4096 * 151_936


def test_row_12_a_missing_allocator_variable_grows_the_card_and_not_the_allocators_figure() -> None:
    """Bridge #4587: run_script.py without PerfEnvPlugin lost PYTORCH_CUDA_ALLOC_CONF."""
    config = qwen_recipe() | {"env_vars": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}}
    good, bad = (read_configuration(some, world_size=32).job for some in (config, qwen_recipe()))
    answer = compare(good, bad)
    assert keys(answer) == ["env_vars.PYTORCH_CUDA_ALLOC_CONF"]
    assert answer.delta_bytes == 0 < 2 * GIB < answer.device_delta_bytes


def test_row_15_an_unset_expert_tensor_size_that_became_1_multiplies_expert_weights_by_tp() -> None:
    """Bridge #4579: weights and gradients times TP, Adam's part unchanged, dispatched rows over TP."""
    config = qwen_recipe(model__expert_tensor_parallel_size=None, model__tensor_model_parallel_size=2)
    before, after = (
        read_configuration(config, world_size=32, versions={"megatron-bridge": day}).job
        for day in ("2026-06-30", "2026-07-01")
    )
    answer = compare(before, after)
    assert keys(answer)[0] == "model.expert_tensor_parallel_size"
    assert largest(answer)[0] is Component.EXPERTS
    old, new = (side.worst.breakdown.cells for side in (answer.before, answer.after))

    def experts(category: Category) -> float:
        return new[Component.EXPERTS, category] / old[Component.EXPERTS, category]

    # The router is no expert's: a share of a percent does not double.
    assert experts(Category.PARAMETERS) == pytest.approx(2, rel=0.01)
    assert experts(Category.GRADIENTS) == pytest.approx(2, rel=0.01)
    assert experts(Category.OPTIMIZER_STATES) == pytest.approx(1, rel=0.01)
    rows = [
        next(part.bytes for part in side.worst.parts if part.tensor == "routed input")
        for side in (answer.before, answer.after)
    ]
    assert rows[0] == 2 * rows[1]


def test_row_27_leaving_token_drop_lets_memory_follow_the_router() -> None:
    """Bridge #1998: between 25.09 and 25.11 Qwen3-30B went from dropped tokens to dropless."""
    routing = Routing(capacity_factor=1.0, pad_to_capacity=True, imbalance=1.3)
    good = qwen3_30b_text(routing=routing)
    bad = replace(good, routing=replace(routing, capacity_factor=None, pad_to_capacity=False))
    answer = compare(good, bad)
    assert "model.moe_expert_capacity_factor" in keys(answer)
    assert {component for component, _ in answer.delta} == {Component.EXPERTS}
    assert answer.delta_bytes > 2 * GIB


def test_a_recipe_whose_name_says_8_gpus_does_not_fit_8_of_80_gb() -> None:
    """qwen3_vl_30b_a3b_sft_8gpu as shipped: its states alone fill the card, and remedies say so."""
    reading = read_configuration(
        qwen_recipe(train__micro_batch_size=2, train__global_batch_size=32), world_size=8
    )
    worst = estimate(reading.job).worst
    states = sum(
        worst.breakdown.by_category()[category]
        for category in (Category.PARAMETERS, Category.GRADIENTS, Category.OPTIMIZER_STATES)
    )
    assert states / GIB == pytest.approx(75.3, abs=0.1)
    assert worst.device_bytes > H100
