"""Parallel sizes and the pipeline's layout: how the same work is spread over the same GPUs.

ETP is proposed only where no expert-parallel size fits.
"""

from __future__ import annotations

from collections.abc import Iterator

from memory_models.calibration import Calibration
from memory_models.costs import EXCHANGE_SHARE, bubble, share_of_work, tensor_cost
from memory_models.estimation import estimate
from memory_models.job import Sharding, TrainingJob
from memory_models.proposal import MARGIN, Proposal, changed_layout


def expert_proposals(job: TrainingJob, capacity_bytes: int, calibration: Calibration) -> Iterator[Proposal]:
    experts = job.text.experts
    if experts is None or not job.text.has_experts:
        return
    fits = False
    size = job.layout.expert * 2
    while size <= experts.count:
        changed, problem = changed_layout(job, expert=size)
        if changed is None and job.layout.expert_tensor > 1:
            changed, problem = changed_layout(job, expert=size, expert_tensor=1)
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
        changed, problem = changed_layout(job, expert_tensor=size)
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


def layout_proposals(job: TrainingJob) -> Iterator[Proposal]:
    """More tensor, context or pipeline ranks out of data-parallel ones, and layers moved between stages."""
    if job.layout.data % 2 == 0:
        yield from _tensor(job)
        yield from _context(job)
        yield from _pipeline(job)
    yield from _virtual(job)
    yield from _uneven(job)


def _tensor(job: TrainingJob) -> Iterator[Proposal]:
    size = 2 * job.layout.tensor
    if size > 8:  # beyond one node's fast links
        return
    changed, problem = changed_layout(job, tensor=size, sequence_parallel=True)
    yield Proposal(
        title=f"Split each layer over {size} tensor-parallel ranks",
        change={
            "model.tensor_model_parallel_size": size,
            "model.sequence_parallel": True,
            "model.expert_tensor_parallel_size": job.layout.expert_tensor,
        },
        job=changed,
        slowdown=tensor_cost(size) - tensor_cost(job.layout.tensor),
        cost="smaller matrix products; two gathers and two scatters a layer in each direction",
        source="formulas section 9; measured for a dense 70B, 4 to 8: -28 %",
        why_not=problem,
    )


def _context(job: TrainingJob) -> Iterator[Proposal]:
    size = 2 * job.layout.context
    changed, problem = changed_layout(job, context=size)
    short = job.batch.sequence_length // size < 4096
    yield Proposal(
        title=f"Split each sequence over {size} context-parallel ranks",
        change={"model.context_parallel_size": size},
        job=changed,
        slowdown=0.15 if short else 0.05,
        cost="keys and values go round a ring in every layer"
        + ("; fewer than 4,096 tokens a rank hide it badly" if short else "")
        + ("; the vision tower stays whole on every rank" if job.vision is not None else ""),
        source="formulas section 9, practice: CP about s / 4096 (C)",
        why_not=problem,
    )


def _pipeline(job: TrainingJob) -> Iterator[Proposal]:
    size = 2 * job.layout.pipeline
    if size > len(job.text.layers) or job.layout.custom:
        return
    changed, problem = changed_layout(
        job, pipeline=size, first_stage_layers=None, last_stage_layers=None, virtual_pipeline=1
    )
    new = job.layout.pipeline == 1
    cleared = {
        "model.num_layers_in_first_pipeline_stage": job.layout.first_stage_layers,
        "model.num_layers_in_last_pipeline_stage": job.layout.last_stage_layers,
        "model.virtual_pipeline_model_parallel_size": None if job.layout.virtual_pipeline == 1 else 1,
    }
    yield Proposal(
        title=f"Spread the layers over {size} pipeline stages",
        change={"model.pipeline_model_parallel_size": size}
        | {name: None for name, value in cleared.items() if value is not None},
        job=changed,
        slowdown=max(0.06, bubble(changed) - bubble(job)) if changed is not None else 0.06,
        cost="stages wait for each other at the ends of a step"
        + ("; tower and embedding stay on the first" if new and job.vision is not None else ""),
        source="formulas section 9: bubble (p-1)/(v*m); measured: -6 %, -5.6 GB",
        why_not=problem or _no_plain_pipeline(job),
    )


def _no_plain_pipeline(job: TrainingJob) -> str:
    """What refuses stages without virtual ones."""
    if job.sharding is not Sharding.NONE:
        return "Megatron FSDP is for pipeline size 1 here"
    if job.routing.exchange_overlap:
        return "megatron-core's overlap_moe_expert_parallel_comm needs virtual stages where PP > 1"
    return ""


def _virtual(job: TrainingJob) -> Iterator[Proposal]:
    """Interleaving keeps more micro-batches in flight than the plain schedule does."""
    if job.layout.virtual_pipeline == 1 or job.layout.custom:
        return
    changed, problem = changed_layout(job, virtual_pipeline=1, microbatch_group=None)
    yield Proposal(
        title="Give up virtual pipeline stages",
        change={
            "model.virtual_pipeline_model_parallel_size": None,
            "model.microbatch_group_size_per_vp_stage": None,
        },
        job=changed,
        slowdown=bubble(changed) - bubble(job) if changed is not None else 0.0,
        cost="a longer wait at the ends of a step",
        source="formulas sections 4 and 9: (v-1)*g more chunk passes in flight with them",
        why_not=problem or _no_plain_pipeline(job),
    )


def _uneven(job: TrainingJob) -> Iterator[Proposal]:
    """Fewer layers on the stage that holds the vision tower, or on the one that holds the loss."""
    layout, count = job.layout, len(job.text.layers)
    if layout.pipeline < 2 or layout.custom or layout.embedding_as_layer or layout.loss_as_layer:
        return
    for name, fixed in (
        ("first", layout.last_stage_layers),
        ("last", layout.first_stage_layers),
    ):
        inner = layout.pipeline - 1 - (fixed is not None)
        if not inner:
            continue
        given = layout.first_stage_layers if name == "first" else layout.last_stage_layers
        now = given or (count - (fixed or 0)) // (inner + 1)
        fewer = [
            size
            for size in range(now - 1, 0, -1)
            if (count - (fixed or 0) - size) % inner == 0 and size % layout.virtual_pipeline == 0
        ]
        for size in fewer[:2]:
            changed, problem = changed_layout(job, **{f"{name}_stage_layers": size})
            yield Proposal(
                title=f"Put {size} layers on the {name} stage instead of {now}",
                change={f"model.num_layers_in_{name}_pipeline_stage": size},
                job=changed,
                slowdown=_wait(changed) - _wait(job) if changed is not None else 0.0,
                cost="the other stages have more to do; worth it where that stage has other work",
                source="the slowest stage's share of the work, tower and output layer counted (C)",
                why_not=problem,
            )


def _wait(job: TrainingJob) -> float:
    """Work of the slowest stage over that of an even share, minus 1."""
    vision, output = share_of_work(job, "vision"), share_of_work(job, "output")
    layer = (1 - vision - output) / len(job.text.layers)
    stages = [
        sum(len(chunk.layers) * layer + chunk.first * vision + chunk.last * output for chunk in rank)
        for rank in job.chunks
    ]
    return max(stages) * len(stages) - 1
