"""What megatron-core's local modules keep without fused kernels: the run of a CPU.

Attention with a tensor of s x s probabilities, torch's own norms, SequentialMLP experts. Every
term names the tensor that it counts, and stands for storages that the probe listed by module and
operation on megatron-core 0.16.1 and Megatron Bridge 0.3.1; the tests hold the table. Certainty A for
those versions, on a CPU. What passes in backward is unfused_backward.py, the vision tower
unfused_vision.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from memory_models.breakdown import Component
from memory_models.choices import HasMicroBatch
from memory_models.experts import routed_rows
from memory_models.job import Granularity
from memory_models.shapes import Activation, AttentionShape, FeedForward, Layer, Mixer, Norm
from memory_models.tensors import Kept

D, E, L = Component.DECODER, Component.EXPERTS, Component.EMBEDDING_AND_LOSS


def mixer_tensors(job: HasMicroBatch, layer: Layer) -> tuple[Kept, ...]:
    """What the attention half of a layer keeps for one micro-batch."""
    if layer.mixer is not Mixer.ATTENTION or not isinstance(job.text.attention, AttentionShape):
        raise ValueError("only grouped-query attention is modelled on a CPU: ask for the production kernels")
    return (*_norm(job, "mixer"), *_attention(job, job.text.attention))


def feed_forward_tensors(job: HasMicroBatch, layer: Layer) -> tuple[Kept, ...]:
    """What the feed-forward half of a layer keeps for one micro-batch."""
    if layer.feed_forward is FeedForward.EXPERTS:
        # The router keeps its input whether or not it learns, and as the input of
        # recomputed experts it stays reachable from the routing that the dispatcher holds.
        held = job.recompute.drops("moe")
        return (*_norm(job, "feed-forward", for_weight=False, lasting=held), *_experts(job))
    if layer.feed_forward is FeedForward.DENSE:
        return (*_norm(job, "feed-forward", for_weight=not job.recompute.drops("mlp")), *_dense(job))
    return ()


def stream_bytes(job: HasMicroBatch) -> int:
    """The residual stream of a micro-batch (a*n*h)."""
    return job.precision.activation_bytes * job.residual_tokens * job.text.hidden_size


def _norm(job: HasMicroBatch, part: str, *, for_weight: bool = True, lasting: bool = False) -> Iterator[Kept]:
    """The residual stream, what torch's norm keeps beside it, and what the next module reads.

    torch's RMSNorm is composed, in float: it keeps the stream, which is a copy where that is not in
    float itself, and the normalised stream before its weight.
    """
    a, width = job.precision.activation_bytes, job.residual_tokens * job.text.hidden_size
    if job.text.norm is Norm.RMS:
        yield Kept(D, f"{part} residual", "4*n*h", 4 * width)
        yield Kept(D, f"{part} normalised stream", "4*n*h", 4 * width, "layernorm", True)
    else:
        yield Kept(D, f"{part} residual", "a*n*h", a * width)
    yield Kept(D, f"{part} norm output", "a*n*h", a * width, "layernorm", for_weight, lasting=lasting)
    statistics = 4 if job.text.norm is Norm.RMS else 8
    yield Kept(D, f"{part} norm statistics", f"{statistics}*n", statistics * job.residual_tokens, "layernorm")


def in_float(job: HasMicroBatch) -> bool:
    """Whether the softmax works on a float copy of its scores."""
    return job.softmax_in_float and job.precision.activation_bytes < 4


def scores_bytes(job: HasMicroBatch, width: int) -> int:
    """A tensor of one number of ``width`` bytes for every pair of tokens and head."""
    pairs = job.tokens * (job.batch.sequence_length // job.layout.context)
    return width * pairs * (job.text.attention.heads // job.layout.tensor)


def head_bytes(job: HasMicroBatch) -> int:
    """A tensor as wide as the query (a*N*nh*d/t)."""
    assert isinstance(job.text.attention, AttentionShape)
    return job.precision.activation_bytes * job.tokens * job.text.attention.query_size // job.layout.tensor


def _attention(job: HasMicroBatch, shape: AttentionShape) -> Iterator[Kept]:
    a, tokens, tensor = job.precision.activation_bytes, job.tokens, job.layout.tensor
    query, key = shape.query_size // tensor, max(shape.key_size // tensor, shape.head_size)
    repeated, recomputed = query > key, job.recompute.drops("core_attn")
    # Norms read float copies then, and repeated values are copies too.
    if a == 4 or not shape.qk_norm or not repeated or recomputed:
        yield Kept(D, "joint query, key and value", "a*N*(nh+2nkv)*d/t", a * tokens * (query + 2 * key))
    if shape.qk_norm:
        if a < 4:
            yield Kept(D, "query and key in float", "4*N*(nh+nkv)*d/t", 4 * tokens * (query + key))
        elif repeated and key > shape.head_size:  # each group's queries are apart in the joint tensor
            yield Kept(D, "query before its norm, copied", "a*N*nh*d/t", a * tokens * query)
        yield Kept(D, "normalised query", "4*N*nh*d/t", 4 * tokens * query, "", True)
        yield Kept(D, "normalised key", "4*N*nkv*d/t", 4 * tokens * key, "", True)
        heads = (query + key) // shape.head_size
        yield Kept(D, "query and key norm statistics", "4*N*(nh+nkv)/t", 4 * tokens * heads)
    yield Kept(D, "cosines and sines", "4*a*N*d", 4 * a * tokens * shape.head_size)
    yield Kept(D, "rotated query", "a*N*nh*d/t", a * tokens * query)
    if recomputed or not repeated:
        yield Kept(D, "rotated key", "a*N*nkv*d/t", a * tokens * key)
    if repeated:
        yield Kept(D, "repeated key", "a*N*nh*d/t", a * tokens * query, "core_attn")
        yield Kept(D, "repeated value", "a*N*nh*d/t", a * tokens * query, "core_attn", spent=True)
    floats = in_float(job)
    width = 4 if floats else a
    scores = scores_bytes(job, width)
    yield Kept(D, "attention probabilities", f"{width}*b*nh*s^2/t", scores, "core_attn", spent=not floats)
    if floats:
        # The softmax keeps its output, and the product with the values the narrow copy that it reads.
        copy = scores_bytes(job, a)
        yield Kept(D, "attention probabilities, narrow copy", "a*b*nh*s^2/t", copy, "core_attn", spent=True)
    yield Kept(D, "attention mask", "s^2", job.batch.sequence_length**2, "core_attn")
    yield Kept(D, "attention output", "a*N*nh*d/t", a * tokens * query, "", True, spent=True)


def _activation_tensors(
    job: HasMicroBatch, component: Component, elements: int, module: str, name: str
) -> Iterator[Kept]:
    """The first product's output and the second's input; unfused, every step between them too."""
    a, gated = job.precision.activation_bytes, job.text.activation.gated
    inner = 1 + gated
    yield Kept(component, f"{name} fc1 output", f"{inner}*a*R*f", a * inner * elements, module)
    yield Kept(component, f"{name} activation", "a*R*f", a * elements, module, True)
    if job.bias_activation_fusion and job.text.activation is Activation.SWIGLU:
        return
    if gated:
        # act(gate) * (linear + offset): both factors are tensors of their own.
        yield Kept(component, f"{name} gate and shifted linear part", "2*a*R*f", 2 * a * elements, module)
    if component is E:
        yield Kept(component, f"{name} product before its probability", "a*R*f", a * elements, module)


def dense_elements(job: HasMicroBatch) -> int:
    """Elements of the inner tensor of a dense feed-forward part (N*ffn/t)."""
    return job.tokens * job.text.feed_forward_size // job.layout.tensor


def _dense(job: HasMicroBatch) -> Iterator[Kept]:
    yield from _activation_tensors(job, D, dense_elements(job), "mlp", "feed-forward")


def _experts(job: HasMicroBatch) -> Iterator[Kept]:
    experts = job.text.experts
    assert experts is not None
    a, n, rows = job.precision.activation_bytes, job.residual_tokens, routed_rows(job)
    count, chosen = n * experts.count, n * experts.top_k
    yield Kept(E, "scores of the auxiliary loss", "4*n*E", 4 * count, "moe")
    yield Kept(E, "probabilities of the chosen", "4*n*k", 4 * chosen, "moe")
    yield Kept(E, "chosen experts", "8*n*k", 8 * chosen, "moe")
    yield Kept(E, "row indices", "8*n*k", 8 * chosen, "moe", lasting=True)
    yield Kept(E, "probabilities and map by expert", "5*n*E", 5 * count, "moe")
    yield Kept(E, "routed input", "a*R*h", a * rows * job.text.hidden_size, "moe", True)
    yield Kept(E, "routed probabilities", "4*R", 4 * rows, "moe")
    yield from _activation_tensors(job, E, rows * experts.size // job.layout.expert_tensor, "moe", "expert")
    if experts.shared_size:
        elements = job.tokens * experts.shared_size // job.layout.tensor
        yield from _activation_tensors(job, E, elements, "shared_experts", "shared expert")


def routing_tensors(job: HasMicroBatch, *, recomputed: bool) -> tuple[Kept, ...]:
    """What the dispatcher of a layer keeps of its last routing until the next one.

    It is there once, however many micro-batches are in flight; the indices too, where none keeps its own.
    """
    experts, n = job.text.experts, job.residual_tokens
    assert experts is not None
    found = [
        Kept(E, "router probabilities", "4*n*E", 4 * n * experts.count),
        Kept(E, "routing map", "n*E", n * experts.count),
    ]
    if recomputed:
        found.append(Kept(E, "row indices", "8*n*k", 8 * n * experts.top_k))
    return tuple(found)


def first_residual(job: HasMicroBatch, residual: Kept) -> Kept:
    """The first layer's residual is no layer's output but what words and images were joined to.

    With sequence parallelism it is a slice of that, and keeps the whole. The norm's float copy is its own.
    """
    if job.precision.activation_bytes < 4 and residual.tensor != "checkpoint input":
        return residual
    size = job.precision.activation_bytes * job.batch.sequence_length * job.batch.micro * job.text.hidden_size
    return replace(residual, component=L, tensor="embedded tokens", formula="a*s*b*h", bytes=size)


def rotary_angles(job: HasMicroBatch) -> Kept:
    """An input of every group of recomputed layers, and one tensor for all of them."""
    assert isinstance(job.text.attention, AttentionShape)
    tokens = job.batch.sequence_length * job.batch.micro
    return Kept(D, "rotary angles", "4*s*b*d", 4 * tokens * job.text.attention.head_size)


def embedding_tensors(job: HasMicroBatch) -> tuple[Kept, ...]:
    """What the gradients of words and of pictures need, which share one tensor from here on."""
    tokens = job.batch.sequence_length * job.batch.micro
    kept = [Kept(L, "token ids", "8*s*b", 8 * tokens, "", True)]
    if job.layout.tensor > 1:
        kept.append(Kept(L, "words of other ranks", "s*b", tokens, "", True))
    if job.patches:
        kept.append(Kept(L, "places of pictures", "s*b", tokens))
    return tuple(kept)


def output_tensors(job: HasMicroBatch) -> tuple[Kept, ...]:
    """What the final norm and the output layer keep until their backward."""
    return tuple(_norm(job, "final"))


def attention_buffer_bytes(job: HasMicroBatch) -> int:
    """The input that megatron-core's attention hands to its first product, made once and kept for good."""
    return scores_bytes(job, job.precision.activation_bytes)


def forward_tensors(job: HasMicroBatch) -> tuple[Kept, ...]:
    """Alive within a layer's forward only, at its widest, the attention.

    The scores before their softmax and their float copy; the probabilities too where nothing keeps
    them; and where norms keep float copies, what those were copied from.
    """
    shape = job.text.attention
    assert isinstance(shape, AttentionShape)
    a, floats = job.precision.activation_bytes, in_float(job)
    width = a + 4 * floats
    passing = [Kept(D, "attention scores", f"{width}*b*nh*s^2/t", scores_bytes(job, width))]
    if job.recompute.drops("core_attn") or job.recompute.granularity is Granularity.FULL:
        name, formula = "attention probabilities, to be made again", f"{width}*b*nh*s^2/t"
        passing.append(Kept(D, name, formula, scores_bytes(job, width)))
    if a < 4:
        query = shape.query_size // job.layout.tensor
        key = max(shape.key_size // job.layout.tensor, shape.head_size)
        size = a * job.tokens * (2 * query + 4 * key)
        passing.append(Kept(D, "joint tensor, normalised query, keys", "a*N*(2nh+4nkv)*d/t", size))
        passing.append(Kept(D, "residual that the norm copied", "a*n*h", stream_bytes(job)))
    return tuple(passing)


def local_tensors(job: HasMicroBatch) -> tuple[Kept, ...]:
    """What the model's forward holds until it ends, of words: the batch, their embedding, rotary angles."""
    tokens = job.batch.sequence_length * job.batch.micro
    passing = [Kept(L, "batch and positions", "40*s*b", 40 * tokens)]
    if job.precision.activation_bytes < 4:
        size = job.precision.activation_bytes * tokens * job.text.hidden_size
        passing.append(Kept(L, "embedded tokens", "a*s*b*h", size))
    if job.recompute.granularity is not Granularity.FULL:
        passing.append(rotary_angles(job))
    return tuple(passing)
