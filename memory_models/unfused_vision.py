"""The Hugging Face vision tower of Bridge 0.3.1 and its mergers: what a CPU keeps of them.

Whole on every tensor-parallel rank, and no recompute reaches them. Every term names the tensor that it
counts; certainty as in unfused.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from memory_models.breakdown import Component
from memory_models.choices import HasMicroBatch
from memory_models.shapes import VisionShape
from memory_models.tensors import Kept

V, J = Component.VISION, Component.PROJECTOR


def vision_tensors(job: HasMicroBatch, vision: VisionShape) -> tuple[Kept, ...]:
    """What the tower and its mergers keep for one micro-batch, less what only frozen weights need."""
    if not job.patches:
        return ()
    mergers = (tensor for tensor in _mergers(job, vision) if not (job.frozen.projector and tensor.for_weight))
    return (*_tower(job, vision), *mergers)


def _tower(job: HasMicroBatch, vision: VisionShape) -> Iterator[Kept]:
    if job.frozen.vision:
        return
    depth, a, patches, hidden = vision.depth, job.precision.activation_bytes, job.patches, vision.hidden_size
    stream = a * patches * hidden
    inner = a * patches * vision.feed_forward_size
    yield Kept(V, "patch input", "a*P*in*T*p^2", a * patches * vision.patch_elements, "", True)
    yield Kept(V, "vision residuals", "(2L+1)*a*P*vh", (2 * depth + 1) * stream)
    yield Kept(V, "vision norm outputs", "2L*a*P*vh", 2 * depth * stream, "", True)
    yield Kept(V, "vision norm statistics", "4*a*L*P", 4 * a * depth * patches)
    yield Kept(V, "vision qkv", "3L*a*P*vh", 3 * depth * stream)
    yield Kept(V, "vision rotated query and key", "2L*a*P*vh", 2 * depth * stream)
    yield Kept(V, "vision attention outputs of pictures", "L*a*P*vh", depth * stream)
    yield Kept(V, "vision log-sum-exp", "4*L*P*heads", 4 * depth * patches * vision.heads)
    yield Kept(V, "vision attention output, joined", "L*a*P*vh", depth * stream, "", True)
    yield Kept(V, "vision fc1 output", "L*a*P*vf", depth * inner)
    yield Kept(V, "vision activation", "L*a*P*vf", depth * inner, "", True)
    # Each block rotates in float, with copies of its own where those at hand are narrower.
    copies = 1 if a == 4 else depth
    angles = 8 * copies * patches * hidden // vision.heads
    yield Kept(V, "vision cosines and sines", f"{copies}*8*P*vh/heads", angles)
    yield Kept(V, "positions and their weights", "(32+4a)*P", (32 + 4 * a) * patches)


def _mergers(job: HasMicroBatch, vision: VisionShape) -> Iterator[Kept]:
    if job.frozen.vision and job.frozen.projector:
        return
    count = 1 + vision.deepstack
    stream = job.precision.activation_bytes * job.patches * vision.hidden_size
    if job.frozen.vision:
        # No block keeps it then; it is still the tower's output.
        yield Kept(V, "merger input", "(1+nds)*a*P*vh", count * stream)
    yield Kept(J, "merger norm output", "(1+nds)*a*P*vh", count * stream, "", True)
    norms = job.patches + vision.deepstack * job.patches // vision.merge**2
    yield Kept(J, "merger norm statistics", "2*a*(P+nds*P/4)", 2 * job.precision.activation_bytes * norms)
    yield Kept(J, "merger fc1 output", "(1+nds)*a*P*vh", count * stream)
    yield Kept(J, "merger activation", "(1+nds)*a*P*vh", count * stream, "", True)


def forward_tensors(job: HasMicroBatch, vision: VisionShape) -> tuple[Kept, ...]:
    """What the model's forward holds until it ends: pixels that are not kept, and what came of them."""
    if not job.patches:
        return ()
    a = job.precision.activation_bytes
    found = []
    if a < 4 or job.frozen.vision:
        found.append(Kept(V, "pixels", "4*P*in*T*p^2", 4 * job.patches * vision.patch_elements))
    tokens = (1 + vision.deepstack) * job.patches // vision.merge**2
    found.append(Kept(J, "image embeddings", "(1+nds)*a*P/4*h", a * tokens * vision.output_size))
    return tuple(found)


def passed_merger(job: HasMicroBatch, vision: VisionShape) -> tuple[Kept, ...]:
    """Of the mergers, the last one with what it read: its backward is over when the last block's begins."""
    if not job.patches:
        return ()
    count, a = 1 + vision.deepstack, job.precision.activation_bytes
    read = "merger input" if job.frozen.vision else "vision residuals"
    own = {"merger norm statistics": 2 * a * job.patches}  # it normalises patches, the others merged ones
    mergers = (tensor for tensor in vision_tensors(job, vision) if tensor.component is J)
    return (
        *(replace(tensor, bytes=own.get(tensor.tensor, tensor.bytes // count)) for tensor in mergers),
        Kept(V, read, "a*P*vh", a * job.patches * vision.hidden_size),
    )


def tower_gradients(job: HasMicroBatch, vision: VisionShape) -> tuple[Kept, ...]:
    """Where a block's second product goes backward: gradients of its output, its input and its weight.

    A weight's gradient is a tensor of its own until it is added to the buffer of gradients. Those of
    deepstack features wait for their mergers, which stand behind earlier blocks.
    """
    if job.frozen.vision or not job.patches:
        return ()
    a, patches = job.precision.activation_bytes, job.patches
    weight = vision.hidden_size * vision.feed_forward_size
    features = vision.deepstack * patches // vision.merge**2 * vision.output_size
    return (
        Kept(J, "gradient of the last block's output", "a*P*vh", a * patches * vision.hidden_size),
        Kept(V, "gradient of a vision activation", "a*P*vf", a * patches * vision.feed_forward_size),
        Kept(V, "gradient of a vision weight", "a*vh*vf", a * weight),
        Kept(Component.DECODER, "gradients of deepstack features", "nds*a*P/4*h", a * features),
    )
