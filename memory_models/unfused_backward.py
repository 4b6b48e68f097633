"""What passes in backward without fused kernels: gradients, and what recompute holds while it replays.

Every term names the tensor that it counts, at the widest point of its half of a layer; certainty as in
unfused.py.
"""

from __future__ import annotations

from memory_models.breakdown import Component
from memory_models.choices import HasMicroBatch
from memory_models.experts import routed_rows
from memory_models.job import CrossEntropy
from memory_models.loss import logit_elements
from memory_models.shapes import FeedForward, Layer
from memory_models.tensors import Kept
from memory_models.unfused import dense_elements, head_bytes, in_float, scores_bytes, stream_bytes

D, E, L = Component.DECODER, Component.EXPERTS, Component.EMBEDDING_AND_LOSS


def mixer_gradients(job: HasMicroBatch) -> tuple[Kept, ...]:
    """Where the gradient of the scores passes the mask, which was written in place into a view.

    Autograd copies the gradient of the whole, copies the part out of it, and masks the copy: with the
    gradient that came in, four tensors of s x s. Float copies of the scores are no view: there it is the
    softmax that has most, the gradients of its output and of its input.
    """
    floats = in_float(job)
    width = 8 if floats else 4 * job.precision.activation_bytes
    name = "gradients of scores" if floats else "gradients of scores, copied for the mask"
    found = [
        Kept(D, name, f"{width}*b*nh*s^2/t", scores_bytes(job, width)),
        Kept(D, "gradient of the repeated value", "a*N*nh*d/t", head_bytes(job)),
        Kept(D, "gradient of the residual", "a*n*h", stream_bytes(job)),
    ]
    if job.recompute.drops("core_attn"):
        found.append(Kept(D, "gradient of the attention output", "a*N*nh*d/t", head_bytes(job)))
    return tuple(found)


def mixer_held(job: HasMicroBatch) -> tuple[Kept, ...]:
    """What selective recompute of the attention half has beside the tensors that it makes again."""
    found = []
    if job.recompute.drops("core_attn"):
        found.append(Kept(D, "attention output, made again", "a*N*nh*d/t", head_bytes(job)))
    if job.recompute.drops("layernorm"):
        # The first output's storage is filled again from a second one.
        found.append(Kept(D, "mixer norm output, made again", "a*n*h", stream_bytes(job)))
    return tuple(found)


def feed_forward_held(job: HasMicroBatch, layer: Layer) -> tuple[Kept, ...]:
    """What selective recompute of the feed-forward half has beside the tensors that it makes again."""
    sparse = layer.feed_forward is FeedForward.EXPERTS
    found = []
    if job.recompute.drops("moe" if sparse else "mlp"):
        component, name = (E, "experts' output, made again") if sparse else (D, "dense output, made again")
        found.append(Kept(component, name, "a*n*h", stream_bytes(job)))
    if job.recompute.drops("layernorm"):
        found.append(Kept(D, "feed-forward norm output, made again", "a*n*h", stream_bytes(job)))
    return tuple(found)


def feed_forward_gradients(job: HasMicroBatch, layer: Layer) -> tuple[Kept, ...]:
    """Where SwiGLU's own backward joins its two halves: of one expert at a time, or of the dense part.

    Beside the gradient of its output there are one tensor of that width for each factor (the routing
    probability is a third one of an expert), and both halves joined.
    """
    a, stream = job.precision.activation_bytes, stream_bytes(job)
    incoming = Kept(D, "gradient of the layer's output", "a*n*h", stream)
    if layer.feed_forward is FeedForward.EXPERTS:
        rows = routed_rows(job)
        elements = _one_expert(job)
        return (
            incoming,
            Kept(E, "gradient of the routed rows", "a*R*h", a * rows * job.text.hidden_size),
            Kept(E, "gradients within one expert", "6*a*R/E*f", 6 * a * elements),
        )
    return (incoming, Kept(D, "gradients within the dense part", "5*a*N*ffn/t", 5 * a * dense_elements(job)))


def feed_forward_used(job: HasMicroBatch, layer: Layer) -> tuple[Kept, ...]:
    """What of the kept tensors the second product has used up by then."""
    a = job.precision.activation_bytes
    if layer.feed_forward is FeedForward.EXPERTS:
        return (Kept(E, "expert activation", "a*R/E*f", a * _one_expert(job)),)
    return (Kept(D, "feed-forward activation", "a*N*ffn/t", a * dense_elements(job)),)


def _one_expert(job: HasMicroBatch) -> int:
    """Elements of the inner tensor of one of this rank's experts, if all of them are loaded alike."""
    experts = job.text.experts
    assert experts is not None
    local = max(1, experts.count // job.layout.expert)
    return routed_rows(job) * experts.size // job.layout.expert_tensor // local


def group_held(job: HasMicroBatch) -> tuple[Kept, ...]:
    """While full recompute's group goes backward, its output made again stays."""
    return (Kept(D, "output of the group, made again", "a*n*h", stream_bytes(job)),)


def loss_mask(job: HasMicroBatch) -> Kept:
    """There from the start of a micro-batch, and used up when the gradient of the logits is made."""
    return Kept(L, "loss mask", "4*N", 4 * job.tokens)


def loss_kept(job: HasMicroBatch) -> tuple[Kept, ...]:
    """From the loss until its backward: the exponentials in the place of float logits, and the targets."""
    return (
        Kept(L, "exponentials of the logits", "4*q", 4 * logit_elements(job)),
        Kept(L, "targets and their mask", "9*N", 9 * job.tokens),
    )


def loss_forward(job: HasMicroBatch) -> tuple[Kept, ...]:
    """Until forward has ended: the logits that the float ones were copied from."""
    a = job.precision.activation_bytes
    return (Kept(L, "logits", "a*q", a * logit_elements(job)),) if a < 4 else ()


def loss_gradients(job: HasMicroBatch) -> tuple[Kept, ...]:
    """The gradient is written into the exponentials; the fused kernel hands it on in bfloat16, whatever
    the logits are, and autograd casts it to what they are."""
    q, a = logit_elements(job), job.precision.activation_bytes
    width = 0
    if job.cross_entropy is not CrossEntropy.UNFUSED:
        width = 2 if a == 2 else 2 + a
    elif a < 4:
        width = a
    return (Kept(L, "gradient of the logits", f"{width}*q", width * q),) if width else ()
