"""What upstream's own checks refuse of a job, whatever the combination: rules on the job as it would run.

Sources are the asserts of megatron-core and Megatron Bridge (facts of the formulas page). What has no rule
here is not thereby allowed: sizes that do not divide are refused where the job is made, and much is
only said by the code when it runs.
"""

from __future__ import annotations

from collections.abc import Iterator

from memory_models.job import Capture, Dispatcher, Granularity, TrainingJob


def refusals(job: TrainingJob) -> tuple[str, ...]:
    """Every rule that this job breaks, as a sentence; empty where none is known."""
    return tuple(_broken(job))


def _broken(job: TrainingJob) -> Iterator[str]:
    if job.recompute.granularity is Granularity.FULL:
        yield from filter(None, [full_recompute_refusal(job)])
    selective = ""
    if job.recompute.granularity is Granularity.SELECTIVE:
        selective = selective_recompute_refusal(job, job.recompute.modules)
        yield from filter(None, [selective])
    # What recompute and graphs refuse of each other is told once.
    if job.graphs.capture is Capture.TRANSFORMER_ENGINE and not selective:
        yield from filter(None, [graph_scope_refusal(job, job.graphs.scopes)])
    experts = job.text.experts
    if experts is not None and experts.size % job.layout.expert_tensor:
        yield f"experts of {experts.size} do not divide by etp {job.layout.expert_tensor}"


def full_recompute_refusal(job: TrainingJob) -> str:
    """The check that refuses to recompute whole layers of this job; "" where none does."""
    if job.routing.exchange_overlap:
        return "megatron-core asserts against full recompute with overlap_moe_expert_parallel_comm"
    if job.graphs.capture in (Capture.LOCAL, Capture.TRANSFORMER_ENGINE):
        return "megatron-core rejects full recompute with graphs of parts of layers (full_iteration only)"
    if job.offloaded_layers:
        return "cpu_offloading of layers refuses any recompute"
    if job.vision is not None and not job.vision.native and job.vision.deepstack and job.patches:
        return (
            "Bridge 0.3.1 cannot recompute fully with images: its checkpoint hands the deepstack list to "
            "save_for_backward, which takes tensors only"
        )
    return ""


def selective_recompute_refusal(job: TrainingJob, modules: frozenset[str]) -> str:
    """The check that refuses to recompute these modules of this job; "" where none does."""
    if "moe_act" in modules and not job.routing.grouped_gemm:
        return "megatron-core recomputes moe_act only with moe_grouped_gemm"
    if "moe" in modules and job.routing.exchange_overlap:
        return "megatron-core asserts against recompute of moe with overlap_moe_expert_parallel_comm"
    if "moe" in modules and job.graphs.capture is Capture.TRANSFORMER_ENGINE and job.graphs.routes:
        return "megatron-core asserts against recompute of moe with a CUDA graph of its router"
    if "shared_experts" in modules and job.routing.shared_overlap:
        return "megatron-core asserts against recompute of shared_experts with moe_shared_expert_overlap"
    if job.offloaded_layers:
        return "cpu_offloading of layers refuses any recompute"
    if modules & {"moe_act", "layernorm"} and job.precision.fp8 and job.precision.fp8_recipe == "delayed":
        return "megatron-core refuses moe_act and layernorm recompute with fp8 delayed scaling"
    return ""


def graph_scope_refusal(job: TrainingJob, scopes: frozenset[str]) -> str:
    """The check that refuses a CUDA graph of these parts of layers; no scope at all means whole layers."""
    routes = not scopes or "moe_router" in scopes
    if routes and job.recompute.drops("moe"):
        return "megatron-core asserts against a CUDA graph of the router with recompute of moe"
    if "moe_preprocess" in scopes and "moe_router" not in scopes:
        return "megatron-core captures moe_preprocess only together with moe_router"
    routing = job.routing
    dropping = routing.capacity_factor is not None and not routing.pad_to_capacity
    prepares = not scopes or "moe_preprocess" in scopes
    if prepares and dropping and routing.dispatcher is Dispatcher.ALLTOALL:
        return "megatron-core asserts against moe_preprocess with a capacity factor under alltoall"
    return ""
