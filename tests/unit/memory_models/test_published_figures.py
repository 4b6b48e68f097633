"""Figures that Bridge's own guides publish of large models on H100: none of them was fitted or read off.

Only rows are here whose guide says enough to lay the job out. Two choices it leaves unsaid, and they are as
in Bridge's recipes: Transformer Engine's loss, and Nemotron's gradients in 16 bits (in 32 its first step
would not have ended). "Memory" without a word is what stays after a step.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from memory_models.estimation import RankEstimate, estimate
from memory_models.job import (
    Batch,
    Capture,
    CrossEntropy,
    Dispatcher,
    Granularity,
    Graphs,
    OptimizerSetup,
    Precision,
    Recompute,
    Routing,
    TrainingJob,
)
from memory_models.layout import ParallelLayout
from memory_models.parameters import model_parameters
from memory_models.presets import QWEN3_VL_30B_A3B
from memory_models.shapes import (
    Activation,
    AttentionShape,
    ExpertsShape,
    ImageLoad,
    MambaShape,
    TextShape,
    layers_of_pattern,
)

NO_IMAGES = ImageLoad(patches=0, images=0)
FAST = Precision(gradient_bytes=2)
LOSS = CrossEntropy.TRANSFORMER_ENGINE


def qwen3_30b(*, tensor: int, pipeline: int, expert: int, **fields: object) -> TrainingJob:
    """Qwen3-30B-A3B on 16 H100, sequences of 4,096."""
    layout = ParallelLayout(
        world_size=16, tensor=tensor, pipeline=pipeline, expert=expert, sequence_parallel=tensor > 1
    )
    batch = Batch(micro=1, total=1024, sequence_length=4096, images=NO_IMAGES)
    job = TrainingJob(text=QWEN3_VL_30B_A3B[0], layout=layout, batch=batch, cross_entropy=LOSS)
    return replace(job, **fields)  # type: ignore[arg-type]


def after_a_step(rank: RankEstimate) -> int:
    """What stays: the optimizer's step less what passes in it."""
    (step,) = [instant for instant in rank.instants if instant.name == "optimizer step"]
    return step.total_bytes - sum(p.bytes for p in step.parts if p.tensor.startswith("fp32 gradient"))


@pytest.mark.parametrize(("share", "gigabytes"), [(0.0, 47.2), (0.25, 43.4), (1.0, 31.9)])
def test_offloaded_moments_leave_what_bridges_guide_measured(share: float, gigabytes: float) -> None:
    """skills/nemo-mbridge-perf-cpu-offloading: TP 2, PP 2, EP 4, float gradients; the memory after a step."""
    job = qwen3_30b(tensor=2, pipeline=2, expert=4, optimizer=OptimizerSetup(offload_fraction=share))
    assert after_a_step(estimate(job).ranks[0]) == pytest.approx(gigabytes * 1e9, rel=0.01)


def test_the_peak_with_hidden_exchange_and_router_graphs_is_what_bridges_guide_measured() -> None:
    """skills/nemo-mbridge-perf-expert-parallel-overlap: 62.166 GiB on rank 0, float gradients."""
    job = qwen3_30b(
        tensor=1,
        pipeline=1,
        expert=16,
        routing=Routing(
            dispatcher=Dispatcher.FLEX, backend="hybridep", force_balance=True, exchange_overlap=True
        ),
        graphs=Graphs(capture=Capture.TRANSFORMER_ENGINE, scopes=frozenset({"moe_router", "moe_preprocess"})),
    )
    assert estimate(job).worst.allocated_bytes == pytest.approx(62.166 * 2**30, rel=0.02)


def nemotron_3_nano(*modules: str) -> TrainingJob:
    """Nemotron-3-Nano-30B-A3B on 16 H100, EP 8, sequences of 8,192."""
    layers, _ = layers_of_pattern("MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME")
    text = TextShape(
        hidden_size=2688,
        layers=layers,
        attention=AttentionShape(heads=32, groups=2, head_size=128),
        feed_forward_size=1856,
        vocabulary=131_072,
        experts=ExpertsShape(count=128, top_k=6, size=1856, shared_size=3712, router_bias=True),
        mamba=MambaShape(heads=64, head_size=64, groups=8, state_size=128),
        activation=Activation.SQUARED_RELU,
    )
    granularity = Granularity.SELECTIVE if modules else Granularity.NONE
    return TrainingJob(
        text=text,
        layout=ParallelLayout(world_size=16, expert=8),
        batch=Batch(micro=1, total=16, sequence_length=8192, images=NO_IMAGES),
        recompute=Recompute(granularity=granularity, modules=frozenset(modules)),
        precision=FAST,
        cross_entropy=LOSS,
        graphs=Graphs(capture=Capture.TRANSFORMER_ENGINE, scopes=frozenset({"attn", "mamba"})),
        routing=Routing(dispatcher=Dispatcher.FLEX, backend="hybridep"),
    )


def peak(job: TrainingJob, *, first_step: bool) -> int:
    instants = estimate(job).worst.instants
    return max(i.total_bytes for i in instants if i.first_step == first_step and i.name != "optimizer step")


def test_the_hybrid_has_its_published_parameters() -> None:
    assert sum(model_parameters(nemotron_3_nano()).values()) == pytest.approx(31.6e9, rel=0.002)


@pytest.mark.parametrize(
    ("modules", "first_step", "gigabytes"),
    [
        ((), True, 66.297),
        (("moe_act",), True, 62.103),
        (("moe",), False, 64.653),
        (("moe", "layernorm"), False, 63.639),
    ],
)
def test_the_ladder_of_recompute_is_what_bridges_guide_measured(
    modules: tuple[str, ...], first_step: bool, gigabytes: float
) -> None:
    """skills/nemo-mbridge-perf-activation-recompute: rank 0 after iteration 1, or 2 where it got there."""
    assert peak(nemotron_3_nano(*modules), first_step=first_step) == pytest.approx(gigabytes * 1e9, rel=0.02)


@pytest.mark.parametrize(
    ("before", "after", "first_step", "gigabytes"),
    [((), ("moe_act",), True, 66.297 - 62.103), (("moe",), ("moe", "layernorm"), False, 64.653 - 63.639)],
)
def test_each_step_of_the_ladder_saves_what_was_measured(
    before: tuple[str, ...], after: tuple[str, ...], first_step: bool, gigabytes: float
) -> None:
    peaks = [peak(nemotron_3_nano(*modules), first_step=first_step) for modules in (before, after)]
    assert peaks[0] - peaks[1] == pytest.approx(gigabytes * 1e9, rel=0.02)
