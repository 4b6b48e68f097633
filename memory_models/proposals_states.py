"""Parameters, gradients and optimizer states: how they are spread, in which width, and where they wait."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from memory_models.job import Implementation, Sharding, TrainingJob
from memory_models.proposal import Proposal


def state_proposals(job: TrainingJob) -> Iterator[Proposal]:
    if not job.optimizer.distributed and job.sharding is Sharding.NONE and job.layout.dense_shard > 1:
        yield Proposal(
            title="Spread the optimizer states over data-parallel ranks",
            change={"ddp.use_distributed_optimizer": True, "optimizer.use_distributed_optimizer": True},
            job=replace(job, optimizer=replace(job.optimizer, distributed=True)),
            slowdown=0.01,
            cost="reduce-scatter and all-gather instead of all-reduce: the same bytes",
            source="formulas section 9",
        )
    if job.precision.gradient_bytes == 4 and job.precision.parameter_bytes == 2:
        yield Proposal(
            title="Reduce gradients in bf16",
            change={"ddp.grad_reduce_in_fp32": False},
            job=replace(job, precision=replace(job.precision, gradient_bytes=2)),
            slowdown=0.0,
            cost="accumulation over micro-batches loses precision; half the bytes to reduce",
            source="formulas section 9",
        )
    setup = job.optimizer
    if (
        setup.distributed
        and setup.first_moment_bytes == 4
        and job.implementation is Implementation.PRODUCTION
    ):
        aware = replace(setup, master_bytes=_aware_master(job), first_moment_bytes=2, second_moment_bytes=2)
        yield Proposal(
            title="Keep Adam's moments in bf16",
            change={
                "optimizer.use_precision_aware_optimizer": True,
                "optimizer.exp_avg_dtype": "torch.bfloat16",
                "optimizer.exp_avg_sq_dtype": "torch.bfloat16",
            },
            job=replace(job, optimizer=aware),
            slowdown=0.0,
            cost="moments lose precision; needs the distributed optimizer, and keeps masters as remainders",
            source="formulas section 2",
        )
    yield from _offload(job)
    yield from _sharding(job)


def _aware_master(job: TrainingJob) -> int:
    """The precision-aware optimizer keeps of a master only what its bf16 weight lacks."""
    remainder = job.optimizer.master_bytes == 4 and job.precision.parameter_bytes == 2
    return 2 if remainder else job.optimizer.master_bytes


#: Share of the moments on the CPU -> slowdown: measured for 25 and 100 %, the middle between them.
_OFFLOAD = {0.25: 0.9, 0.5: 1.7, 1.0: 3.2}


def _offload(job: TrainingJob) -> Iterator[Proposal]:
    """Moments on the CPU, which updates them there."""
    setup = job.optimizer
    if (
        not setup.distributed
        or job.sharding is not Sharding.NONE
        or job.implementation is not Implementation.PRODUCTION
    ):
        return
    for share, slowdown in _OFFLOAD.items():
        if share <= setup.offload_fraction:
            continue
        moved = replace(setup, offload_fraction=share, master_bytes=_aware_master(job))
        yield Proposal(
            title=f"Keep {share:.0%} of Adam's moments on the CPU",
            change={
                "optimizer.optimizer_cpu_offload": True,
                "optimizer.optimizer_offload_fraction": share,
                "optimizer.use_precision_aware_optimizer": True,
            },
            job=replace(job, optimizer=moved),
            slowdown=slowdown,
            cost="the CPU updates its share in every step; host memory for moments and masters",
            source="measured by Bridge: 1.9 times the step at 25 %, 4.2 times at 100 %",
        )


def _sharding(job: TrainingJob) -> Iterator[Proposal]:
    """Megatron FSDP, gradients first."""
    if job.sharding is Sharding.EVERYTHING or job.implementation is Implementation.UNFUSED:
        return
    why_not = ""
    if job.layout.pipeline > 1:
        why_not = "Megatron FSDP is for pipeline size 1 here: with it, raise EP instead of PP"
    elif job.layout.dense_shard == 1:
        why_not = "there is one data-parallel rank: nothing to shard over"
    strategies = (
        (Sharding.STATES_GRADIENTS, "Shard gradients and states", 0.02, "gradients are scattered once"),
        (
            Sharding.EVERYTHING,
            "Shard parameters, gradients and states",
            0.05,
            "all weights are gathered twice and gradients scattered once",
        ),
    )
    for strategy, title, each, cost in strategies:
        if strategy is job.sharding:
            continue
        yield Proposal(
            title=f"{title} with Megatron FSDP",
            change={
                "ddp.use_megatron_fsdp": True,
                "dist.use_megatron_fsdp": True,
                "ddp.data_parallel_sharding_strategy": strategy.value,
                "checkpoint.ckpt_format": "fsdp_dtensor",
            },
            job=replace(job, sharding=strategy),
            slowdown=min(0.3, each * job.microbatches),
            cost=f"{cost} for every micro-batch",
            source="formulas section 9; can be worse than EP alone where edp is small (issue #2772)",
            why_not=why_not,
        )
