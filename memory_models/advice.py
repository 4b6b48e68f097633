"""The practice that the field has, as steps with a gate each: how to bring a job up and speed it up.

FSDP first; real data that stays stable; selective recompute once it fits; then a layout with
tensor and pipeline ranks, if its estimated headroom pays. Every step carries the
configuration, the estimate and the reason; what a step promises is estimated anew.
"""

from __future__ import annotations

from dataclasses import replace

from memory_models.advice_memory import (
    adapters,
    allocator,
    data,
    fsdp,
    fully_sharded,
    last_resorts,
    recompute,
)
from memory_models.advice_speed import frozen_tower, kernels, micro_batches, three_dimensions
from memory_models.advice_step import Advice
from memory_models.calibration import DEFAULT, Calibration
from memory_models.estimation import estimate
from memory_models.job import TrainingJob
from memory_models.proposal import MARGIN


def advise(job: TrainingJob, capacity_bytes: int, calibration: Calibration = DEFAULT) -> tuple[Advice, ...]:
    """The steps for this job on cards of this capacity, in order.

    Raises ValueError where the job itself cannot be laid out.
    """
    room = capacity_bytes * (1 - MARGIN)

    def size(some: TrainingJob) -> int:
        return estimate(some, calibration).worst.device_bytes

    size(job)
    start = job if job.user_buffers else replace(job, expandable_segments=True)
    steps = [allocator(job, size(start), room)]
    start, regather = adapters(start, size, room)
    steps += regather
    sharded = fully_sharded(start)
    if sharded is not None:
        steps.append(fsdp(sharded, size(sharded), room, capacity_bytes))
    current = sharded or start
    steps.append(data(size(current), room))
    current, found = recompute(current, size, room)
    steps += found
    steps += last_resorts(current, size, room)
    steps += three_dimensions(start, current, size, room)
    steps += micro_batches(current, size, room)
    steps += frozen_tower(current, size, room)
    steps += kernels(start, current, size, room)
    return tuple(steps)
