"""Activations of the experts: router, dispatch, routed and shared experts.

Section 3b of the formulas page. R = n * k * etp * load factor rows reach this rank; expert
parallelism does not shrink R, since every expert rank brings its own micro-batch. Certainty A
for R and the three expert tensors, B for the router. No fitted constant enters here.
"""

from __future__ import annotations

import math

from memory_models.breakdown import Component
from memory_models.choices import HasMicroBatch
from memory_models.job import Dispatcher
from memory_models.shapes import Activation, ExpertsShape
from memory_models.tensors import Kept
from memory_models.upstream import Change

E = Component.EXPERTS


def routed_rows(job: HasMicroBatch) -> int:
    """Rows that the experts of this rank work on, for one micro-batch and layer (R).

    Dropless: n*k*etp times the load factor. With a capacity factor, padding makes it exact
    and dropping bounds it; a capacity of the rank sizes the tensors, whatever comes.
    """
    experts, balanced = _shape(job), _balanced_rows(job)
    routing = job.routing
    if routing.rank_capacity is not None:
        return math.ceil(balanced * routing.rank_capacity)
    imbalance = 1.0 if routing.force_balance else routing.imbalance
    if routing.capacity_factor is None:
        return math.ceil(balanced * imbalance)
    tokens = job.tokens // job.layout.tensor
    capacity = math.ceil(routing.capacity_factor * tokens * experts.top_k / experts.count)
    full = capacity * experts.count * job.layout.expert_tensor
    return full if routing.pad_to_capacity else min(full, math.ceil(balanced * imbalance))


def _balanced_rows(job: HasMicroBatch) -> int:
    experts = _shape(job)
    if not job.layout.sequence_parallel and job.layout.tensor > 1:
        return job.tokens * experts.top_k * job.layout.expert_tensor // job.layout.tensor
    return job.tokens // job.layout.tensor * experts.top_k * job.layout.expert_tensor


def _kept_rows(job: HasMicroBatch) -> int:
    """Rows of what waits for backward: those that were worked on, or with a stash its pages."""
    if job.routing.stash is not None:
        return math.ceil(_balanced_rows(job) * job.routing.stash)
    return routed_rows(job)


def _unstashed_bytes(job: HasMicroBatch) -> int:
    """With a stash, one layer's tensors at their full size, before they are put into its pages or after."""
    if job.routing.stash is None:
        return 0
    experts, inner = _shape(job), 2 + job.text.activation.gated
    width = (experts.latent_size or job.text.hidden_size) + inner * experts.size // job.layout.expert_tensor
    return job.precision.activation_bytes * routed_rows(job) * width


def _shape(job: HasMicroBatch) -> ExpertsShape:
    assert job.text.experts is not None
    return job.text.experts


def expert_tensors(job: HasMicroBatch) -> tuple[Kept, ...]:
    """What router, dispatch, routed and shared experts of one layer keep for one micro-batch."""
    experts, a = _shape(job), job.precision.activation_bytes
    n, rows = job.residual_tokens, _kept_rows(job)
    gemm = 1 if job.precision.fp8 else a
    width = experts.size // job.layout.expert_tensor
    inner = 1 + job.text.activation.gated
    hidden = experts.latent_size or job.text.hidden_size
    kept = [
        Kept(E, "router logits, scores and probabilities", "12*n*E", 12 * n * experts.count, "moe"),
        Kept(E, "routing map", "n*E", n * experts.count, "moe"),
        Kept(E, "routed input", "a*R*h", gemm * rows * hidden, "moe", True, "expert_fc1"),
        Kept(
            E, "expert fc1 output", f"a*R*{inner}*f/etp", a * rows * inner * width, "moe", offload="moe_act"
        ),
        Kept(E, "expert activation", "a*R*f/etp", gemm * rows * width, "moe_act", True),
        *_scaled_activation(job, rows * width),
        Kept(E, "routed probabilities", "4*R", 4 * rows, "moe"),
    ]
    if job.routing.fused_permutation:
        kept.append(Kept(E, "row id map", "4*n*(2E+1)", 4 * n * (2 * experts.count + 1), "moe"))
    else:
        kept.append(Kept(E, "row indices", "8*n*k", 8 * n * experts.top_k, "moe"))
    kept += retained_rows(job) or _weighted_rows(job, rows)
    if experts.latent_size:
        kept.append(
            Kept(E, "latent input and output", "2*a*n*latent", 2 * a * n * experts.latent_size, "moe", True)
        )
    if experts.shared_size:
        shared = experts.shared_size // job.layout.tensor
        tokens = job.tokens
        kept.append(
            Kept(
                E,
                "shared expert fc1 output",
                f"a*N*{inner}*fs/t",
                a * tokens * inner * shared,
                "shared_experts",
            )
        )
        kept.append(
            Kept(E, "shared expert activation", "a*N*fs/t", gemm * tokens * shared, "shared_experts", True)
        )
        if experts.shared_gate:
            kept.append(
                Kept(
                    E,
                    "shared expert output before its gate",
                    "a*n*h",
                    a * n * job.text.hidden_size,
                    "shared_experts",
                )
            )
    return tuple(kept)


def retained_rows(job: HasMicroBatch) -> tuple[Kept, ...]:
    """Rows that the unfused combine of the alltoall dispatcher kept, recomputed or not, before 07a0de65ad.

    Measured peaks of unfused runs before it fit with them (Mixtral -3.5 % without, -2.5 % with). Certainty B.
    """
    routing = job.routing
    if (
        job.upstream.has(Change.DISPATCH_RELEASED)
        or routing.fused_permutation
        or routing.dispatcher is not Dispatcher.ALLTOALL
    ):
        return ()
    experts = _shape(job)
    rows = job.residual_tokens * experts.top_k
    count = job.precision.activation_bytes * rows * (experts.latent_size or job.text.hidden_size)
    return (Kept(E, "combined rows, retained", "a*n*k*h", count),)


def _weighted_rows(job: HasMicroBatch, rows: int) -> tuple[Kept, ...]:
    """The experts' output, which was multiplied by the routing probabilities before 4345720d00.

    The combine did it: on the rows that came back to their tokens, or with allgather on those that the
    experts worked on. Where the retained rows are kept, they are the same tensor. Certainty B.
    """
    if job.upstream.has(Change.EARLY_PROBABILITIES):
        return ()
    experts, formula = _shape(job), "a*R*h"
    if job.routing.dispatcher is Dispatcher.ALLTOALL:
        rows, formula = job.residual_tokens * experts.top_k, "a*n*k*h"
    count = job.precision.activation_bytes * rows * (experts.latent_size or job.text.hidden_size)
    return (Kept(E, "expert output before its probability", formula, count, "moe"),)


def _scaled_activation(job: HasMicroBatch, elements: int) -> tuple[Kept, ...]:
    """The activation before it is multiplied by the routing probabilities, since 4345720d00.

    A kernel of its own does both where there is one; without it the product is a second tensor.
    """
    fused = job.bias_activation_fusion and job.text.activation is not Activation.GELU
    if fused or not job.upstream.has(Change.EARLY_PROBABILITIES):
        return ()
    return (
        Kept(
            E,
            "expert activation before its probability",
            "a*R*f/etp",
            job.precision.activation_bytes * elements,
            "moe_act",
        ),
    )


def exchange_bytes(job: HasMicroBatch) -> int:
    """Tensors of dispatch and combine that live within one layer, in either direction.

    Permuted tokens before the exchange, received rows before sorting, and the experts' output
    (2-3 times a*R*h, section 3b); the allgather dispatcher gathers the tokens of all expert ranks instead.
    """
    experts, a = _shape(job), job.precision.activation_bytes
    hidden = experts.latent_size or job.text.hidden_size
    n, rows = job.residual_tokens, routed_rows(job)
    if job.routing.dispatcher is Dispatcher.ALLGATHER:
        ranks = job.layout.expert * job.layout.expert_tensor
        return n * ranks * (a * hidden + 5 * experts.count) + a * rows * hidden
    return a * n * experts.top_k * hidden + a * rows * hidden + _unstashed_bytes(job)


def backward_bytes(job: HasMicroBatch) -> int:
    """Gradients alive at once in the experts' backward: of the output rows, the activation and fc1."""
    experts, a = _shape(job), job.precision.activation_bytes
    rows = routed_rows(job)
    width = experts.size // job.layout.expert_tensor
    hidden = experts.latent_size or job.text.hidden_size
    inner = 1 + job.text.activation.gated
    gradients = 2 * a * job.residual_tokens * job.text.hidden_size
    return gradients + a * rows * (hidden + (inner + 1) * width) + _unstashed_bytes(job)
