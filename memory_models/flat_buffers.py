"""Which optimizer states one data-parallel rank holds: its shard is a stretch of a flat buffer.

Megatron's distributed optimizer lays the parameters of a model chunk into a buffer, the last module first,
experts that are spread over ranks into one of their own, and gives each rank an equal stretch of it. A
rank has the states of some components whole then, and of others none; what all ranks hold together, and
the size of each stretch, does not depend on it. Where gradients are reduced while backward runs
(overlap_grad_reduce), the first stage cuts its buffer into buckets of 40 M parameters or more and each
bucket into stretches, which comes near an even spread: then the mean is the better answer, and none is
given here. Certainty A (megatron-core 0.16.1, checked under the probe).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import lcm

from memory_models.breakdown import Component
from memory_models.choices import HasStates, holding
from memory_models.job import Sharding, TrainingJob
from memory_models.parameters import Weights, entering_weights, layer_weights, leaving_weights
from memory_models.placement import Place, places
from memory_models.states import state_shard

#: A buffer is padded to a multiple of this many elements, and of the ranks that share it.
_UNIT = 128

Stretch = tuple[Component, int]


def shard_elements(job: TrainingJob, stage: int, rank: int) -> dict[Component, int] | None:
    """Elements of the optimizer's shard by component, on the rank of this number in the whole job.

    None where states are not sharded so, or by buckets. Raises ValueError where the rank is of another stage.
    """
    layout = job.layout
    ranks = layout.world_size // layout.pipeline
    if rank // ranks != stage:
        raise ValueError(f"rank {rank} is on stage {rank // ranks} of {layout.pipeline}, not on {stage}")
    optimizer = job.optimizer
    if job.sharding is not Sharding.NONE or not optimizer.distributed or (optimizer.bucketed and not stage):
        return None
    within = rank % ranks
    held = holding(job)
    sums = dict.fromkeys(Component, 0)
    chunks = places(job.text, layout)[stage]
    beside_embedding = any(place.first for place in chunks)
    for place in chunks:
        weights = [w for w in _in_order(held, place, beside_embedding=beside_embedding) if w.trainable]
        for apart in (False, True):
            buffer = [w for w in weights if _apart(job, w) is apart]
            if not buffer:
                continue
            shards = state_shard(held, buffer[0])
            peers = layout.expert_tensor * layout.expert if apart else layout.tensor
            for component, elements in _stretch(buffer, shards, within // peers % shards):
                sums[component] += elements
    return sums


def _apart(job: TrainingJob, weights: Weights) -> bool:
    """Experts have a buffer of their own only where they are spread over ranks."""
    return weights.expert and job.layout.expert > 1


def _in_order(job: HasStates, place: Place, *, beside_embedding: bool) -> Iterator[Weights]:
    """What learns of a chunk, as its modules follow each other. Within a component the order is free."""
    yield from entering_weights(job, place)
    for layer, count in (*place.runs, *place.prediction):
        yield from count * layer_weights(job, layer)
    yield from leaving_weights(job, place, beside_embedding=beside_embedding)


def _stretch(buffer: list[Weights], shards: int, index: int) -> Iterator[Stretch]:
    """What of a buffer stands on shard ``index`` of ``shards``; it begins with the last module."""
    unit = lcm(shards, _UNIT)
    size = -(-sum(weights.elements for weights in buffer) // unit) * unit // shards
    start, end, position = index * size, (index + 1) * size, 0
    for weights in reversed(buffer):
        low, high = max(position, start), min(position + weights.elements, end)
        if low < high:
            yield weights.component, high - low
        position += weights.elements


def apportioned(total_bytes: int, elements: Mapping[Component, int]) -> dict[Component, int]:
    """Bytes in proportion to elements, which sum to the total; components without any are left out."""
    count = sum(elements.values())
    shares = {part: total_bytes * held // count for part, held in elements.items() if held}
    if shares:
        largest = max(shares, key=lambda part: shares[part])
        shares[largest] += total_bytes - sum(shares.values())
    return shares
