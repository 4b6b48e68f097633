"""Embedding, output layer and cross-entropy: the first and the last thing of a micro-batch.

Section 5 of the formulas page. q = N*V/t logits on a rank. Certainty A for the float copy of
the logits (golden totals); which of the two copies overlap depends on the software.
"""

from __future__ import annotations

from memory_models.breakdown import Component
from memory_models.choices import HasMicroBatch
from memory_models.job import CrossEntropy
from memory_models.tensors import Kept

L = Component.EMBEDDING_AND_LOSS


def logit_elements(job: HasMicroBatch) -> int:
    """Logits of a micro-batch on a rank (q)."""
    return job.tokens * job.text.vocabulary // job.layout.tensor


def embedding_tensors(job: HasMicroBatch) -> tuple[Kept, ...]:
    """What the embedding keeps: token ids, and a dropout mask where there is dropout."""
    tokens = job.batch.sequence_length * job.batch.micro
    kept = [Kept(L, "token ids", "8*s*b", 8 * tokens)]
    if job.hidden_dropout > 0:
        kept.append(Kept(L, "embedding dropout mask", "n*h", job.residual_tokens * job.text.hidden_size))
    return tuple(kept)


def output_tensors(job: HasMicroBatch) -> tuple[Kept, ...]:
    """What the final norm and the output layer keep until their backward."""
    a, n, hidden = job.precision.activation_bytes, job.residual_tokens, job.text.hidden_size
    return (
        Kept(Component.DECODER, "final norm input", "a*n*h", a * n * hidden),
        Kept(L, "output layer input", "a*n*h", a * n * hidden, "", True),
    )


def loss_bytes(job: HasMicroBatch) -> tuple[int, int]:
    """Bytes of logits kept for backward, and alive at the widest point of loss forward and backward.

    Unfused: the float softmax stays (4q), made in place; with it the bf16 logits (2q) in forward
    or their gradient (2q) in backward. Native (compiled): float logits and softmax are two
    tensors. Transformer Engine writes the gradient in the place of the logits.
    """
    q, a = logit_elements(job), job.precision.activation_bytes
    if job.cross_entropy is CrossEntropy.LINEAR:
        return 0, 0
    if job.cross_entropy is CrossEntropy.TRANSFORMER_ENGINE:
        return a * q, a * q
    if job.cross_entropy is CrossEntropy.NATIVE:
        return 4 * q, (8 + a) * q
    return 4 * q, (4 + a) * q


def image_merge_bytes(job: HasMicroBatch) -> int:
    """Copies that a VLM's first stage makes to place image embeddings among the words.

    Embedding clone, two transposes made contiguous, at full sequence before any split (B, model.py forward);
    packed sequences add a tensor of zeros for each deepstack level.
    """
    if job.vision is None:
        return 0
    copies = 3 + (job.vision.deepstack if job.batch.packed else 0)
    return (
        copies
        * job.precision.activation_bytes
        * job.batch.sequence_length
        * job.batch.micro
        * job.text.hidden_size
    )
