"""The steps once a job fits: another layout if it pays, larger micro-batches, kernels.

Each is gated by the same loss at more speed, one change at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from memory_models.advice_step import Advice, Size
from memory_models.costs import EXCHANGE_SHARE, bubble, tensor_cost
from memory_models.job import Capture, Card, Dispatcher, Granularity, Graphs, Recompute, Sharding, TrainingJob
from memory_models.layout import ParallelLayout
from memory_models.legality import graph_scope_refusal
from memory_models.proposals_kernels import GRAPH_REGISTER, NARROW_SCOPES

#: Tokens of a sequence that one context-parallel rank takes well (practice: CP about s / 4096).
TOKENS_PER_CONTEXT_RANK = 4096
#: Without this variable HybridEP cannot know which ranks share a fast link.
TOPOLOGY_VARIABLE = "NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN"
#: How a speed-up is accepted: short runs hide routers that drift (steps 10 to 19 alike, 30 to 49 not).
ACCEPTANCE = "at the same loss, over 50 steps, with nothing else changed"


def three_dimensions(job: TrainingJob, sharded: TrainingJob, size: Size, room: float) -> Iterator[Advice]:
    """A layout without FSDP, if one fits with less recompute than FSDP needed, or with as little."""
    best: tuple[float, TrainingJob] | None = None
    for layout in layouts(job):
        for recompute in (Recompute(), sharded.recompute):
            try:
                candidate = replace(
                    job,
                    layout=layout,
                    sharding=Sharding.NONE,
                    recompute=recompute,
                    expandable_segments=True,
                    optimizer=replace(job.optimizer, distributed=True),
                )
                if size(candidate) > room:
                    continue
            except ValueError:
                continue
            cost = _layout_cost(candidate)
            if best is None or cost < best[0]:
                best = (cost, candidate)
    if best is None:
        return
    chosen = best[1]
    layout = chosen.layout
    ranks = {"tp": layout.tensor, "pp": layout.pipeline, "cp": layout.context, "ep": layout.expert}
    granularity, modules = chosen.recompute.granularity, chosen.recompute.modules
    yield Advice(
        title="Then " + ", ".join(f"{name} {count}" for name, count in ranks.items()),
        change={
            "model.tensor_model_parallel_size": chosen.layout.tensor,
            "model.pipeline_model_parallel_size": chosen.layout.pipeline,
            "model.context_parallel_size": chosen.layout.context,
            "model.expert_model_parallel_size": chosen.layout.expert,
            "model.expert_tensor_parallel_size": chosen.layout.expert_tensor,
            "ddp.use_megatron_fsdp": False,
            "ddp.use_distributed_optimizer": True,
            "model.recompute_granularity": None if granularity is Granularity.NONE else granularity.value,
        }
        | ({"model.recompute_modules": sorted(modules)} if granularity is Granularity.SELECTIVE else {}),
        gate=f"faster than FSDP {ACCEPTANCE}",
        reason="FSDP gathers the weights for every micro-batch; this is the cheapest layout whose estimate "
        "leaves the margin, tensor ranks, pipeline bubbles and recompute counted against it",
        estimate_bytes=size(chosen),
        fits=True,
    )


def layouts(job: TrainingJob) -> Iterator[ParallelLayout]:
    """Layouts worth trying. Experts are spread, not split: ETP is for where spreading does not suffice."""
    world, experts = job.layout.world_size, job.text.experts
    contexts = sorted({1, max(1, job.batch.sequence_length // TOKENS_PER_CONTEXT_RANK)})
    sizes = [size for size in (1, 2, 4, 8, 16, 32, 64, 128) if size <= world]
    experts_over = [size for size in sizes if experts is None or experts.count % size == 0]
    dimensions = product(
        [size for size in sizes if size <= 8],
        [size for size in sizes if size <= 16],
        contexts,
        experts_over if job.text.has_experts else [1],
    )
    for tensor, pipeline, context, expert in dimensions:
        try:
            yield ParallelLayout(
                world_size=world,
                tensor=tensor,
                pipeline=pipeline,
                context=context,
                expert=expert,
                sequence_parallel=tensor > 1,
            )
        except ValueError:
            continue


def _layout_cost(job: TrainingJob) -> float:
    """Share of a step lost to tensor ranks, bubbles, expert exchange and recompute (formulas, section 9)."""
    layout = job.layout
    exchange = EXCHANGE_SHARE / 2 * (1 - 1 / layout.expert)
    again = {Granularity.NONE: 0.0, Granularity.SELECTIVE: 0.15, Granularity.FULL: 1 / 3}
    recompute = again[job.recompute.granularity]
    return tensor_cost(layout.tensor) + bubble(job) + exchange + recompute


def kernels(job: TrainingJob, current: TrainingJob, size: Size, room: float) -> Iterator[Advice]:
    """Dispatcher and CUDA graphs: speed, once everything else stands; estimated on what it stands on."""
    if not job.text.has_experts:
        return
    if job.card is Card.BLACKWELL:
        routing = replace(current.routing, dispatcher=Dispatcher.FLEX, backend="hybridep")
        flex = size(replace(current, routing=routing))
        yield Advice(
            title="Exchange tokens with HybridEP",
            change={
                "model.moe_token_dispatcher_type": Dispatcher.FLEX.value,
                "model.moe_flex_dispatcher_backend": "hybridep",
                f"env_vars.{TOPOLOGY_VARIABLE}": "ranks that share NVLink",
            },
            gate=f"{TOPOLOGY_VARIABLE} holds the ranks of one NVLink domain; else alltoall stays",
            reason="the default on GB200-class systems; its buffers lie outside the allocator",
            estimate_bytes=flex,
            fits=flex <= room,
        )
    elif job.routing.dispatcher is Dispatcher.ALLGATHER:
        spread = size(replace(current, routing=replace(current.routing, dispatcher=Dispatcher.ALLTOALL)))
        yield Advice(
            title="Exchange tokens with alltoall",
            change={"model.moe_token_dispatcher_type": Dispatcher.ALLTOALL.value},
            gate="the same loss",
            reason="allgather hands every rank the tokens of all expert ranks",
            estimate_bytes=spread,
            fits=spread <= room,
        )
    yield from _overlap(current, size, room)
    if current.recompute.granularity is not Granularity.FULL and not graph_scope_refusal(
        current, frozenset(NARROW_SCOPES)
    ):
        scopes = frozenset(NARROW_SCOPES)
        graphs = size(replace(current, graphs=Graphs(capture=Capture.TRANSFORMER_ENGINE, scopes=scopes)))
        yield Advice(
            title="Capture the router in CUDA graphs",
            change={
                "model.cuda_graph_impl": "transformer_engine",
                "model.cuda_graph_modules": list(NARROW_SCOPES),
            }
            | GRAPH_REGISTER,
            gate="steps beyond the warm-up of the capture, at least six: its pools come on top of the peak",
            reason="narrow first: attn does not work inside Qwen3VLModel, and wider scopes hold gigabytes",
            estimate_bytes=graphs,
            fits=graphs <= room,
        )


def _overlap(job: TrainingJob, size: Size, room: float) -> Iterator[Advice]:
    """The experts' exchange behind the work of another micro-batch, where nothing refuses it."""
    layout, modules = job.layout, job.recompute.modules
    recomputes = job.recompute.granularity is Granularity.FULL or job.recompute.drops("moe")
    shared = job.recompute.drops("shared_experts") and "shared_experts" in modules
    alone = layout.pipeline > 1 and layout.virtual_pipeline == 1
    if layout.expert == 1 or job.routing.exchange_overlap or recomputes or shared or alone:
        return
    routing = replace(job.routing, exchange_overlap=True, shared_overlap=False)
    needed = size(replace(job, routing=routing))
    yield Advice(
        title="Hide the experts' exchange behind the next micro-batch",
        change={
            "model.overlap_moe_expert_parallel_comm": True,
            "model.moe_shared_expert_overlap": False,
        },
        gate=f"faster {ACCEPTANCE}; steps that look alike at first may part after thirty",
        reason="measured: 24.7 to 21.0 s at the same peak. It refuses recompute of all layers and of moe, "
        "the shared experts' own overlap, and pipeline stages without virtual ones",
        estimate_bytes=needed,
        fits=needed <= room,
    )


def micro_batches(job: TrainingJob, size: Size, room: float) -> Iterator[Advice]:
    """Larger micro-batches, as far as they fit: larger products, and fewer of them."""
    micro, largest = job.batch.micro, None
    while True:
        micro *= 2
        if job.batch.total % (micro * job.layout.data):
            break
        larger = replace(job, batch=replace(job.batch, micro=micro))
        if size(larger) > room:
            break
        largest = larger
    if largest is None:
        return
    yield Advice(
        title=f"Sweep micro-batches up to {largest.batch.micro}",
        change={"train.micro_batch_size": largest.batch.micro},
        gate=f"more useful tokens a second {ACCEPTANCE}",
        reason="the same global batch in fewer, larger products; the largest that the estimate lets fit",
        estimate_bytes=size(largest),
        fits=True,
    )


def frozen_tower(job: TrainingJob, size: Size, room: float) -> Iterator[Advice]:
    """For work on the decoder alone; what is learned is no longer the same."""
    if job.vision is None or job.frozen.vision or not job.patches:
        return
    needed = size(replace(job, frozen=replace(job.frozen, vision=True)))
    yield Advice(
        title="Freeze the vision tower while only the decoder is worked on",
        change={"model.freeze_vision_model": True},
        gate="figures of such runs are told apart: they say nothing about full fine-tuning",
        reason="no graph passes the tower: neither its activations nor its states are kept",
        estimate_bytes=needed,
        fits=needed <= room,
    )
