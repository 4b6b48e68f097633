"""Activations of Qwen's vision tower and projector by micro-batch; GLM's are in glm_tower.py.

Section 6 of the formulas page. P = patches of the micro-batch. Both towers run whole on
pipeline stage 0; neither shards its residual stream, and attention works picture by picture,
so there is no P^2 term. Megatron's own tower splits heads and MLP over tensor-parallel ranks
and can recompute fully; the Hugging Face tower (Bridge before 0.4) does neither. Certainty B.
No fitted constant enters here.
"""

from __future__ import annotations

from collections.abc import Iterator

from memory_models.breakdown import Component
from memory_models.choices import HasMicroBatch
from memory_models.glm_tower import glm_block_gradients, glm_projector_tensors, glm_tower_tensors
from memory_models.job import Granularity
from memory_models.shapes import Tower, VisionShape
from memory_models.tensors import Kept

V, J = Component.VISION, Component.PROJECTOR


def block_tensors(job: HasMicroBatch, vision: VisionShape) -> tuple[Kept, ...]:
    """What one vision block keeps for one micro-batch."""
    a, patches, hidden = job.precision.activation_bytes, job.patches, vision.hidden_size
    shard = job.layout.tensor if vision.native else 1
    width = vision.feed_forward_size // shard
    local = hidden // shard
    return (
        Kept(V, "vision attention residual", "a*P*vh", a * patches * hidden),
        Kept(V, "vision attention norm output", "a*P*vh", a * patches * hidden, "", True),
        Kept(V, "vision qkv", "a*P*3*vh/t", a * patches * 3 * local),
        Kept(V, "vision rotated query and key", "a*P*2*vh/t", a * patches * 2 * local),
        Kept(V, "vision log-sum-exp", "4*P*heads/t", 4 * patches * vision.heads // shard),
        Kept(V, "vision attention output", "a*P*vh/t", a * patches * local),
        Kept(V, "vision MLP residual", "a*P*vh", a * patches * hidden),
        Kept(V, "vision MLP norm output", "a*P*vh", a * patches * hidden, "", True),
        Kept(V, "vision fc1 output", "a*P*vf/t", a * patches * width),
        Kept(V, "vision activation", "a*P*vf/t", a * patches * width, "", True),
        Kept(V, "vision norm statistics", "16*P", 16 * patches),
    )


def tower_recomputed(job: HasMicroBatch, vision: VisionShape) -> bool:
    """Only full recompute reaches the tower, and only Megatron's own."""
    return vision.native and job.recompute.granularity is Granularity.FULL


def tower_tensors(job: HasMicroBatch, vision: VisionShape) -> tuple[Kept, ...]:
    """What the tower keeps for one micro-batch; nothing where it is frozen, for no gradient passes it."""
    if job.frozen.vision or not job.patches:
        return ()
    if vision.family is Tower.GLM:
        return tuple(glm_tower_tensors(job, vision))
    a, patches, hidden = job.precision.activation_bytes, job.patches, vision.hidden_size
    kept = [Kept(V, "patch input", "a*P*in*T*p^2", a * patches * vision.patch_elements, "", True)]
    if tower_recomputed(job, vision):
        kept.append(Kept(V, "vision block inputs", "L*a*P*vh", vision.depth * a * patches * hidden))
        return tuple(kept)
    for tensor in block_tensors(job, vision):
        kept.append(
            Kept(V, tensor.tensor, f"L*{tensor.formula}", vision.depth * tensor.bytes, "", tensor.for_weight)
        )
    return tuple(kept)


def projector_tensors(job: HasMicroBatch, vision: VisionShape) -> tuple[Kept, ...]:
    """What merger and deepstack mergers keep for one micro-batch: each reads all patches.

    Frozen tower and frozen projector: no graph, nothing kept.
    """
    if not job.patches or (job.frozen.vision and job.frozen.projector):
        return ()
    if vision.family is Tower.GLM:
        return tuple(glm_projector_tensors(job, vision))
    return tuple(_mergers(job, vision))


def _mergers(job: HasMicroBatch, vision: VisionShape) -> Iterator[Kept]:
    a, merged_patches = job.precision.activation_bytes, job.patches // vision.merge**2
    shard = job.layout.tensor if vision.native else 1
    count, merged = 1 + vision.deepstack, vision.merged_size
    if job.frozen.vision:
        # The residual that each merger's norm reads is no block's own tensor then.
        yield Kept(V, "merger input", "(1+nds)*a*P*vh", count * a * merged_patches * merged)
    yield Kept(J, "merger norm output", "(1+nds)*a*P*vh", count * a * merged_patches * merged, "", True)
    yield Kept(J, "merger fc1 output", "(1+nds)*a*P*vh/t", count * a * merged_patches * merged // shard)
    yield Kept(
        J, "merger activation", "(1+nds)*a*P*vh/t", count * a * merged_patches * merged // shard, "", True
    )
    yield Kept(J, "image embeddings", "(1+nds)*a*P/4*h", count * a * merged_patches * vision.output_size)


def backward_bytes(job: HasMicroBatch, vision: VisionShape) -> int:
    """Gradients at the widest point of a block's backward, and with recompute the block again."""
    if job.frozen.vision or not job.patches:
        return 0
    if vision.family is Tower.GLM:
        return glm_block_gradients(job, vision)
    a, patches = job.precision.activation_bytes, job.patches
    shard = job.layout.tensor if vision.native else 1
    gradients = 2 * a * patches * vision.hidden_size + 2 * a * patches * vision.feed_forward_size // shard
    replay = (
        sum(tensor.bytes for tensor in block_tensors(job, vision)) if tower_recomputed(job, vision) else 0
    )
    return gradients + replay
