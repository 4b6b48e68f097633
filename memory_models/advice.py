"""The practice that the field has, as steps with a gate each: how to bring a job up and speed it up.

FSDP first; real data that stays stable; selective recompute once it fits; then a layout with
tensor and pipeline ranks, if its estimated headroom pays. Every step carries the
configuration, the estimate and the reason; what a step promises is estimated anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from memory_models.calibration import DEFAULT, Calibration
from memory_models.costs import EXCHANGE_SHARE, bubble, tensor_cost
from memory_models.estimation import estimate
from memory_models.job import (
    Capture,
    Card,
    Dispatcher,
    Granularity,
    Graphs,
    Recompute,
    Sharding,
    TrainingJob,
)
from memory_models.layout import ParallelLayout
from memory_models.proposal import MARGIN
from memory_models.proposals_kernels import NARROW_SCOPES
from memory_models.proposals_recompute import selective_proposals

#: Tokens of a sequence that one context-parallel rank takes well (practice: CP about s / 4096).
TOKENS_PER_CONTEXT_RANK = 4096
#: Without this variable HybridEP cannot know which ranks share a fast link.
TOPOLOGY_VARIABLE = "NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN"


@dataclass(frozen=True, kw_only=True)
class Advice:
    """One step: what to set, what has to hold before the next, and why."""

    title: str
    change: Mapping[str, Any]  #: Bridge configuration key -> value
    gate: str  #: what has to be seen before going on
    reason: str
    estimate_bytes: (
        int | None
    )  #: the worst rank's device bytes after the step; None where it changes no memory
    fits: bool

    def to_json(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "change": dict(self.change),
            "gate": self.gate,
            "reason": self.reason,
            "estimate_bytes": self.estimate_bytes,
            "fits": self.fits,
        }


def advise(job: TrainingJob, capacity_bytes: int, calibration: Calibration = DEFAULT) -> tuple[Advice, ...]:
    """The steps for this job on cards of this capacity, in order.

    Raises ValueError where the job itself cannot be laid out.
    """
    room = capacity_bytes * (1 - MARGIN)

    def size(some: TrainingJob) -> int:
        return estimate(some, calibration).worst.device_bytes

    size(job)
    start = replace(job, expandable_segments=True)
    steps = [_allocator(size(start), room)]
    sharded = _fully_sharded(start)
    if sharded is not None:
        steps.append(_fsdp(sharded, size(sharded), room, capacity_bytes))
    current = sharded or start
    steps.append(_data(size(current), room))
    current, recompute = _recompute(current, size, room)
    steps += recompute
    steps += _three_dimensions(job, current, size, room)
    steps += _kernels(job, current, size, room)
    return tuple(steps)


def _allocator(size: int, room: float) -> Advice:
    return Advice(
        title="Let the allocator grow its segments",
        change={"env_vars.PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
        gate="the variable is in the environment of the training process itself, not only in a recipe",
        reason="free, and the gap between reserved and allocated is no longer a cause to look for",
        estimate_bytes=size,
        fits=size <= room,
    )


def _fully_sharded(job: TrainingJob) -> TrainingJob | None:
    """The job on FSDP alone: no tensor, context or pipeline ranks, experts over as many ranks as divide."""
    experts = job.text.experts
    world = job.layout.world_size
    expert = 1
    if experts is not None and job.text.has_experts:
        expert = max(
            size for size in range(1, experts.count + 1) if experts.count % size == 0 == world % size
        )
    micro = job.batch.micro
    while micro > 1 and job.batch.total % (micro * world):
        micro -= 1
    try:
        return replace(
            job,
            layout=ParallelLayout(world_size=world, expert=expert),
            sharding=Sharding.EVERYTHING,
            batch=replace(job.batch, micro=micro),
        )
    except ValueError:
        return None


def _fsdp(job: TrainingJob, size: int, room: float, capacity_bytes: int) -> Advice:
    reasons = [
        "no pipeline border to place, no tensor-parallel numerics to check: the shortest way to a first step"
    ]
    if job.frozen.vision:
        reasons.append("a frozen tower costs a shard of its weights only")
    if job.layout.expert_data == 1 and job.text.has_experts:
        reasons.append("expert states gain nothing, for each expert already has its own rank")
    if size > room:
        reasons.append(f"it does not fit {capacity_bytes / 2**30:.0f} GiB yet: recompute comes next")
    return Advice(
        title="Bring it up on FSDP alone",
        change={
            "model.tensor_model_parallel_size": 1,
            "model.pipeline_model_parallel_size": 1,
            "model.context_parallel_size": 1,
            "model.expert_model_parallel_size": job.layout.expert,
            "model.expert_tensor_parallel_size": 1,
            "ddp.use_megatron_fsdp": True,
            "dist.use_megatron_fsdp": True,
            "ddp.data_parallel_sharding_strategy": Sharding.EVERYTHING.value,
            "checkpoint.ckpt_format": "fsdp_dtensor",
        },
        gate="three optimizer steps: the first lacks the optimizer's moments, so it proves nothing",
        reason="; ".join(reasons),
        estimate_bytes=size,
        fits=size <= room,
    )


def _data(size: int, room: float) -> Advice:
    return Advice(
        title="Run on the real data until it is stable",
        change={"dataset.pad_to_max_length": True},
        gate="50 steps on real pictures: no step skipped, the peak no longer grows, the loss falls",
        reason="mock data has one small picture a sample and a router that nothing unbalances; "
        "neither its memory nor its speed is the job's",
        estimate_bytes=size,
        fits=size <= room,
    )


def _recompute(job: TrainingJob, size: Any, room: float) -> tuple[TrainingJob, list[Advice]]:
    """Nothing where it fits; else the cheapest selective modules that make it fit, else everything."""
    current = (
        job if job.recompute.granularity is not Granularity.FULL else replace(job, recompute=Recompute())
    )
    if size(current) <= room:
        change = {} if current is job else {"model.recompute_granularity": None}
        title = "Keep every activation" if current is job else "Stop recomputing every layer"
        return current, [
            Advice(
                title=title,
                change=change,
                gate="the peak of the steady steps stays below the capacity less the estimate's uncertainty",
                reason="it fits as it is: recompute would only cost time",
                estimate_bytes=size(current),
                fits=True,
            )
        ]
    candidates = sorted(
        (
            proposal
            for proposal in selective_proposals(current)
            if proposal.job is not None and not proposal.why_not
        ),
        key=lambda proposal: proposal.slowdown,
    )
    for proposal in candidates:
        assert proposal.job is not None
        if size(proposal.job) <= room:
            return proposal.job, [
                _recompute_step(
                    proposal.title,
                    proposal.change,
                    size(proposal.job),
                    True,
                    "the cheapest modules that make it fit",
                )
            ]
    everything = replace(current, recompute=Recompute(granularity=Granularity.FULL))
    whole: dict[str, Any] = {
        "model.recompute_granularity": "full",
        "model.recompute_method": "uniform",
        "model.recompute_num_layers": 1,
    }
    needed = size(everything)
    reason = "no module alone makes it fit; a third more work is the price"
    return everything, [_recompute_step("Recompute every layer", whole, needed, needed <= room, reason)]


def _recompute_step(title: str, change: Mapping[str, Any], size: int, fits: bool, reason: str) -> Advice:
    return Advice(
        title=title,
        change=change,
        gate="the same loss as before, step by step, and the peak where the estimate says",
        reason=reason,
        estimate_bytes=size,
        fits=fits,
    )


def _three_dimensions(job: TrainingJob, sharded: TrainingJob, size: Any, room: float) -> Iterator[Advice]:
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
        gate="faster than FSDP at the same loss, over 50 steps",
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


def _kernels(job: TrainingJob, current: TrainingJob, size: Any, room: float) -> Iterator[Advice]:
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
    if current.recompute.granularity is not Granularity.FULL:
        scopes = frozenset(NARROW_SCOPES)
        graphs = size(replace(current, graphs=Graphs(capture=Capture.TRANSFORMER_ENGINE, scopes=scopes)))
        yield Advice(
            title="Capture the router in CUDA graphs",
            change={
                "model.cuda_graph_impl": "transformer_engine",
                "model.cuda_graph_modules": list(NARROW_SCOPES),
            },
            gate="steps beyond the warm-up of the capture, at least six: its pools come on top of the peak",
            reason="narrow first: attn does not work inside Qwen3VLModel, and wider scopes hold gigabytes",
            estimate_bytes=graphs,
            fits=graphs <= room,
        )
