"""The legal neighbourhood of a job: single changes of its configuration that may lower the peak.

Here live what can be changed, what each change costs in time, and which check of
megatron-core or Bridge refuses it. What a change saves is remedies.py's to estimate. Never
proposed is what does not exist: recompute of a Hugging Face tower, selective recompute of
the Qwen tower, ETP where EP alone suffices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from memory_models.calibration import Calibration
from memory_models.costs import EXCHANGE_SHARE, recompute_slowdown, share_of_work
from memory_models.estimation import estimate
from memory_models.job import (
    CrossEntropy,
    Granularity,
    Implementation,
    Recompute,
    Sharding,
    TrainingJob,
)
from memory_models.shapes import FeedForward, ImageLoad, LatentAttentionShape

#: What a fitting remedy leaves free, as a share of the capacity: the estimate's own uncertainty.
MARGIN = 0.03


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A change, before anybody has estimated what it saves."""

    title: str
    change: Mapping[str, Any]
    job: TrainingJob | None  #: None where the changed job cannot be laid out
    slowdown: float
    cost: str
    source: str
    why_not: str = ""
    alters_training: bool = False


def proposals(job: TrainingJob, capacity_bytes: int, calibration: Calibration) -> Iterator[Proposal]:
    """Every single change, illegal ones with the check that refuses them.

    ``capacity_bytes`` decides only whether splitting experts is worth proposing.
    """
    yield from _allocator(job)
    yield from _loss(job)
    yield from selective_proposals(job)
    if job.recompute.granularity is not Granularity.FULL:
        yield from _full(job)
    yield from _states(job)
    yield from _experts(job, capacity_bytes, calibration)
    yield from _batch(job)
    yield from _vision(job)


def _changed(job: TrainingJob, **changes: Any) -> tuple[TrainingJob | None, str]:
    """The changed job, or why it is none."""
    try:
        changed = replace(job, **changes)
        _ = changed.microbatches
        return changed, ""
    except ValueError as error:
        return None, str(error)


def _allocator(job: TrainingJob) -> Iterator[Proposal]:
    if job.expandable_segments or job.implementation is Implementation.UNFUSED:
        return
    yield Proposal(
        title="Let the allocator grow its segments",
        change={"env_vars.PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
        job=replace(job, expandable_segments=True),
        slowdown=0.0,
        cost="none; not with nccl_ub before torch 2.11",
        source="formulas section 7 (fragmentation 6-20 % without, 2-6 % with); "
        "measured: an OOM of Llama3-70B at 58.8 GB allocated went away",
    )


def _loss(job: TrainingJob) -> Iterator[Proposal]:
    if (
        job.cross_entropy not in (CrossEntropy.UNFUSED, CrossEntropy.NATIVE)
        or job.implementation is Implementation.UNFUSED
    ):
        return
    yield Proposal(
        title="Compute the loss with Transformer Engine's cross-entropy",
        change={"model.cross_entropy_loss_fusion": True, "model.cross_entropy_fusion_impl": "te"},
        job=replace(job, cross_entropy=CrossEntropy.TRANSFORMER_ENGINE),
        slowdown=0.0,
        cost="none known; megatron-core's own command line refuses it since b57449928a, Bridge does not",
        source="formulas section 5; facts on #5508: native materialises float logits",
    )


#: Selective modules, the parts whose forward they repeat, and a measured slowdown where there is one.
_SELECTIVE: tuple[tuple[str, tuple[str, ...], float | None, str], ...] = (
    ("moe_act", (), 0.020, "measured: Moonlight-16B on 8 H100, -1.85 % memory, +2.0 % time"),
    ("layernorm", (), 0.031, "measured: Nemotron-3-Nano, -1.0 GB, +3.1 % time"),
    ("mla_up_proj", (), 0.052, "measured: Moonlight-16B on 8 H100, +5.2 % time"),
    ("core_attn", ("scores",), None, "one more forward of the scores"),
    ("mlp", ("dense",), None, "one more forward of the dense layers; measured: dense 70B -16 % throughput"),
    ("shared_experts", (), 0.02, "one more forward of the shared experts (C)"),
    ("moe", ("experts",), None, "one more forward of router and experts, and their exchange again (+50 %)"),
)


def selective_proposals(job: TrainingJob) -> Iterator[Proposal]:
    """Every selective module that this job's layers have and that is not recomputed yet."""
    kinds = {layer.feed_forward for layer in job.text.layers}
    applicable = {
        "moe_act": FeedForward.EXPERTS in kinds,
        "layernorm": True,
        "mla_up_proj": isinstance(job.text.attention, LatentAttentionShape),
        "core_attn": True,
        "mlp": FeedForward.DENSE in kinds,
        "shared_experts": job.text.experts is not None and job.text.experts.shared_size > 0,
        "moe": FeedForward.EXPERTS in kinds,
    }
    if job.recompute.granularity is Granularity.FULL:
        return
    chosen = job.recompute.modules if job.recompute.granularity is Granularity.SELECTIVE else frozenset()
    for module, parts, measured, source in _SELECTIVE:
        if not applicable[module] or module in chosen:
            continue
        slowdown = measured if measured is not None else recompute_slowdown(job, *parts)
        if module == "moe" and job.layout.expert > 1:
            slowdown += EXCHANGE_SHARE / 2
        yield _selective(job, chosen | {module}, slowdown, source)
    if applicable["moe"] and not chosen:
        yield _selective(
            job,
            frozenset({"moe", "layernorm"}),
            recompute_slowdown(job, "experts") + 0.031 + (EXCHANGE_SHARE / 2 if job.layout.expert > 1 else 0),
            "sum of the two; measured: Nemotron-3-Nano passes with them",
        )


def _selective(job: TrainingJob, modules: frozenset[str], slowdown: float, source: str) -> Proposal:
    why_not = ""
    if "moe_act" in modules and not job.routing.grouped_gemm:
        why_not = "megatron-core recomputes moe_act only with moe_grouped_gemm"
    elif "moe" in modules and job.routing.exchange_overlap:
        why_not = "megatron-core asserts against recompute of moe with overlap_moe_expert_parallel_comm"
    elif "shared_experts" in modules and job.routing.shared_overlap:
        why_not = "megatron-core asserts against recompute of shared_experts with moe_shared_expert_overlap"
    elif modules & {"moe_act", "layernorm"} and job.precision.fp8 and job.precision.fp8_recipe == "delayed":
        why_not = "megatron-core refuses moe_act and layernorm recompute with fp8 delayed scaling"
    changed, problem = _changed(job, recompute=Recompute(granularity=Granularity.SELECTIVE, modules=modules))
    return Proposal(
        title=f"Recompute {' and '.join(sorted(modules))} in backward",
        change={"model.recompute_granularity": "selective", "model.recompute_modules": sorted(modules)},
        job=changed,
        slowdown=slowdown,
        cost=f"about {slowdown:.0%} of the step: the forward of {', '.join(sorted(modules))} again",
        source=source,
        why_not=why_not or problem,
    )


def _full(job: TrainingJob) -> Iterator[Proposal]:
    slowdown = 1 / 3 + (EXCHANGE_SHARE / 2 if job.layout.expert > 1 and job.text.has_experts else 0)
    why_not = ""
    if job.routing.exchange_overlap:
        why_not = "megatron-core asserts against full recompute with overlap_moe_expert_parallel_comm"
    elif job.vision is not None and not job.vision.native and job.patches:
        why_not = (
            "Bridge 0.3.1 cannot recompute fully with images: its checkpoint hands the deepstack list to "
            "save_for_backward, which takes tensors only"
        )
    yield Proposal(
        title="Recompute every layer in backward",
        change={
            "model.recompute_granularity": "full",
            "model.recompute_method": "uniform",
            "model.recompute_num_layers": 1,
        },
        job=replace(job, recompute=Recompute(granularity=Granularity.FULL)),
        slowdown=slowdown,
        cost="one more forward pass, tensor-parallel and expert exchange included",
        source="formulas section 9 (4/3 of the work; literature 30-36 % of the step)",
        why_not=why_not,
    )


def _states(job: TrainingJob) -> Iterator[Proposal]:
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
        aware = replace(setup, first_moment_bytes=2, second_moment_bytes=2)
        yield Proposal(
            title="Keep Adam's moments in bf16",
            change={
                "optimizer.use_precision_aware_optimizer": True,
                "optimizer.exp_avg_dtype": "torch.bfloat16",
                "optimizer.exp_avg_sq_dtype": "torch.bfloat16",
            },
            job=replace(job, optimizer=aware),
            slowdown=0.0,
            cost="moments lose precision; needs the distributed optimizer",
            source="formulas section 2",
        )
    yield from _sharding(job)


def _sharding(job: TrainingJob) -> Iterator[Proposal]:
    if job.sharding is Sharding.EVERYTHING or job.implementation is Implementation.UNFUSED:
        return
    why_not = ""
    if job.layout.pipeline > 1:
        why_not = "Megatron FSDP is for pipeline size 1 here: with it, raise EP instead of PP"
    elif job.layout.dense_shard == 1:
        why_not = "there is one data-parallel rank: nothing to shard over"
    yield Proposal(
        title="Shard parameters, gradients and states with Megatron FSDP",
        change={
            "ddp.use_megatron_fsdp": True,
            "dist.use_megatron_fsdp": True,
            "ddp.data_parallel_sharding_strategy": Sharding.EVERYTHING.value,
            "checkpoint.ckpt_format": "fsdp_dtensor",
        },
        job=replace(job, sharding=Sharding.EVERYTHING),
        slowdown=min(0.3, 0.05 * job.microbatches),
        cost="all weights are gathered twice and gradients scattered once for every micro-batch",
        source="formulas section 9; can be worse than EP alone where edp is small (issue #2772)",
        why_not=why_not,
    )


def _experts(job: TrainingJob, capacity_bytes: int, calibration: Calibration) -> Iterator[Proposal]:
    experts = job.text.experts
    if experts is None or not job.text.has_experts:
        return
    fits = False
    size = job.layout.expert * 2
    while size <= experts.count:
        changed, problem = _changed_layout(job, expert=size)
        if changed is None and job.layout.expert_tensor > 1:
            changed, problem = _changed_layout(job, expert=size, expert_tensor=1)
        proposal = Proposal(
            title=f"Spread the experts over {size} ranks",
            change={"model.expert_model_parallel_size": size}
            | (
                {"model.expert_tensor_parallel_size": 1}
                if changed and changed.layout.expert_tensor != job.layout.expert_tensor
                else {}
            ),
            job=changed,
            slowdown=0.02 if job.layout.expert > 1 else EXCHANGE_SHARE / 2,
            cost="more of the token exchange crosses nodes; weights and gradients halve, states stay",
            source="formulas section 9: all-to-all n*k*h*2*(ep-1)/ep a direction",
            why_not=problem,
        )
        yield proposal
        if changed is None:
            break  # a larger size is refused for the same reason
        fits = fits or estimate(changed, calibration).worst.device_bytes <= capacity_bytes * (1 - MARGIN)
        size *= 2
    if fits or job.layout.expert_tensor > 1:
        return
    yield from _expert_tensor(job)


def _expert_tensor(job: TrainingJob) -> Iterator[Proposal]:
    """Only where no expert-parallel size fits: splitting each expert is the dearer way."""
    experts = job.text.experts
    assert experts is not None
    for size in (2, 4):
        if experts.size % size:
            continue
        changed, problem = _changed_layout(job, expert_tensor=size)
        yield Proposal(
            title=f"Split each expert over {size} ranks",
            change={"model.expert_tensor_parallel_size": size},
            job=changed,
            slowdown=0.15 * (size - 1),
            cost=f"every routed row is gathered to and reduced from {size} ranks, and each keeps "
            "the rows of all; no expert-parallel size alone fits",
            source="formulas section 9: (etp-1)*R*h*2 gathered and scattered, forward and backward",
            why_not=problem,
        )


def _changed_layout(job: TrainingJob, **sizes: Any) -> tuple[TrainingJob | None, str]:
    try:
        return replace(job, layout=replace(job.layout, **sizes)), ""
    except ValueError as error:
        return None, str(error)


def _batch(job: TrainingJob) -> Iterator[Proposal]:
    micro = job.batch.micro
    if micro > 1:
        smaller = next(size for size in range(micro // 2, 0, -1) if micro % size == 0)
        changed, problem = _changed(job, batch=replace(job.batch, micro=smaller))
        yield Proposal(
            title=f"Micro-batches of {smaller} instead of {micro}",
            change={"train.micro_batch_size": smaller},
            job=changed,
            slowdown=0.05 * (micro // smaller - 1),
            cost="smaller matrix products, and as many more of them",
            source="formulas section 9 (C)",
            why_not=problem,
        )


def _vision(job: TrainingJob) -> Iterator[Proposal]:
    if job.vision is None or not job.patches:
        return
    if not job.frozen.vision:
        yield Proposal(
            title="Freeze the vision tower",
            change={"model.freeze_vision_model": True},
            job=replace(job, frozen=replace(job.frozen, vision=True)),
            slowdown=-share_of_work(job, "vision") * 2 / 3,
            cost="the tower no longer learns",
            source="formulas section 6: no graph, so neither activations nor states",
            alters_training=True,
        )
    images = job.batch.images
    fewer = ImageLoad(patches=images.patches // 2, images=images.images)
    changed, problem = _changed(job, batch=replace(job.batch, images=fewer))
    pixels = images.patches_per_image // 2 * job.vision.patch_size**2
    yield Proposal(
        title="Half the pixels of an image",
        change={"dataset.max_pixels": pixels},
        job=changed,
        slowdown=-share_of_work(job, "vision") / 2,
        cost="the model sees images at a lower resolution",
        source="formulas section 6: tower activations are linear in patches",
        why_not=problem,
        alters_training=True,
    )
