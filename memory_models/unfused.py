"""What megatron-core's local modules keep without fused kernels: the run of a CPU.

Attention with a tensor of s x s probabilities, torch's own norms, SequentialMLP experts, and
the Hugging Face vision tower of Bridge 0.3.1. Every term names the saved tensor that it
counts; they were listed one by one with autograd's saved-tensor hooks on megatron-core 0.16.1
and Megatron Bridge 0.3.1. Certainty A for those versions, on a CPU.
"""

from __future__ import annotations

from collections.abc import Iterator

from memory_models.breakdown import Component
from memory_models.choices import HasMicroBatch
from memory_models.experts import routed_rows
from memory_models.shapes import Activation, AttentionShape, FeedForward, Layer, Mixer, Norm, VisionShape
from memory_models.tensors import Kept

D, E = Component.DECODER, Component.EXPERTS


def mixer_tensors(job: HasMicroBatch, layer: Layer) -> tuple[Kept, ...]:
    """What the attention half of a layer keeps for one micro-batch."""
    if layer.mixer is not Mixer.ATTENTION or not isinstance(job.text.attention, AttentionShape):
        raise ValueError("only grouped-query attention is modelled on a CPU: ask for the production kernels")
    return (*_norm(job, "mixer"), *_attention(job, job.text.attention))


def feed_forward_tensors(job: HasMicroBatch, layer: Layer) -> tuple[Kept, ...]:
    """What the feed-forward half of a layer keeps for one micro-batch."""
    if layer.feed_forward is FeedForward.EXPERTS:
        return (*_norm(job, "feed-forward"), *_experts(job))
    if layer.feed_forward is FeedForward.DENSE:
        return (*_norm(job, "feed-forward"), *_dense(job))
    return ()


def _norm(job: HasMicroBatch, part: str) -> Iterator[Kept]:
    """The residual stream, what torch's norm keeps beside it, and what the next matrix product reads."""
    a, n, hidden = job.precision.activation_bytes, job.residual_tokens, job.text.hidden_size
    yield Kept(D, f"{part} residual", "a*n*h", a * n * hidden)
    if job.text.norm is Norm.RMS:
        # torch's RMSNorm is composed: it keeps the normalised stream before its weight.
        yield Kept(D, f"{part} normalised stream", "a*n*h", a * n * hidden, "", True)
    yield Kept(D, f"{part} norm output", "a*n*h", a * n * hidden, "layernorm", part == "mixer")
    yield Kept(D, f"{part} norm statistics", "4*n", 4 * n)


def scores_bytes(job: HasMicroBatch, width: int) -> int:
    """A tensor of one number of ``width`` bytes for every pair of tokens and head."""
    pairs = job.tokens * (job.batch.sequence_length // job.layout.context)
    return width * pairs * (job.text.attention.heads // job.layout.tensor)


def _attention(job: HasMicroBatch, shape: AttentionShape) -> Iterator[Kept]:
    a, tokens, tensor = job.precision.activation_bytes, job.tokens, job.layout.tensor
    query, key = shape.query_size // tensor, max(shape.key_size // tensor, shape.head_size)
    repeated = shape.heads > shape.groups
    yield Kept(D, "joint query, key and value", "a*N*(nh+2nkv)*d/t", a * tokens * (query + 2 * key))
    if shape.qk_norm:
        if repeated:
            yield Kept(D, "query before its norm, copied", "a*N*nh*d/t", a * tokens * query)
        normalised = a * tokens * (query + key)
        yield Kept(D, "normalised query and key", "a*N*(nh+nkv)*d/t", normalised, "", True)
        heads = (query + key) // shape.head_size
        yield Kept(D, "query and key norm statistics", "4*N*(nh+nkv)/t", 4 * tokens * heads)
    yield Kept(D, "cosines and sines", "4*a*N*d", 4 * a * tokens * shape.head_size)
    yield Kept(D, "rotated query", "a*N*nh*d/t", a * tokens * query)
    recomputed = job.recompute.drops("core_attn")
    if recomputed or not repeated:
        yield Kept(D, "rotated key", "a*N*nkv*d/t", a * tokens * key)
    if repeated:
        yield Kept(D, "repeated key", "a*N*nh*d/t", a * tokens * query, "core_attn")
        yield Kept(D, "repeated value", "a*N*nh*d/t", a * tokens * query, "core_attn")
    width = a if a == 4 or not job.softmax_in_float else 4 + a
    yield Kept(D, "attention probabilities", "a*b*nh*s^2/t", scores_bytes(job, width), "core_attn")
    yield Kept(D, "attention mask", "s^2", job.batch.sequence_length**2, "core_attn")
    yield Kept(D, "attention output", "a*N*nh*d/t", a * tokens * query, "", True)


def _activation_tensors(
    job: HasMicroBatch, component: Component, elements: int, module: str
) -> Iterator[Kept]:
    """The first product's output and the second's input; unfused, every step between them too."""
    a, gated = job.precision.activation_bytes, job.text.activation.gated
    name = "expert" if component is E else "feed-forward"
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


def _dense(job: HasMicroBatch) -> Iterator[Kept]:
    yield from _activation_tensors(
        job, D, job.tokens * job.text.feed_forward_size // job.layout.tensor, "mlp"
    )


def _experts(job: HasMicroBatch) -> Iterator[Kept]:
    experts = job.text.experts
    assert experts is not None
    a, n, rows = job.precision.activation_bytes, job.residual_tokens, routed_rows(job)
    yield Kept(E, "router scores and probabilities", "8*n*E", 8 * n * experts.count, "moe")
    yield Kept(E, "routing map", "n*E", n * experts.count, "moe")
    yield Kept(E, "chosen experts", "20*n*k", 20 * n * experts.top_k, "moe")
    yield Kept(E, "row indices", "8*R", 8 * rows, "moe")
    yield Kept(E, "routed input", "a*R*h", a * rows * job.text.hidden_size, "moe", True)
    yield Kept(E, "routed probabilities", "4*R", 4 * rows, "moe")
    yield from _activation_tensors(job, E, rows * experts.size // job.layout.expert_tensor, "moe")
    if experts.shared_size:
        shared = job.tokens * experts.shared_size // job.layout.tensor
        inner = 1 + job.text.activation.gated
        yield Kept(E, "shared expert fc1 output", f"{inner}*a*N*fs/t", inner * a * shared, "shared_experts")
        yield Kept(E, "shared expert activation", "a*N*fs/t", a * shared, "shared_experts", True)


def attention_buffer_bytes(job: HasMicroBatch) -> int:
    """The input that megatron-core's attention hands to its first product, made once and kept for good."""
    return scores_bytes(job, job.precision.activation_bytes)


def forward_tensors(job: HasMicroBatch) -> tuple[Kept, ...]:
    """Alive within a layer's forward only: the scores before their softmax."""
    width = 4 if job.softmax_in_float else job.precision.activation_bytes
    return (Kept(D, "attention scores", "a*b*nh*s^2/t", scores_bytes(job, width)),)


def mixer_gradients(job: HasMicroBatch) -> tuple[Kept, ...]:
    """Gradients of probabilities, of scores and of scores before their mask; and of the streams."""
    a = job.precision.activation_bytes
    # In float the 16-bit gradient is gone when the second float one is made.
    width = 8 if job.softmax_in_float and a < 4 else 3 * a
    stream = a * job.residual_tokens * job.text.hidden_size
    return (
        Kept(D, "gradients of probabilities and scores", "3*a*b*nh*s^2/t", scores_bytes(job, width)),
        Kept(D, "gradients of streams", "5*a*n*h", 5 * stream),
    )


def feed_forward_gradients(job: HasMicroBatch, layer: Layer) -> tuple[Kept, ...]:
    """Gradients in the feed-forward half: of the rows, and of one expert's or the dense inner tensors."""
    a, hidden = job.precision.activation_bytes, job.text.hidden_size
    stream = 3 * a * job.residual_tokens * hidden
    inner = 1 + job.text.activation.gated
    if layer.feed_forward is FeedForward.EXPERTS:
        experts = job.text.experts
        assert experts is not None
        rows = routed_rows(job)
        local = max(1, experts.count // job.layout.expert)
        one = rows * experts.size // job.layout.expert_tensor * (1 + inner) // local
        return (
            Kept(
                E,
                "gradients of an expert layer",
                "3*a*n*h+2*a*R*h+one expert",
                stream + a * (2 * rows * hidden + one),
            ),
        )
    width = job.tokens * job.text.feed_forward_size // job.layout.tensor
    return (Kept(D, "gradients of a dense layer", "3*a*n*h+(1+2)*a*N*ffn", stream + a * (1 + inner) * width),)


def vision_tensors(job: HasMicroBatch, vision: VisionShape) -> tuple[Kept, ...]:
    """What the Hugging Face tower and its mergers keep for one micro-batch."""
    return (*_tower(job, vision), *_mergers(job, vision))


def _tower(job: HasMicroBatch, vision: VisionShape) -> Iterator[Kept]:
    if job.frozen.vision or not job.patches:
        return
    v, depth = Component.VISION, vision.depth
    a, patches, hidden = job.precision.activation_bytes, job.patches, vision.hidden_size
    stream = a * patches * hidden
    inner = a * patches * vision.feed_forward_size
    yield Kept(v, "patch input", "a*P*in*T*p^2", a * patches * vision.patch_elements, "", True)
    yield Kept(v, "vision residuals", "(2L+1)*a*P*vh", (2 * depth + 1) * stream)
    yield Kept(v, "vision norm outputs", "2L*a*P*vh", 2 * depth * stream, "", True)
    yield Kept(v, "vision qkv", "3L*a*P*vh", 3 * depth * stream)
    yield Kept(v, "vision rotated query and key", "2L*a*P*vh", 2 * depth * stream)
    yield Kept(v, "vision attention outputs of pictures", "L*a*P*vh", depth * stream)
    yield Kept(v, "vision attention output, joined", "L*a*P*vh", depth * stream, "", True)
    yield Kept(v, "vision log-sum-exp", "4*L*P*heads", 4 * depth * patches * vision.heads)
    yield Kept(v, "vision fc1 output", "L*a*P*vf", depth * inner)
    yield Kept(v, "vision activation", "L*a*P*vf", depth * inner, "", True)
    yield Kept(v, "vision norm statistics", "16*L*P", 16 * depth * patches)
    yield Kept(v, "vision cosines and sines", "2*4*P*vh/heads", 8 * patches * hidden // vision.heads)
    yield Kept(v, "positions and their weights", "48*P", 48 * patches)


def _mergers(job: HasMicroBatch, vision: VisionShape) -> Iterator[Kept]:
    if not job.patches or (job.frozen.vision and job.frozen.projector):
        return
    j, count = Component.PROJECTOR, 1 + vision.deepstack
    stream = job.precision.activation_bytes * job.patches * vision.hidden_size
    if job.frozen.vision:
        # No block keeps it then; it is still the tower's output.
        yield Kept(Component.VISION, "merger input", "(1+nds)*a*P*vh", count * stream)
    yield Kept(j, "merger norm output", "(1+nds)*a*P*vh", count * stream, "", True)
    yield Kept(j, "merger fc1 output", "(1+nds)*a*P*vh", count * stream)
    yield Kept(j, "merger activation", "(1+nds)*a*P*vh", count * stream, "", True)
    yield Kept(
        j, "merger norm statistics", "8*(P+nds*P/4)", 8 * (job.patches + vision.deepstack * job.patches // 4)
    )
