"""Recompute: what can be computed again instead of being kept, what it costs, and what refuses it.

Never proposed is what does not exist: recompute of a Hugging Face tower, selective recompute of the Qwen
tower.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from memory_models.costs import EXCHANGE_SHARE, recompute_slowdown
from memory_models.job import Granularity, Recompute, TrainingJob
from memory_models.legality import full_recompute_refusal, selective_recompute_refusal
from memory_models.proposal import Proposal, changed_job
from memory_models.shapes import FeedForward, LatentAttentionShape, Mixer

#: Selective modules, the parts whose forward they repeat, and a measured slowdown where there is one.
_SELECTIVE: tuple[tuple[str, tuple[str, ...], float | None, str], ...] = (
    ("moe_act", (), 0.020, "measured: Moonlight-16B on 8 H100, -1.85 % memory, +2.0 % time"),
    ("layernorm", (), 0.031, "measured: Nemotron-3-Nano, -1.0 GB, +3.1 % time"),
    ("gdn_norm_out", (), 0.01, "one more gated norm of each delta-rule layer, elementwise (C)"),
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
        "gdn_norm_out": any(layer.mixer is Mixer.GATED_DELTA for layer in job.text.kinds),
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
    changed, problem = changed_job(
        job, recompute=Recompute(granularity=Granularity.SELECTIVE, modules=modules)
    )
    return Proposal(
        title=f"Recompute {' and '.join(sorted(modules))} in backward",
        change={"model.recompute_granularity": "selective", "model.recompute_modules": sorted(modules)},
        job=changed,
        slowdown=slowdown,
        cost=f"about {slowdown:.0%} of the step: the forward of {', '.join(sorted(modules))} again",
        source=source,
        why_not=selective_recompute_refusal(job, modules) or problem,
    )


def full_proposals(job: TrainingJob) -> Iterator[Proposal]:
    """Every layer, or half of each chunk's, replayed from its input."""
    exchange = EXCHANGE_SHARE / 2 if job.layout.expert > 1 and job.text.has_experts else 0
    why_not = full_recompute_refusal(job)
    widest = max((len(chunk.layers) for rank in job.chunks for chunk in rank), default=0)
    half = widest // 2
    full = Granularity.FULL
    some, _ = changed_job(job, recompute=Recompute(granularity=full, method="block", layers=max(1, half)))
    everything, _ = changed_job(job, recompute=Recompute(granularity=full))
    if half:
        yield Proposal(
            title=f"Recompute the first {half} layers of each stage in backward",
            change={
                "model.recompute_granularity": "full",
                "model.recompute_method": "block",
                "model.recompute_num_layers": half,
            },
            job=some,
            slowdown=(1 / 3 + exchange) * half / widest,
            cost="one more forward pass of these layers, and of the whole tower where it is Megatron's",
            source="formulas section 9, by the share of layers",
            why_not=why_not,
        )
    yield Proposal(
        title="Recompute every layer in backward",
        change={
            "model.recompute_granularity": "full",
            "model.recompute_method": "uniform",
            "model.recompute_num_layers": 1,
        },
        job=everything,
        slowdown=1 / 3 + exchange,
        cost="one more forward pass, tensor-parallel and expert exchange included",
        source="formulas section 9 (4/3 of the work; literature 30-36 % of the step)",
        why_not=why_not,
    )


def adapter_proposals(job: TrainingJob) -> Iterator[Proposal]:
    """Adapters that keep the gathered sequence can gather it again."""
    if job.adapters is None or job.adapters.regather or job.layout.sequence_shard == 1:
        return
    yield Proposal(
        title="Gather the adapters' input again in backward",
        change={"peft.sequence_parallel_input_regather": True},
        job=replace(job, adapters=replace(job.adapters, regather=True)),
        slowdown=0.03,
        cost="one more all-gather for each adapted layer",
        source="measured by Bridge: -1.6 to -10 % memory, -0.3 to -6.7 % speed",
    )
