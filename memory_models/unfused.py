"""Activations of megatron-core's local modules without any fusion: what a CPU runs.

Attention with a tensor of s x s scores, SequentialMLP experts, an unfused SwiGLU, and for
Bridge 0.3.1 the Hugging Face vision tower. Each term names the saved tensor that it counts.
"""

from __future__ import annotations

from collections.abc import Iterator

from memory_models.breakdown import Component
from memory_models.experts import routed_rows
from memory_models.job import TrainingJob
from memory_models.shapes import AttentionShape, FeedForward, Layer, VisionShape
from memory_models.tensors import Kept

D, E = Component.DECODER, Component.EXPERTS


def layer_tensors(job: TrainingJob, layer: Layer) -> tuple[Kept, ...]:
    """What one decoder layer keeps for one micro-batch."""
    kept = (*_norm(job, "attention"), *_attention(job), *_norm(job, "feed-forward"))
    if layer.feed_forward is FeedForward.EXPERTS:
        return (*kept, *_experts(job))
    return (*kept, *_dense(job))


def _norm(job: TrainingJob, part: str) -> Iterator[Kept]:
    a, n, hidden = job.precision.activation_bytes, job.residual_tokens, job.text.hidden_size
    yield Kept(D, f"{part} residual", "a*n*h", a * n * hidden)
    yield Kept(D, f"{part} norm output", "a*n*h", a * n * hidden, "layernorm", True)
    yield Kept(D, f"{part} norm statistics", "4*n", 4 * n)


def _attention(job: TrainingJob) -> Iterator[Kept]:
    shape = job.text.attention
    if not isinstance(shape, AttentionShape):
        raise ValueError("latent attention on a CPU is not modelled: use the production implementation")
    a, tokens, tensor = job.precision.activation_bytes, job.tokens, job.layout.tensor
    query, key = shape.query_size // tensor, max(shape.key_size // tensor, shape.head_size)
    scores = tokens * job.batch.sequence_length * shape.heads // tensor
    yield Kept(D, "qkv", "a*N*(nh+2nkv)*d/t", a * tokens * (query + 2 * key))
    yield Kept(D, "rotated query", "a*N*nh*d/t", a * tokens * query)
    yield Kept(D, "repeated key and value", "2*a*N*nh*d/t", 2 * a * tokens * query)
    yield Kept(D, "attention probabilities", "a*b*nh*s^2/t", a * scores, "core_attn")
    yield Kept(D, "attention output", "a*N*nh*d/t", a * tokens * query, "", True)


def _dense(job: TrainingJob) -> Iterator[Kept]:
    a, tokens, width = (
        job.precision.activation_bytes,
        job.tokens,
        job.text.feed_forward_size // job.layout.tensor,
    )
    yield Kept(D, "feed-forward fc1 output", "2*a*N*ffn/t", 2 * a * tokens * width, "mlp")
    yield Kept(D, "feed-forward gate", "2*a*N*ffn/t", 2 * a * tokens * width, "mlp")
    yield Kept(D, "feed-forward activation", "a*N*ffn/t", a * tokens * width, "mlp", True)


def _experts(job: TrainingJob) -> Iterator[Kept]:
    experts = job.text.experts
    assert experts is not None
    a, n, rows = job.precision.activation_bytes, job.residual_tokens, routed_rows(job)
    width = experts.size // job.layout.expert_tensor
    yield Kept(E, "router logits, scores and probabilities", "12*n*E", 12 * n * experts.count, "moe")
    yield Kept(E, "routed input", "a*R*h", a * rows * job.text.hidden_size, "moe", True)
    yield Kept(E, "expert fc1 output", "2*a*R*f", 2 * a * rows * width, "moe")
    yield Kept(E, "expert gate", "2*a*R*f", 2 * a * rows * width, "moe")
    yield Kept(E, "expert activation", "a*R*f", a * rows * width, "moe", True)


def forward_tensors(job: TrainingJob) -> tuple[Kept, ...]:
    """Alive within a layer's forward only: the scores before their softmax."""
    shape = job.text.attention
    assert isinstance(shape, AttentionShape)
    scores = job.tokens * job.batch.sequence_length * shape.heads // job.layout.tensor
    return (Kept(D, "attention scores", "2*a*b*nh*s^2/t", 2 * job.precision.activation_bytes * scores),)


def backward_tensors(job: TrainingJob) -> tuple[Kept, ...]:
    """Alive within a layer's backward only: the gradients of probabilities and scores."""
    return forward_tensors(job)


def vision_tensors(job: TrainingJob, vision: VisionShape) -> tuple[Kept, ...]:
    """What tower and projector keep for one micro-batch."""
    from memory_models import vision as production

    return production.tower_tensors(job, vision) + production.projector_tensors(job, vision)
