"""The vision tower of GLM-4.5V: Hugging Face's module, whole on every rank and never recomputed.

Weights are those that transformers 4.57.6 builds, to the last element. Every activation names the saved
tensor that it counts; they were listed with autograd's saved-tensor hooks on that module, in bf16 on a CPU,
and their sum is met within 0.1 %. Certainty A for weights, A (CPU) for activations. No fitted constant
enters here.
"""

from __future__ import annotations

from collections.abc import Iterator

from memory_models.breakdown import Component
from memory_models.choices import HasMicroBatch
from memory_models.shapes import VisionShape
from memory_models.tensors import Kept

V, J = Component.VISION, Component.PROJECTOR


def glm_weights(vision: VisionShape) -> Iterator[tuple[Component, str, str, int]]:
    """(component, name, formula, elements) of the tower and of its merger."""
    hidden, out, width = vision.hidden_size, vision.output_size, vision.feed_forward_size
    yield V, "patch embedding", "in*T*P^2*vh+vh", vision.patch_elements * hidden + hidden
    yield V, "position embedding", "positions*vh", vision.positions * hidden
    block = 4 * hidden * hidden + 3 * hidden * width + 2 * hidden
    yield V, "vision blocks", "L*(4*vh^2+3*vh*vf+2*vh)", vision.depth * block
    yield V, "vision norms", "2*vh", 2 * hidden
    yield V, "vision downsampling", "m^2*vh*h+h", vision.merge**2 * hidden * out + out
    merger = out * out + 2 * out + 3 * out * vision.merger_size
    yield J, "merger", "h^2+2h+3*h*fm", merger


def glm_tower_tensors(job: HasMicroBatch, vision: VisionShape) -> Iterator[Kept]:
    """What the tower keeps for one micro-batch."""
    a, patches, depth = job.precision.activation_bytes, job.patches, vision.depth
    stream = patches * vision.hidden_size
    inner = a * patches * vision.feed_forward_size
    yield Kept(V, "patch input", "a*P*in*T*p^2", a * patches * vision.patch_elements, "", True)
    yield Kept(V, "position table in float", "4*positions*vh", 4 * vision.positions * vision.hidden_size)
    # Norms compute in float: each keeps a float copy of its input, and what its weight scales.
    norms = 2 * depth + 2
    yield Kept(V, "vision norm inputs in float", "4*(2L+2)*P*vh", 4 * norms * stream)
    yield Kept(V, "vision normalised streams", "(2L+2)*a*P*vh", a * norms * stream, "", True)
    yield Kept(V, "vision norm outputs", "(2L+1)*a*P*vh", a * (norms - 1) * stream, "", True)
    yield Kept(V, "vision qkv", "3L*a*P*vh", 3 * depth * a * stream)
    yield Kept(V, "vision rotated query and key", "2L*a*P*vh", 2 * depth * a * stream)
    yield Kept(V, "vision attention outputs of pictures", "L*a*P*vh", depth * a * stream)
    yield Kept(V, "vision attention output, joined", "L*a*P*vh", depth * a * stream, "", True)
    yield Kept(V, "vision log-sum-exp", "4*L*P*heads", 4 * depth * patches * vision.heads)
    yield Kept(V, "vision cosines and sines", "L*2*4*P*vd", 8 * depth * stream // vision.heads)
    yield Kept(V, "vision gate, linear part and activation", "3L*a*P*vf", 3 * depth * inner)
    yield Kept(V, "vision fc2 input", "L*a*P*vf", depth * inner, "", True)
    yield Kept(V, "vision norm statistics", "4*(2L+2)*P", 4 * norms * patches)


def glm_projector_tensors(job: HasMicroBatch, vision: VisionShape) -> Iterator[Kept]:
    """What the merger keeps for one micro-batch: it reads one vector for each image token."""
    a, tokens = job.precision.activation_bytes, job.patches // vision.merge**2
    stream, inner = a * tokens * vision.output_size, a * tokens * vision.merger_size
    yield Kept(J, "merger input", "a*P/m^2*h", stream, "", True)
    yield Kept(J, "merger norm input and output", "2*a*P/m^2*h", 2 * stream)
    yield Kept(J, "merger fc1 input", "a*P/m^2*h", stream, "", True)
    yield Kept(J, "merger gate, linear part and activation", "3*a*P/m^2*fm", 3 * inner)
    yield Kept(J, "merger fc2 input", "a*P/m^2*fm", inner, "", True)
    yield Kept(J, "image embeddings", "a*P/m^2*h", stream)


def glm_block_gradients(job: HasMicroBatch, vision: VisionShape) -> int:
    """Bytes of gradients at the widest point of a block's backward: of the stream and a gated MLP's parts."""
    a, patches = job.precision.activation_bytes, job.patches
    return a * patches * (2 * vision.hidden_size + 3 * vision.feed_forward_size)
