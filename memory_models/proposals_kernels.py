"""Kernels, batch and data: allocator, loss, dispatcher, CUDA graphs, offload, micro-batches, pictures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from memory_models.costs import share_of_work
from memory_models.job import (
    Capture,
    Card,
    CrossEntropy,
    Dispatcher,
    Granularity,
    Graphs,
    Implementation,
    Sharding,
    TrainingJob,
)
from memory_models.legality import graph_scope_refusal
from memory_models.proposal import Proposal, changed_job
from memory_models.shapes import ImageLoad

#: Why growing segments and NCCL's user buffers exclude each other.
USER_BUFFERS_REFUSE = (
    "megatron-core asserts against expandable_segments with nccl_ub, whose memory pools torch before 2.11 "
    "cannot grow"
)
#: What CUDA graphs need beside growing segments.
GRAPH_REGISTER = {"env_vars.NCCL_GRAPH_REGISTER": "0"}


def allocator_proposals(job: TrainingJob) -> Iterator[Proposal]:
    if job.expandable_segments or job.implementation is Implementation.UNFUSED:
        return
    graphs = {} if job.graphs.capture is Capture.NONE else GRAPH_REGISTER
    yield Proposal(
        title="Let the allocator grow its segments",
        change={"env_vars.PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"} | graphs,
        job=replace(job, expandable_segments=True),
        slowdown=0.0,
        cost="none",
        why_not=USER_BUFFERS_REFUSE if job.user_buffers else "",
        source="formulas section 7 (fragmentation 6-20 % without, 2-6 % with); "
        "measured: an OOM of Llama3-70B at 58.8 GB allocated went away",
    )


def loss_proposals(job: TrainingJob) -> Iterator[Proposal]:
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


def batch_proposals(job: TrainingJob) -> Iterator[Proposal]:
    micro = job.batch.micro
    if micro > 1:
        smaller = next(size for size in range(micro // 2, 0, -1) if micro % size == 0)
        changed, problem = changed_job(job, batch=replace(job.batch, micro=smaller))
        yield Proposal(
            title=f"Micro-batches of {smaller} instead of {micro}",
            change={"train.micro_batch_size": smaller},
            job=changed,
            slowdown=0.05 * (micro // smaller - 1),
            cost="smaller matrix products, and as many more of them",
            source="formulas section 9 (C)",
            why_not=problem,
        )


def vision_proposals(job: TrainingJob) -> Iterator[Proposal]:
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
    changed, problem = changed_job(job, batch=replace(job.batch, images=fewer))
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


def dispatcher_proposals(job: TrainingJob) -> Iterator[Proposal]:
    """Another exchange of tokens, or a bound on what may reach a rank."""
    routing = job.routing
    if not job.text.has_experts or job.implementation is Implementation.UNFUSED:
        return
    if routing.dispatcher is not Dispatcher.ALLTOALL:
        gathers = routing.dispatcher is Dispatcher.ALLGATHER
        yield Proposal(
            title="Exchange tokens with alltoall",
            change={"model.moe_token_dispatcher_type": Dispatcher.ALLTOALL.value},
            job=replace(job, routing=replace(routing, dispatcher=Dispatcher.ALLTOALL)),
            slowdown=0.0 if gathers else 0.05,
            cost="none: allgather hands every rank the tokens of all"
            if gathers
            else "no deduplication of tokens between nodes, no fused kernels",
            source="formulas section 3b (buffers of the flex dispatcher lie outside the allocator)",
        )
    if routing.capacity_factor is None:
        bounded = replace(routing, capacity_factor=1.0, pad_to_capacity=False)
        yield Proposal(
            title="Drop tokens beyond an expert's even share",
            change={"model.moe_expert_capacity_factor": 1.0},
            job=replace(job, routing=bounded),
            slowdown=0.0,
            cost="tokens that an expert has no room for skip it",
            source="formulas section 3b: rows are bounded by the capacity, whatever the router does",
            alters_training=True,
        )


#: Scopes that cost least; `moe_preprocess` only with `moe_router`.
NARROW_SCOPES = ("moe_router", "moe_preprocess")


def graph_proposals(job: TrainingJob) -> Iterator[Proposal]:
    """Narrower scopes first, then none."""
    graphs = job.graphs
    if graphs.capture is Capture.NONE:
        return
    narrow = graphs.capture is Capture.TRANSFORMER_ENGINE and bool(graphs.scopes)
    narrow = narrow and graphs.scopes <= set(NARROW_SCOPES)
    if job.text.has_experts and not narrow:
        refused = "moe is left out, which needs padding to a capacity"
        if job.vision is not None:
            refused = f"attn is left out, which Qwen3VLModel refuses; {refused}"
        yield Proposal(
            title="Capture only the router in CUDA graphs",
            change={
                "model.cuda_graph_impl": Capture.TRANSFORMER_ENGINE.value,
                "model.cuda_graph_modules": list(NARROW_SCOPES),
            },
            job=replace(
                job, graphs=Graphs(capture=Capture.TRANSFORMER_ENGINE, scopes=frozenset(NARROW_SCOPES))
            ),
            slowdown=0.05,
            cost=f"the host launches the other kernels one by one; {refused}",
            source="formulas section 7; measured on DeepSeek-V3, GB200: +7 GB for +10 % speed",
            why_not=graph_scope_refusal(job, frozenset(NARROW_SCOPES)),
        )
    yield Proposal(
        title="Capture no CUDA graphs",
        change={"model.cuda_graph_impl": Capture.NONE.value, "model.cuda_graph_modules": []},
        job=replace(job, graphs=Graphs()),
        slowdown=0.10,
        cost="the host launches every kernel one by one",
        source="formulas section 7; measured on DeepSeek-V3, GB200: +7 GB for +10 % speed",
    )


_OFFLOADS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("expert_fc1", "moe_act"), "experts"),
    (("core_attn", "attn_proj"), "attention"),
)


def offload_proposals(job: TrainingJob) -> Iterator[Proposal]:
    """Inputs of modules, or whole layers, that wait in the host's memory."""
    if (
        job.implementation is not Implementation.PRODUCTION
        or job.recompute.granularity is Granularity.FULL
        or job.sharding is not Sharding.NONE
    ):
        return
    for modules, words in _OFFLOADS:
        chosen = job.offload | set(modules)
        if chosen == job.offload or (words == "experts" and not job.text.has_experts):
            continue
        yield Proposal(
            title=f"Let the inputs of the {words} wait in the host's memory",
            change={
                "model.fine_grained_activation_offloading": True,
                "model.offload_modules": sorted(chosen),
            },
            job=replace(job, offload=frozenset(chosen)),
            slowdown=0.016 if job.card is Card.BLACKWELL else 0.05,
            cost="each input crosses the host link twice; free only where that hides behind the work",
            source="measured on DeepSeek-V3, GB200: -10.7 % memory, -1.6 % speed; other links are slower (C)",
            why_not="cpu_offloading of layers is on: one of the two" if job.offloaded_layers else "",
        )
    count = len(job.text.layers) // 2
    if count and not job.offloaded_layers and not job.offload:
        changed, problem = changed_job(job, offloaded_layers=count)
        yield Proposal(
            title=f"Let the activations of {count} layers wait in the host's memory",
            change={"model.cpu_offloading": True, "model.cpu_offloading_num_layers": count},
            job=changed,
            slowdown=0.25,
            cost="all that these layers keep crosses the host link twice",
            source="formulas section 3c (C)",
            why_not=problem,
        )
