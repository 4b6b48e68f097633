"""What requests can name, and who does the work, as the service shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from bisection.adapters.catalogue import Profile, RepositoryEntry
from bisection.adapters.storage.pools import QueueLoad, RunningTrial
from bisection.adapters.storage.roster import WorkerRow


class ProfileView(BaseModel):
    """A training job that can be repeated at any commit of a repository."""

    model_config = ConfigDict(title="Profile")

    name: str
    description: str
    repository: str
    device: str
    gpus: int
    queue: str
    capacity_bytes: int | None
    steps: int
    data: str
    criterion: dict[str, Any] | None
    trial_seconds: float
    gpu_hours_without_approval: float | None = Field(
        description="Above them a bisection waits for somebody with the scope approve; null: no limit."
    )
    digest: str


class ProfileList(BaseModel):
    items: list[ProfileView]


class RepositoryView(BaseModel):
    """A repository that can be bisected."""

    model_config = ConfigDict(title="Repository")

    name: str
    default_branch: str
    pins: dict[str, str]
    webhook: bool = Field(description="Whether failed workflow runs start bisections.")
    profiles: list[str] = Field(description="Names of the training jobs that are its.")


class RepositoryList(BaseModel):
    items: list[RepositoryView]


class RunningTrialView(BaseModel):
    """A trial that runs now."""

    model_config = ConfigDict(title="RunningTrial")

    id: str
    bisection: str
    ordinal: int
    commit: str
    started_at: str
    progress: str


class WorkerView(BaseModel):
    """A worker process that is alive."""

    model_config = ConfigDict(title="Worker")

    name: str
    queue: str
    started_at: str
    trial: RunningTrialView | None = Field(description="What it runs now.")


class WorkerList(BaseModel):
    items: list[WorkerView]


class PoolView(BaseModel):
    """A queue of trials, and the workers that serve it."""

    model_config = ConfigDict(title="Pool")

    queue: str
    profiles: list[str] = Field(description="Names of the training jobs whose trials go there.")
    workers: int
    running: int
    queued: int
    oldest_queued_at: str | None = Field(description="Since when the first of the queued trials waits.")


class PoolList(BaseModel):
    items: list[PoolView]


def show_profile(profile: Profile) -> ProfileView:
    """What a requester needs to know; commands, paths and environments stay the operator's."""
    criterion = profile.default_criterion()
    return ProfileView(
        name=profile.name,
        description=profile.description,
        repository=profile.repository,
        device=profile.device,
        gpus=profile.gpus,
        queue=profile.queue,
        capacity_bytes=profile.capacity_bytes,
        steps=profile.steps,
        data=profile.data.kind,
        criterion=criterion.to_json() if criterion else None,
        trial_seconds=profile.limits.trial_seconds,
        gpu_hours_without_approval=profile.limits.gpu_hours_without_approval,
        digest=profile.digest,
    )


def show_repository(entry: RepositoryEntry, profiles: Sequence[Profile]) -> RepositoryView:
    """The URL stays the operator's: it may name an internal host."""
    return RepositoryView(
        name=entry.name,
        default_branch=entry.default_branch,
        pins=dict(entry.pins),
        webhook=entry.webhook is not None,
        profiles=[profile.name for profile in profiles if profile.repository == entry.name],
    )


def show_worker(row: WorkerRow, running: Sequence[RunningTrial]) -> WorkerView:
    """A worker runs one trial at a time; after a lost lease an older claim of its may still be there."""
    own = [trial for trial in running if trial.worker == row.name]
    trial = own[-1] if own else None
    return WorkerView(
        name=row.name,
        queue=row.queue,
        started_at=row.started_at,
        trial=RunningTrialView(
            id=trial.id,
            bisection=trial.bisection_id,
            ordinal=trial.ordinal,
            commit=trial.trial.state.commit,
            started_at=trial.started_at,
            progress=trial.progress,
        )
        if trial
        else None,
    )


def show_pools(
    loads: Mapping[str, QueueLoad], workers: Sequence[WorkerRow], profiles: Sequence[Profile]
) -> list[PoolView]:
    """Every queue that a profile names, that a worker serves or in which a trial is, by name."""
    queues = {*loads, *(worker.queue for worker in workers), *(profile.queue for profile in profiles)}
    pools = []
    for queue in sorted(queues):
        load = loads.get(queue)
        oldest = load.oldest_queued if load else None
        pools.append(
            PoolView(
                queue=queue,
                profiles=[profile.name for profile in profiles if profile.queue == queue],
                workers=sum(worker.queue == queue for worker in workers),
                running=load.running if load else 0,
                queued=load.queued if load else 0,
                oldest_queued_at=datetime.fromtimestamp(oldest, UTC).isoformat() if oldest else None,
            )
        )
    return pools
