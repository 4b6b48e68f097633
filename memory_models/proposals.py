"""The legal neighbourhood of a job: single changes of its configuration that may lower the peak.

Each change names what it costs in time, and which check of megatron-core or Bridge refuses it. What it
saves is remedies.py's to estimate.
"""

from __future__ import annotations

from collections.abc import Iterator

from memory_models.calibration import Calibration
from memory_models.job import Granularity, TrainingJob
from memory_models.proposal import Proposal
from memory_models.proposals_kernels import (
    allocator_proposals,
    batch_proposals,
    dispatcher_proposals,
    graph_proposals,
    loss_proposals,
    offload_proposals,
    vision_proposals,
)
from memory_models.proposals_layout import expert_proposals, layout_proposals
from memory_models.proposals_recompute import adapter_proposals, full_proposals, selective_proposals
from memory_models.proposals_states import state_proposals


def proposals(job: TrainingJob, capacity_bytes: int, calibration: Calibration) -> Iterator[Proposal]:
    """Every single change, illegal ones with the check that refuses them.

    ``capacity_bytes`` decides only whether splitting experts is worth proposing.
    """
    yield from allocator_proposals(job)
    yield from loss_proposals(job)
    yield from selective_proposals(job)
    if job.recompute.granularity is not Granularity.FULL:
        yield from full_proposals(job)
    yield from adapter_proposals(job)
    yield from state_proposals(job)
    yield from expert_proposals(job, capacity_bytes, calibration)
    yield from layout_proposals(job)
    yield from dispatcher_proposals(job)
    yield from graph_proposals(job)
    yield from offload_proposals(job)
    yield from batch_proposals(job)
    yield from vision_proposals(job)
