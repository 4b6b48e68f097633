"""Buffers of Megatron FSDP in forward and backward: gathered units, and gradients that wait to be reduced.

Section 2b of the formulas page. U = elements of a layer with its local experts, S = the communication
unit: 2U, and at most 1e9 elements; before PR #7134 at least 1e9. Certainty B: measured peaks, which come
at the loss, show one unit of gradients whatever S is, as when backward has only begun.
"""

from __future__ import annotations

from memory_models.breakdown import Category, Component
from memory_models.choices import Holding
from memory_models.job import Sharding
from memory_models.parameters import Weights
from memory_models.tensors import Part
from memory_models.upstream import Change

#: suggested_communication_unit_size is held against this many elements.
UNIT_BOUND = 10**9


def fsdp_parts(job: Holding, weights: tuple[Weights, ...], *, late: bool) -> tuple[Part, ...]:
    """What a rank holds besides its shards; nothing without FSDP.

    Everything sharded: the unit at work and half of the next, the root's weights, and gradients. Those
    wait to be reduced: of one unit when backward begins, and when it ends (``late``) of as much as a
    communication unit holds. Gradients sharded: the gradients alone; before PR #6357 no units existed,
    so all gradients of the model are one bucket.
    """
    if job.sharding in (Sharding.NONE, Sharding.STATES):
        return ()
    layers = max(1, len(job.text.layers) // job.layout.pipeline)
    inside = sum([group.elements for group in weights if group.layer_unit])
    trainable = sum(group.elements for group in weights if group.trainable)
    unit = inside // layers
    queue, formula = (_communication_unit(job, unit), "g*S") if late else (unit, "g*U")
    reduced = job.precision.gradient_bytes * min(trainable, queue)
    if job.sharding is Sharding.STATES_GRADIENTS:
        if not job.upstream.has(Change.GRADIENT_UNITS):
            return (_part("unsharded gradient bucket", "g*P", job.precision.gradient_bytes * trainable),)
        return (_part("gradients to reduce", formula, reduced),)
    root = sum(group.elements for group in weights if not group.layer_unit)
    width = job.precision.parameter_bytes
    if job.double_buffer:
        # Two buffers of a unit for the weights and two for its gradients, from the first step to the last.
        return (
            _part("double buffer of weights", "2*w*U", 2 * width * unit),
            _part("double buffer of gradients", "2*g*U", 2 * job.precision.gradient_bytes * unit),
            _part("gathered root weights", "w*root", width * root),
        )
    return (
        _part("gathered FSDP unit", "1.5*w*U", width * 3 * unit // 2),
        _part("gathered root weights", "w*root", width * root),
        _part("gradients to reduce", formula, reduced),
    )


def _communication_unit(job: Holding, unit: int) -> int:
    """Elements whose gradients may wait at once (S)."""
    bound = min if job.upstream.has(Change.UNIT_CAP) else max
    return bound(UNIT_BOUND, 2 * unit)


def _part(tensor: str, formula: str, count: int) -> Part:
    return Part(
        component=Component.RUNTIME,
        category=Category.COMMUNICATION,
        tensor=tensor,
        formula=formula,
        bytes=count,
    )
