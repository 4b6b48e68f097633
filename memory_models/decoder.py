"""Activations that attention, dense feed-forward parts and norms keep for backward.

Section 3a of the formulas page, for Transformer Engine (PRODUCTION) and for megatron-core's
own fused modules (LOCAL). What a CPU keeps is in unfused.py; experts are in experts.py.
N = tokens of a micro-batch on a context-parallel rank, n = N/t with sequence parallelism,
a = bytes of an activation. Certainty A (golden totals) for attention and dense layers, B for
Mamba and gated delta.
"""

from __future__ import annotations

from collections.abc import Iterator

from memory_models.breakdown import Component
from memory_models.choices import HasMicroBatch
from memory_models.job import Backend
from memory_models.shapes import (
    AttentionShape,
    FeedForward,
    GatedDeltaShape,
    LatentAttentionShape,
    Layer,
    MambaShape,
    Mixer,
    Norm,
)
from memory_models.tensors import Kept

D = Component.DECODER


def mixer_tensors(job: HasMicroBatch, layer: Layer) -> tuple[Kept, ...]:
    """What the token mixer of a layer keeps for one micro-batch."""
    if layer.mixer is Mixer.NONE:
        return ()
    kept = list(_norm(job, "mixer", separate=isinstance(job.text.attention, LatentAttentionShape)))
    if layer.mixer is Mixer.MAMBA:
        kept += _mamba(job)
    elif layer.mixer is Mixer.GATED_DELTA:
        kept += _gated_delta(job)
    elif isinstance(job.text.attention, AttentionShape):
        kept += _grouped_attention(job, job.text.attention)
    else:
        kept += _latent_attention(job, job.text.attention)
    kept += _bias_dropout_add(job, "mixer")
    return tuple(kept)


def expert_norm_tensors(job: HasMicroBatch) -> tuple[Kept, ...]:
    """Norm and residual of an expert layer: the norm is a module of its own, so recompute can drop it."""
    return (*_norm(job, "feed-forward", separate=True), *_bias_dropout_add(job, "feed-forward"))


def dense_tensors(job: HasMicroBatch) -> tuple[Kept, ...]:
    """What a dense feed-forward part keeps for one micro-batch."""
    a, width = job.precision.activation_bytes, job.text.feed_forward_size // job.layout.tensor
    inner = job.text.activation.gated + 1
    return (
        *_norm(job, "feed-forward", separate=False),
        Kept(D, "feed-forward fc1 output", f"a*N*{inner}*ffn/t", a * job.tokens * inner * width, "mlp"),
        Kept(D, "feed-forward activation", "a*N*ffn/t", _gemm_input(job) * job.tokens * width, "mlp", True),
        *_bias_dropout_add(job, "feed-forward"),
    )


def _gemm_input(job: HasMicroBatch) -> int:
    """Bytes of an element that only a GEMM needs in backward: fp8 keeps its quantised copy."""
    return 1 if job.precision.fp8 else job.precision.activation_bytes


def _norm(job: HasMicroBatch, part: str, *, separate: bool) -> Iterator[Kept]:
    """The norm before a mixer or feed-forward part: its input (the residual stream) and its output.

    Where the norm is fused into the linear layer (not ``separate``), recomputing it saves nothing.
    """
    a, n, hidden = job.precision.activation_bytes, job.residual_tokens, job.text.hidden_size
    streams = job.text.residual_streams
    statistics = 4 if job.text.norm is Norm.RMS else 8
    norm, linear = ("attn_norm", "qkv_linear") if part == "mixer" else ("mlp_norm", "")
    yield Kept(D, f"{part} residual", "a*n*h", a * n * hidden * streams, offload=norm)
    output, module = (a, "layernorm") if separate else (_gemm_input(job), "")
    yield Kept(D, f"{part} norm output", "a*n*h", output * n * hidden, module, True, linear)
    yield Kept(D, f"{part} norm statistics", f"{statistics}*n", statistics * n)


def _bias_dropout_add(job: HasMicroBatch, part: str) -> Iterator[Kept]:
    if job.hidden_dropout > 0:
        yield Kept(D, f"{part} dropout mask", "n*h", job.residual_tokens * job.text.hidden_size)


def _grouped_attention(job: HasMicroBatch, shape: AttentionShape) -> Iterator[Kept]:
    a, tokens, tensor = job.precision.activation_bytes, job.tokens, job.layout.tensor
    query, key = shape.query_size // tensor, max(shape.key_size // tensor, shape.head_size)
    gate = query if shape.output_gate else 0
    # Rotation and norms make new tensors, and the kernel copies the value out of the joint one.
    joint = a * tokens * (query + 2 * key + gate)
    yield Kept(D, "query, key and value", "a*N*(nh+2nkv)*d/t", joint, offload="core_attn")
    if shape.qk_norm:
        yield Kept(D, "query and key before their norm", "a*N*(nh+nkv)*d/t", a * tokens * (query + key))
        heads = (query + key) // shape.head_size
        yield Kept(D, "query and key norm statistics", "4*N*(nh+nkv)/t", 4 * tokens * heads)
    yield from _core_attention(job, shape.heads, query)
    if gate:
        yield Kept(D, "gated attention output", "a*N*nh*d/t", a * tokens * query)


def _core_attention(job: HasMicroBatch, heads: int, width: int) -> Iterator[Kept]:
    """Scores, or with flash attention their log-sum-exp; then the output, which the projection reads."""
    a, tokens, heads = job.precision.activation_bytes, job.tokens, heads // job.layout.tensor
    if job.attention is not Backend.UNFUSED:
        yield Kept(D, "attention log-sum-exp", "4*N*nh/t", 4 * tokens * heads, "core_attn")
        batch_first = job.attention is Backend.FLASH and job.batch.micro > 1
        if batch_first or job.layout.context > 1:
            name = "attention output, as the kernel lays it out"
            yield Kept(D, name, "a*N*nh*d/t", a * tokens * width, "core_attn")
    else:
        scores = tokens * job.batch.sequence_length // job.layout.context * heads
        # In float: the softmax keeps its output, and the product with the values its 16-bit copy.
        width_of_probability = 4 + a * (job.attention_dropout == 0) if job.softmax_in_float else a
        count = width_of_probability * scores
        yield Kept(D, "attention probabilities", "a*b*nh*s^2/t", count, "core_attn", offload="core_attn")
        if job.attention_dropout > 0:
            yield Kept(
                D, "attention dropout output and mask", "(a+1)*b*nh*s^2/t", (a + 1) * scores, "core_attn"
            )
    needed_by_kernel = job.attention is not Backend.UNFUSED
    output = a * tokens * width
    yield Kept(
        D,
        "attention output",
        "a*N*nh*d/t",
        output,
        for_weight=not needed_by_kernel,
        offload="attn_proj",
        spent=not needed_by_kernel,
    )


def _latent_attention(job: HasMicroBatch, shape: LatentAttentionShape) -> Iterator[Kept]:
    """MLA: low-rank inputs, their norms, and the expanded queries, keys and values."""
    a, tokens, n = job.precision.activation_bytes, job.tokens, job.residual_tokens
    heads = shape.heads // job.layout.tensor
    per_head = shape.head_size + shape.rotary_size
    if shape.query_rank is not None:
        yield Kept(D, "query low rank and its norm", "2*a*n*rq", 2 * a * n * shape.query_rank)
    yield Kept(
        D,
        "key-value low rank and its norm",
        "a*n*(2*rkv+r)",
        a * n * (2 * shape.key_value_rank + shape.rotary_size),
    )
    yield Kept(D, "expanded query", "a*N*nh*(d+r)/t", a * tokens * heads * per_head, "mla_up_proj")
    yield Kept(D, "expanded key", "a*N*nh*(d+r)/t", a * tokens * heads * per_head, "mla_up_proj")
    yield Kept(
        D,
        "expanded key and value, before rotation",
        "a*N*nh*(d+v)/t",
        a * tokens * heads * (shape.head_size + shape.value_size),
        "mla_up_proj",
    )
    yield from _core_attention(job, shape.heads, shape.output_size // job.layout.tensor)


def _mamba(job: HasMicroBatch) -> Iterator[Kept]:
    """Mamba-2: the in-projection feeds one fused kernel that keeps it; the gated norm keeps its input."""
    shape = job.text.mamba
    assert isinstance(shape, MambaShape)
    a, tokens, tensor = job.precision.activation_bytes, job.tokens, job.layout.tensor
    inner, states, heads = (
        shape.inner_size // tensor,
        shape.groups * shape.state_size // tensor,
        shape.heads // tensor,
    )
    yield Kept(
        D,
        "Mamba in-projection",
        "a*N*(2*inner+2*g*state+nh)/t",
        a * tokens * (2 * inner + 2 * states + heads),
    )
    yield Kept(D, "Mamba output: scanned, gated, normed", "3*a*N*inner/t", 3 * a * tokens * inner)
    yield Kept(D, "Mamba step sizes", "4*N*nh/t", 4 * tokens * heads)


def _gated_delta(job: HasMicroBatch) -> Iterator[Kept]:
    """Gated delta rule: projections, convolved copies, and what the rule itself keeps."""
    shape = job.text.gated_delta
    assert isinstance(shape, GatedDeltaShape)
    a, tokens, tensor = job.precision.activation_bytes, job.tokens, job.layout.tensor
    keys, values = shape.key_heads * shape.key_size // tensor, shape.value_heads * shape.value_size // tensor
    heads = shape.value_heads // tensor
    yield Kept(D, "gated delta projections", "a*N*(2k+2v)/t", a * tokens * (2 * keys + 2 * values))
    yield Kept(D, "gated delta convolved", "a*N*(2k+v)/t", a * tokens * (2 * keys + values))
    yield Kept(D, "gated delta output", "a*N*v/t", a * tokens * values)
    yield Kept(
        D, "gated delta output, normed and gated", "a*N*v/t", a * tokens * values, "gdn_norm_out", True
    )
    if not job.deterministic:
        repeated = heads * shape.key_size
        yield Kept(D, "gated delta repeated query and key", "2*a*N*nv*dk/t", 2 * a * tokens * repeated)
        return
    # The deterministic rule is written in torch, in float, over chunks of 64 tokens. Solving the
    # triangular system of a chunk row by row keeps every leading square of it: the sum of i^2, i < 64.
    chunk, squares = 64, 63 * 64 * 127 // 6
    yield Kept(D, "delta rule, float copies", "8*4*N*nv*d/t", 32 * tokens * heads * shape.key_size)
    yield Kept(D, "delta rule, squares of chunks", "4*N*nv*85344/64/t", 4 * tokens * heads * squares // chunk)
    states = tokens // chunk * heads * shape.key_size * shape.value_size
    yield Kept(D, "delta rule, states of chunks", "3*4*N/64*nv*dk*dv/t", 12 * states)
    yield Kept(D, "delta rule, scores in chunks", "6*4*N*nv*64/t", 24 * tokens * heads * chunk)


def mixer_backward_bytes(job: HasMicroBatch, layer: Layer) -> int:
    """Gradients alive at once in the mixer's backward, at its widest point.

    The gradient of the stream, twice, and of the widest inner tensors; the kept tensors that
    are used up by then are not subtracted, which over-states by less than one inner tensor.
    """
    a, tokens, tensor = job.precision.activation_bytes, job.tokens, job.layout.tensor
    stream = a * job.residual_tokens * job.text.hidden_size
    attention = job.text.attention
    if layer.mixer is Mixer.NONE:
        inner = 0
    elif isinstance(attention, AttentionShape):
        inner = (
            a
            * tokens
            * (2 * attention.query_size + 2 * max(attention.key_size, attention.head_size))
            // tensor
        )
    else:
        inner = a * tokens * (2 * attention.query_size + attention.output_size) // tensor
    if layer.mixer is Mixer.ATTENTION and job.attention is Backend.UNFUSED:
        heads = attention.heads // tensor
        inner += 2 * a * tokens * job.batch.sequence_length // job.layout.context * heads
    return 2 * stream + inner


def dense_backward_bytes(job: HasMicroBatch, layer: Layer) -> int:
    """Gradients alive at once in a dense part's backward: of the stream (twice), activation and fc1."""
    a = job.precision.activation_bytes
    stream = 2 * a * job.residual_tokens * job.text.hidden_size
    if layer.feed_forward is not FeedForward.DENSE:
        return stream
    inner = 1 + (1 + job.text.activation.gated)
    return stream + a * job.tokens * inner * job.text.feed_forward_size // job.layout.tensor
