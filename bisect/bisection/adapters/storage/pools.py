"""Who runs what, and what waits for whom: the trials of now, by worker and by queue."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import func, select

from bisection.adapters.storage.database import Database
from bisection.adapters.storage.schema import trials
from bisection.adapters.storage.trials import TrialStatus
from bisection.ledger import Trial


@dataclass(frozen=True, kw_only=True)
class RunningTrial:
    """A trial that a worker has claimed."""

    id: str
    bisection_id: str
    ordinal: int
    queue: str
    worker: str
    started_at: str
    progress: str
    trial: Trial


@dataclass(frozen=True, kw_only=True)
class QueueLoad:
    """What is in one queue now."""

    queue: str
    queued: int
    running: int
    oldest_queued: float | None  #: epoch seconds; None where nothing waits


class Pools:
    """Reads; nothing here writes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def running(self) -> list[RunningTrial]:
        """By worker and start."""
        names = (name for name in RunningTrial.__dataclass_fields__)
        query = (
            select(*(trials.c[name] for name in names))
            .where(trials.c.status == TrialStatus.RUNNING.value, trials.c.worker.is_not(None))
            .order_by(trials.c.worker, trials.c.started_at)
        )
        with self._database.read() as connection:
            rows = connection.execute(query).all()
        return [RunningTrial(**{**row._mapping, "trial": Trial.from_json(row.trial)}) for row in rows]

    def loads(self) -> dict[str, QueueLoad]:
        """By queue; queues in which nothing is are absent."""
        query = (
            select(trials.c.queue, trials.c.status, func.count(), func.min(trials.c.queued_at))
            .where(trials.c.status.in_([TrialStatus.QUEUED.value, TrialStatus.RUNNING.value]))
            .group_by(trials.c.queue, trials.c.status)
        )
        counts: dict[tuple[str, str], tuple[int, float]] = {}
        with self._database.read() as connection:
            for queue, status, count, oldest in connection.execute(query):
                counts[queue, status] = (count, oldest)
        loads = {}
        for queue in sorted({queue for queue, _ in counts}):
            queued = counts.get((queue, TrialStatus.QUEUED.value))
            running = counts.get((queue, TrialStatus.RUNNING.value))
            loads[queue] = QueueLoad(
                queue=queue,
                queued=queued[0] if queued else 0,
                running=running[0] if running else 0,
                oldest_queued=queued[1] if queued else None,
            )
        return loads
