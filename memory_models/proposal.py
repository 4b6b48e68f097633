"""What a change of the configuration is, before anybody has estimated what it saves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from memory_models.job import TrainingJob

#: What a fitting remedy leaves free, as a share of the capacity: the estimate's own uncertainty.
MARGIN = 0.03


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A change, before anybody has estimated what it saves."""

    title: str
    change: Mapping[str, Any]
    job: TrainingJob | None  #: None where the changed job cannot be laid out
    slowdown: float
    cost: str
    source: str
    why_not: str = ""
    alters_training: bool = False


def changed_job(job: TrainingJob, **changes: Any) -> tuple[TrainingJob | None, str]:
    """The changed job, or why it is none."""
    try:
        changed = replace(job, **changes)
        _ = changed.microbatches
        return changed, ""
    except ValueError as error:
        return None, str(error)


def changed_layout(job: TrainingJob, **sizes: Any) -> tuple[TrainingJob | None, str]:
    try:
        return replace(job, layout=replace(job.layout, **sizes)), ""
    except ValueError as error:
        return None, str(error)
