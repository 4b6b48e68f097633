"""The steps until a job fits: the allocator, FSDP alone, real data, the narrowest recompute, more GPUs last.

The order is the field's practice: what costs nothing first, what costs a third of the step last.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from memory_models.advice_step import Advice, Size
from memory_models.job import Capture, Dispatcher, Granularity, Recompute, Sharding, TrainingJob
from memory_models.layout import ParallelLayout
from memory_models.proposals_kernels import GRAPH_REGISTER, USER_BUFFERS_REFUSE
from memory_models.proposals_recompute import adapter_proposals, selective_proposals

#: By how much more GPUs are tried where nothing else makes a job fit.
MORE = (2, 4, 8, 16)


def allocator(job: TrainingJob, size: int, room: float) -> Advice:
    """Costs nothing; refused with NCCL's user buffers, and with CUDA graphs it needs one variable more."""
    gate = (
        "the variable is in the environment of the training process itself, not only in a recipe; reserved "
        "minus allocated is small at the peak. Where it is not, or one rank alone runs out, the allocator is "
        "fragmented, which no recompute cures"
    )
    if job.user_buffers:
        return Advice(
            title="Leave the allocator's segments as they are",
            change={},
            gate=gate,
            reason=USER_BUFFERS_REFUSE,
            estimate_bytes=size,
            fits=size <= room,
        )
    change = {"env_vars.PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    if job.graphs.capture is not Capture.NONE:
        change |= GRAPH_REGISTER
    return Advice(
        title="Let the allocator grow its segments",
        change=change,
        gate=gate,
        reason="free, and the gap between reserved and allocated is no longer a cause to look for",
        estimate_bytes=size,
        fits=size <= room,
    )


def adapters(job: TrainingJob, size: Size, room: float) -> tuple[TrainingJob, list[Advice]]:
    """Adapters that keep the gathered sequence gather it again: second only to what is free."""
    for proposal in adapter_proposals(job):
        assert proposal.job is not None
        needed = size(proposal.job)
        return proposal.job, [
            Advice(
                title=proposal.title,
                change=proposal.change,
                gate="the same loss, step by step",
                reason=f"cheaper than any recompute: {proposal.source}",
                estimate_bytes=needed,
                fits=needed <= room,
            )
        ]
    return job, []


def fully_sharded(job: TrainingJob) -> TrainingJob | None:
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
            routing=replace(job.routing, dispatcher=Dispatcher.ALLTOALL),
        )
    except ValueError:
        return None


def fsdp(job: TrainingJob, size: int, room: float, capacity_bytes: int) -> Advice:
    reasons = [
        "no pipeline border to place, no tensor-parallel numerics to check: the shortest way to a first step"
    ]
    if job.frozen.vision:
        reasons.append("a frozen tower costs a shard of its weights only")
    if job.layout.expert_data == 1 and job.text.has_experts:
        reasons.append("expert states gain nothing, for each expert already has its own rank")
    if size > room:
        reasons.append(f"it does not fit {capacity_bytes / 2**30:.0f} GiB yet: recompute comes next")
    dispatcher: dict[str, Any] = {}
    if job.text.has_experts:
        dispatcher = {"model.moe_token_dispatcher_type": Dispatcher.ALLTOALL.value}
        reasons.append("tokens go by alltoall until it trains, for nothing has to be built or tuned for it")
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
        }
        | dispatcher,
        gate="three optimizer steps: the first lacks the optimizer's moments, so it proves nothing",
        reason="; ".join(reasons),
        estimate_bytes=size,
        fits=size <= room,
    )


def data(size: int, room: float) -> Advice:
    return Advice(
        title="Run on the real data until it is stable",
        change={"dataset.pad_to_max_length": True},
        gate="50 steps on real pictures: no step skipped, the peak no longer grows, the loss falls",
        reason="mock data has one small picture a sample and a router that nothing unbalances; "
        "neither its memory nor its speed is the job's",
        estimate_bytes=size,
        fits=size <= room,
    )


def recompute(job: TrainingJob, size: Size, room: float) -> tuple[TrainingJob, list[Advice]]:
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


def last_resorts(job: TrainingJob, size: Size, room: float) -> Iterator[Advice]:
    """Where recomputing all does not suffice: more ranks to shard over; an expert is split last of all."""
    if size(job) <= room:
        return
    for times in MORE:
        layout = replace(job.layout, world_size=times * job.layout.world_size)
        larger = replace(job, layout=layout, batch=replace(job.batch, total=times * job.batch.total))
        needed = size(larger)
        if needed > room:
            continue
        yield Advice(
            title=f"Take {layout.world_size} GPUs",
            change={"world size": layout.world_size},
            gate="the same global batch or a learning rate for the larger one",
            reason="states are spread over more ranks; without FSDP, 25 to 50 % of the optimizer on the CPU "
            "is the other way. An expert is split over ranks (ETP) only after that: all keep its rows",
            estimate_bytes=needed,
            fits=True,
        )
        return
