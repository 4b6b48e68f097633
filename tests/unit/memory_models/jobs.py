"""Jobs that the tests of the memory model start from, and a strategy of small legal ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from memory_models.job import (
    ADAPTER_TARGETS,
    OFFLOAD_MODULES,
    Adapters,
    Backend,
    Batch,
    Capture,
    CrossEntropy,
    Dispatcher,
    Frozen,
    Granularity,
    Graphs,
    OptimizerSetup,
    Recompute,
    Sharding,
    TrainingJob,
)
from memory_models.layout import ParallelLayout
from memory_models.presets import QWEN3_VL_30B_A3B
from memory_models.shapes import (
    AttentionShape,
    ExpertsShape,
    ImageLoad,
    TextShape,
    VisionShape,
    uniform_layers,
)
from memory_models.upstream import Change, Upstream

MEGAPIXEL = ImageLoad.of_pixels(1024, 1024)


def qwen_30b(*, world_size: int = 64, micro: int = 1, **layout: int) -> TrainingJob:
    """Qwen3-VL-30B-A3B on EP 8, one picture of 1024 x 1024 a sample."""
    text, vision = QWEN3_VL_30B_A3B
    sizes: dict[str, Any] = {"expert": 8} | layout
    return TrainingJob(
        text=text,
        vision=vision,
        layout=ParallelLayout(world_size=world_size, sequence_parallel=sizes.get("tensor", 1) > 1, **sizes),
        batch=Batch(micro=micro, total=world_size * micro * 2, sequence_length=4096, images=MEGAPIXEL),
    )


@st.composite
def small_jobs(draw: st.DrawFn) -> TrainingJob:
    """A small Qwen3-VL-MoE on some legal layout, batch and recompute."""
    tensor, pipeline, expert = (draw(st.sampled_from((1, 2))) for _ in range(3))
    data = draw(st.sampled_from((2, 4)))
    experts = draw(st.sampled_from((4, 8)))
    modules = draw(st.sets(st.sampled_from(("core_attn", "moe_act", "layernorm", "moe"))))
    text = TextShape(
        hidden_size=128,
        layers=uniform_layers(4, dense_first=draw(st.integers(0, 4)), experts=True),
        attention=AttentionShape(heads=8, groups=2, head_size=16, qk_norm=True),
        feed_forward_size=256,
        vocabulary=1024,
        experts=ExpertsShape(count=experts, top_k=2, size=64, shared_size=draw(st.sampled_from((0, 64)))),
        tied_embeddings=draw(st.booleans()),
    )
    vision = VisionShape(
        depth=3,
        hidden_size=64,
        heads=4,
        feed_forward_size=128,
        patch_size=16,
        temporal_patch=2,
        channels=3,
        positions=64,
        merge=2,
        deepstack=2,
        output_size=128,
        native=draw(st.booleans()),
    )
    micro = draw(st.sampled_from((1, 2)))
    return TrainingJob(
        text=text,
        vision=vision,
        layout=ParallelLayout(
            world_size=tensor * pipeline * data,
            tensor=tensor,
            pipeline=pipeline,
            expert=expert,
            expert_tensor=draw(st.sampled_from((1, tensor))),
            sequence_parallel=tensor > 1,
        ),
        batch=Batch(
            micro=micro,
            total=micro * data * 4,
            sequence_length=256,
            images=ImageLoad(patches=draw(st.sampled_from((64, 256)))),
        ),
        recompute=Recompute(
            granularity=Granularity.SELECTIVE if modules else Granularity.NONE, modules=frozenset(modules)
        ),
        optimizer=OptimizerSetup(distributed=draw(st.booleans())),
    )


@st.composite
def wide_jobs(draw: st.DrawFn) -> TrainingJob:
    """A small job with anything that can be added: sharding, graphs, offload, adapters, exchange."""
    job = draw(small_jobs())
    layout = job.layout
    fields: dict[str, Any] = {
        "routing": replace(
            job.routing,
            dispatcher=draw(st.sampled_from(Dispatcher)),
            imbalance=draw(st.sampled_from((1.0, 1.3))),
            fused_permutation=draw(st.booleans()),
        ),
        "cross_entropy": draw(st.sampled_from(CrossEntropy)),
        "attention": draw(st.sampled_from(Backend)),
        "upstream": Upstream(lacks=frozenset(draw(st.sets(st.sampled_from(Change))))),
        "batch": replace(job.batch, packed=draw(st.booleans())),
    }
    if draw(st.booleans()):
        scopes = draw(st.sets(st.sampled_from(("attn", "mlp", "moe_router", "moe_preprocess"))))
        capture = draw(st.sampled_from((Capture.TRANSFORMER_ENGINE, Capture.FULL_ITERATION)))
        fields["graphs"] = Graphs(capture=capture, scopes=frozenset(scopes))
    if layout.pipeline == 1:
        fields["sharding"] = draw(st.sampled_from(Sharding))
        fields["double_buffer"] = draw(st.booleans())
        if job.recompute.granularity is Granularity.NONE:
            fields["offloaded_layers"] = draw(st.integers(0, 4))
    elif draw(st.booleans()):
        fields["layout"] = replace(layout, virtual_pipeline=2)
        if job.vision is not None:  # deepstack needs its layers on the first chunk
            fields["vision"] = replace(job.vision, deepstack=1)
    if draw(st.booleans()):
        targets = draw(st.sets(st.sampled_from(ADAPTER_TARGETS), min_size=1))
        fields["adapters"] = Adapters(rank=8, targets=frozenset(targets), regather=draw(st.booleans()))
        fields["frozen"] = Frozen(language=True, vision=True, projector=True)
    if draw(st.booleans()):
        fields["offload"] = frozenset(draw(st.sets(st.sampled_from(OFFLOAD_MODULES))))
    return replace(job, **fields)
