"""Graph pools, adapters, offloaded layers, dispatcher buffers, packing: each adds what it says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from memory_models.breakdown import Category, Component
from memory_models.estimation import RankEstimate, estimate
from memory_models.job import (
    Adapters,
    Batch,
    Capture,
    Dispatcher,
    Frozen,
    Granularity,
    Graphs,
    Recompute,
    TrainingJob,
)
from memory_models.layout import ParallelLayout
from memory_models.parameters import model_parameters
from memory_models.reading import read_bridge_config
from memory_models.runtime import dispatcher_buffer_bytes
from memory_models.shapes import AttentionShape, TextShape, uniform_layers
from tests.unit.memory_models.bridge_configurations import qwen_recipe
from tests.unit.memory_models.jobs import qwen_30b

GIB = 2**30
IDLE = "idle part of the CUDA graphs' pool"


def captured(job: TrainingJob, capture: Capture, *scopes: str) -> TrainingJob:
    return replace(job, graphs=Graphs(capture=capture, scopes=frozenset(scopes)))


def idle(rank: RankEstimate, instant: str) -> int:
    (found,) = [each for each in rank.instants if each.name == instant and not each.first_step]
    return sum(part.bytes for part in found.parts if part.tensor == IDLE)


def test_a_captured_scope_keeps_its_activations_through_the_optimizer_step() -> None:
    job = qwen_30b()
    rank = estimate(captured(job, Capture.TRANSFORMER_ENGINE, "attn")).worst
    attention = sum(
        part.bytes
        for part in estimate(job).worst.parts
        if part.category is Category.ACTIVATIONS
        and part.tensor in ("query, key and value", "attention output")
    )
    assert idle(rank, "optimizer step") > attention > 0
    assert idle(rank, "loss") == 0


def test_wider_scopes_hold_more() -> None:
    job = qwen_30b()
    router = captured(job, Capture.TRANSFORMER_ENGINE, "moe_router")
    both = captured(job, Capture.TRANSFORMER_ENGINE, "moe_router", "attn")
    whole = captured(job, Capture.FULL_ITERATION)
    sizes = [idle(estimate(some).worst, "optimizer step") for some in (router, both, whole)]
    assert 0 < sizes[0] < sizes[1] < sizes[2]


def test_a_graph_of_the_whole_iteration_reserves_its_activations_twice() -> None:
    job = qwen_30b()
    plain, graph = estimate(job).worst, estimate(captured(job, Capture.FULL_ITERATION)).worst
    activations = plain.breakdown.by_category()[Category.ACTIVATIONS]
    assert graph.fragmentation_bytes - plain.fragmentation_bytes >= activations
    assert plain.device_bytes < graph.device_bytes < 2 * plain.device_bytes


def test_the_first_step_comes_before_the_capture() -> None:
    rank = estimate(captured(qwen_30b(), Capture.FULL_ITERATION)).worst
    assert all(part.tensor != IDLE for each in rank.instants if each.first_step for part in each.parts)


def test_an_unknown_scope_is_refused_with_those_that_exist() -> None:
    with pytest.raises(ValueError, match="moe_preprocess"):
        Graphs(capture=Capture.TRANSFORMER_ENGINE, scopes=frozenset({"everything"}))


def qwen3_8b(**fields: Any) -> TrainingJob:
    """36 layers, TP 2 with sequence parallelism, 8,192 tokens, micro-batches of 2."""
    return TrainingJob(
        text=TextShape(
            hidden_size=4096,
            layers=uniform_layers(36),
            attention=AttentionShape(heads=32, groups=8, head_size=128, qk_norm=True),
            feed_forward_size=12_288,
            vocabulary=151_936,
        ),
        layout=ParallelLayout(world_size=2, tensor=2, sequence_parallel=True),
        batch=Batch(micro=2, total=2, sequence_length=8192),
        frozen=Frozen(language=True, vision=True, projector=True),
        **fields,
    )


def test_gathering_the_adapters_input_again_saves_what_was_measured() -> None:
    kept = estimate(qwen3_8b(adapters=Adapters(rank=32))).worst.allocated_bytes
    again = estimate(qwen3_8b(adapters=Adapters(rank=32, regather=True))).worst.allocated_bytes
    # Measured: 4.73 GB.
    assert (kept - again) / 1e9 == pytest.approx(4.73, rel=0.03)


def test_adapters_train_and_the_rest_does_not() -> None:
    job = qwen3_8b(adapters=Adapters(rank=32, targets=frozenset({"linear_qkv"})))
    rank = estimate(job).worst
    adapter = 36 * 32 * (4096 + 4096 + 2 * 1024)
    bare = model_parameters(replace(job, adapters=None))
    assert model_parameters(job)[Component.DECODER] - bare[Component.DECODER] == adapter
    assert rank.breakdown.by_category()[Category.GRADIENTS] == 4 * adapter // 2
    assert rank.breakdown.by_category()[Category.OPTIMIZER_STATES] == 12 * adapter // 2
    frozen = estimate(replace(job, adapters=None)).worst
    assert rank.allocated_bytes > frozen.allocated_bytes


def test_more_targets_keep_more_inputs() -> None:
    sizes = [
        estimate(qwen3_8b(adapters=Adapters(rank=8, targets=frozenset(names)))).worst.allocated_bytes
        for names in (
            ("linear_proj",),
            ("linear_proj", "linear_qkv"),
            ("linear_proj", "linear_qkv", "linear_fc2"),
        )
    ]
    assert sizes == sorted(sizes)
    assert len(set(sizes)) == 3


def test_a_peft_section_is_lora_over_frozen_parts() -> None:
    config = qwen_recipe() | {
        "peft": {"_target_": "megatron.bridge.peft.lora.LoRA", "dim": 16, "target_modules": ["linear_qkv"]}
    }
    reading = read_bridge_config(config, world_size=32)
    assert reading.job.adapters == Adapters(rank=16, targets=frozenset({"linear_qkv"}))
    assert reading.job.frozen == Frozen(language=True, vision=True, projector=True)
    assert any("peft" in note for note in reading.notes)
    with pytest.raises(ValueError, match="only low-rank adapters"):
        read_bridge_config(qwen_recipe() | {"peft": {"_target_": "x.Prompt"}}, world_size=32)


def test_offloaded_layers_leave_the_card_but_for_the_one_at_work() -> None:
    job = qwen_30b()
    half, most = (replace(job, offloaded_layers=count) for count in (24, 47))
    sizes = [estimate(some).worst.allocated_bytes for some in (job, half, most)]
    assert sizes[0] > sizes[1] > sizes[2]
    assert sizes[0] - sizes[1] > 8 * GIB
    with pytest.raises(ValueError, match="pipeline size 1 and no recompute"):
        replace(job, offloaded_layers=4, recompute=Recompute(granularity=Granularity.FULL))


def test_layer_and_module_offload_are_read_from_a_bridge_configuration() -> None:
    layers = read_bridge_config(
        qwen_recipe(model__cpu_offloading=True, model__cpu_offloading_num_layers=8), world_size=32
    ).job
    assert layers.offloaded_layers == 8
    keys: dict[str, Any] = {
        "model__fine_grained_activation_offloading": True,
        "model__offload_modules": ["moe_act", "expert_fc1"],
    }
    modules = read_bridge_config(qwen_recipe(**keys), world_size=32).job
    assert modules.offload == {"moe_act", "expert_fc1"}
    bare = estimate(read_bridge_config(qwen_recipe(), world_size=32).job).worst
    assert estimate(modules).worst.allocated_bytes < bare.allocated_bytes


@pytest.mark.parametrize(
    ("expert", "hidden", "megabytes"), [(8, 2048, 126), (8, 4096, 210), (8, 7168, 336), (64, 7168, 714)]
)
def test_deepep_buffers_have_their_published_sizes(expert: int, hidden: int, megabytes: int) -> None:
    job = qwen_30b(expert=expert)
    job = replace(
        job,
        text=replace(job.text, hidden_size=hidden),
        routing=replace(job.routing, dispatcher=Dispatcher.FLEX, backend="deepep"),
    )
    assert dispatcher_buffer_bytes(job) / 1e6 == pytest.approx(megabytes, rel=0.01)


def test_buffers_outside_the_allocator_are_no_part_of_its_peak() -> None:
    job = qwen_30b()
    flex = replace(job, routing=replace(job.routing, dispatcher=Dispatcher.FLEX, backend="hybridep"))
    before, after = estimate(job).worst, estimate(flex).worst
    assert after.context_bytes - before.context_bytes == dispatcher_buffer_bytes(flex) > 0
    assert after.allocated_bytes == before.allocated_bytes


def test_packing_adds_its_zeros_where_images_meet_words() -> None:
    job = qwen_30b()
    packed = replace(job, batch=replace(job.batch, packed=True))

    def merging(some: TrainingJob) -> int:
        return next(i.total_bytes for i in estimate(some).worst.instants if i.name == "image embedding")

    assert merging(packed) - merging(job) == 3 * 2 * 4096 * 2048
