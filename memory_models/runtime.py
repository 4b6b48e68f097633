"""What belongs to no module: workspaces, communication, the outside of the allocator.

Section 7 of the formulas page. Certainty A for workspaces and the dummy weight gradients, B for
pipeline messages, C for what lies outside the allocator. FSDP's buffers are in fully_sharded.py.
"""

from __future__ import annotations

from collections.abc import Iterable

from memory_models.breakdown import MIB, Category, Component
from memory_models.calibration import Calibration
from memory_models.choices import HasMicroBatch, Holding, MicroBatch
from memory_models.experts import routed_rows
from memory_models.job import Backend, Card, Dispatcher, Implementation, TrainingJob
from memory_models.parameters import layer_weights
from memory_models.shapes import Layer
from memory_models.tensors import Part
from memory_models.unfused import attention_buffer_bytes, stream_bytes

R = Component.RUNTIME


def working_parts(job: MicroBatch, neighbours: int, *, first: bool = True) -> tuple[Part, ...]:
    """Bytes that are there at every instant of a step, on a stage with so many neighbours in its pipeline.

    ``first`` where one of them is no stage before.
    """
    buffer = attention_buffer(job)
    if job.implementation is Implementation.UNFUSED:
        return buffer + _gradient_messages(job, sent=not first, received=neighbours > (not first))
    parts = [
        *buffer,
        _part("workspaces", "2*cuBLAS + Transformer Engine", workspace_bytes(job), Category.TEMPORARY),
    ]
    if neighbours:
        message = job.precision.activation_bytes * job.residual_tokens * job.text.hidden_size
        parts.append(
            _part("pipeline messages", "2*a*n*h a neighbour", neighbours * message, Category.COMMUNICATION)
        )
    if job.layout.sequence_shard > 1:
        gathered = job.precision.activation_bytes * job.tokens * job.text.hidden_size
        parts.append(_part("gathered sequence", "a*N*h", gathered, Category.COMMUNICATION))
    return tuple(parts)


def _gradient_messages(job: MicroBatch, *, sent: bool, received: bool) -> tuple[Part, ...]:
    """A gradient that came from the next stage, and the last that went to the one before.

    Activations are no messages: what was sent is let go, and what was received is a layer's residual.
    """
    size, found = stream_bytes(job), []
    if received:
        found.append(_part("gradient received", "a*n*h", size, Category.COMMUNICATION))
    if sent:
        found.append(
            Part(
                component=Component.DECODER,
                category=Category.TEMPORARY,
                tensor="gradient sent last",
                formula="a*n*h",
                bytes=size,
            )
        )
    return tuple(found)


def fitted_parts(job: TrainingJob, calibration: Calibration) -> tuple[Part, ...]:
    """What no formula counts."""
    if job.implementation is Implementation.UNFUSED:
        return ()
    return (_part("small things", "fitted constant", calibration.remainder_bytes, Category.TEMPORARY),)


def _part(tensor: str, formula: str, count: int, category: Category) -> Part:
    return Part(component=R, category=category, tensor=tensor, formula=formula, bytes=count)


def attention_buffer(job: HasMicroBatch) -> tuple[Part, ...]:
    """What megatron-core's own attention keeps for good, once it has run."""
    if job.implementation is Implementation.PRODUCTION or job.attention is not Backend.UNFUSED:
        return ()
    return (
        Part(
            component=Component.DECODER,
            # Made in forward, and there in backward: the probe cannot tell it from what is kept.
            category=Category.ACTIVATIONS,
            tensor="attention input buffer",
            formula="a*b*nh*s^2/t",
            bytes=attention_buffer_bytes(job),
        ),
    )


def workspace_bytes(job: HasMicroBatch) -> int:
    """Workspaces that cuBLAS and Transformer Engine take from PyTorch's allocator.

    torch gives cuBLAS 32 MiB a handle on Hopper and where CUBLAS_WORKSPACE_CONFIG=:4096:8 asks
    for determinism, 8 MiB elsewhere; two handles are seen in every record. Transformer Engine
    takes 32 MiB from sm90 on and 4 MiB before, and four more of them for grouped products.
    """
    handle = 32 * MIB if job.deterministic or job.card is Card.HOPPER else 8 * MIB
    engine = 4 * MIB if job.card is Card.AMPERE else 32 * MIB
    if job.implementation is not Implementation.PRODUCTION:
        return 2 * handle
    grouped = job.text.has_experts and job.routing.grouped_gemm
    return 2 * handle + engine * (5 if grouped else 1)


def dummy_gradients(job: Holding, layers: Iterable[Layer]) -> tuple[Part, ...]:
    """Transformer Engine's cache of placeholder weight gradients, one tensor per distinct weight shape.

    With fused gradient accumulation the true gradient is written elsewhere, and autograd is
    handed a tensor of the weight's size that lives as long as the process.
    """
    if job.implementation is not Implementation.PRODUCTION or not job.gradient_accumulation_fusion:
        return ()
    shapes: dict[str, int] = {}
    for layer in layers:
        for weights in layer_weights(job, layer):
            if weights.trainable and weights.name in _CACHED:
                elements = weights.elements
                if weights.expert:
                    assert job.text.experts is not None
                    elements //= job.text.experts.count // job.layout.expert
                shapes[weights.name] = elements
    count = job.precision.activation_bytes * sum(shapes.values())
    formula = "a * elements of each distinct weight shape"
    return (_part("dummy weight gradients", formula, count, Category.TEMPORARY),) if count else ()


_CACHED = frozenset(
    {"query", "key and value", "attention output", "feed-forward", "routed experts", "shared expert"}
)


def outside_bytes(job: TrainingJob, allocated_bytes: int, calibration: Calibration) -> tuple[int, int]:
    """(fragmentation, context): bytes of the card that the allocator's allocated figure does not show."""
    if job.implementation is Implementation.UNFUSED:
        return 0, 0
    share = (
        calibration.fragmentation_expandable if job.expandable_segments else calibration.fragmentation_default
    )
    layout = job.layout
    groups = (
        layout.tensor,
        layout.context,
        layout.pipeline,
        layout.data,
        layout.expert,
        layout.expert_tensor,
    )
    communicators = sum(size > 1 for size in groups)
    context = calibration.context_bytes + communicators * calibration.communicator_bytes
    return round(share * allocated_bytes), context + dispatcher_buffer_bytes(job)


#: DeepEP's rows of a buffer: 10 channels of 8 ranks of 256 rows within a node; from its configuration's
#: published sizes (EP 8: 126, 210, 336 MB for h = 2048, 4096, 7168; EP 64: 714 MB), and a node's rows beyond.
_DEEPEP_ROWS, _DEEPEP_NODE_ROWS, _NODE = 10 * 8 * 256, 2880, 8


def dispatcher_buffer_bytes(job: TrainingJob) -> int:
    """Buffers of the flex dispatcher, outside PyTorch's allocator. A for DeepEP's sizes, C for others.

    DeepEP: rows * (2h + 2056). HybridEP and NCCL-EP size theirs by the most rows that came, in and out.
    """
    if job.routing.dispatcher is not Dispatcher.FLEX or job.text.experts is None:
        return 0
    hidden = job.text.experts.latent_size or job.text.hidden_size
    if job.routing.backend == "deepep":
        nodes = -(-job.layout.expert * job.layout.expert_tensor // _NODE)
        rows = _DEEPEP_ROWS + (_DEEPEP_NODE_ROWS * nodes if nodes > 1 else 0)
        return rows * (2 * hidden + 2056)
    return 2 * job.precision.activation_bytes * routed_rows(job) * hidden
