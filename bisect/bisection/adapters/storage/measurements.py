"""Measurements across bisections: which ones a state has, taking one over, retracting faulty ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import RowMapping, func, insert, select, update

from bisection.adapters.storage.audit import record
from bisection.adapters.storage.bisections import Status, append_event
from bisection.adapters.storage.clock import Clock
from bisection.adapters.storage.database import Database, new_id, now
from bisection.adapters.storage.schema import artifacts, bisections, trials
from bisection.adapters.storage.trials import TrialStatus
from bisection.ledger import Trial
from bisection.measurement import Measurement

#: Keys in one query: SQLite takes 32,766 values, older ones 999.
_KEYS_AT_ONCE = 500


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A finished trial of another bisection."""

    trial_id: str
    bisection_id: str
    ordinal: int
    key: str
    queue: str
    ended_at: str
    measurement: Measurement


@dataclass(frozen=True, kw_only=True)
class TakenOver:
    """An entry to be made of it: ``trial`` is of the bisection that takes it over."""

    source: Measured
    trial: Trial


class Measurements:
    """Reads, takes over and retracts; rows of trials are the only store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def of_others(self, bisection_id: str, keys: Sequence[str], *, since: str) -> list[Measured]:
        """Originals with one of the keys, newest first: not retracted, not taken over here before."""
        here = select(trials.c.source_trial).where(
            trials.c.bisection_id == bisection_id, trials.c.source_trial.is_not(None)
        )
        found: list[Measured] = []
        with self._database.read() as connection:
            for some in _batches(keys):
                query = select(
                    trials.c.id,
                    trials.c.bisection_id,
                    trials.c.ordinal,
                    trials.c.reuse_key,
                    trials.c.queue,
                    trials.c.ended_at,
                    trials.c.measurement,
                ).where(
                    trials.c.reuse_key.in_(some),
                    trials.c.bisection_id != bisection_id,
                    trials.c.sequence.is_not(None),
                    trials.c.source_trial.is_(None),
                    trials.c.retracted_at.is_(None),
                    trials.c.ended_at >= since,
                    trials.c.id.not_in(here),
                )
                found += [_measured(row._mapping) for row in connection.execute(query)]
        return sorted(found, key=lambda one: one.ended_at, reverse=True)

    def of_ancestor(self, ancestor_id: str, bisection_id: str) -> list[TakenOver]:
        """All that a bisection's ledger holds and this one has not yet, as its trials, in their order.

        What the ancestor had taken over itself is there as well, by its original. Nothing retracted is.
        """
        original = trials.alias()
        here = select(trials.c.source_trial).where(
            trials.c.bisection_id == bisection_id, trials.c.source_trial.is_not(None)
        )
        source = func.coalesce(trials.c.source_trial, trials.c.id)
        query = (
            select(
                source.label("id"),
                trials.c.bisection_id,
                trials.c.ordinal,
                func.coalesce(trials.c.reuse_key, "").label("reuse_key"),
                trials.c.queue,
                trials.c.ended_at,
                trials.c.measurement,
                trials.c.trial,
            )
            .join(original, original.c.id == source)
            .where(
                trials.c.bisection_id == ancestor_id,
                trials.c.sequence.is_not(None),
                original.c.retracted_at.is_(None),
                source.not_in(here),
            )
            .order_by(trials.c.sequence)
        )
        with self._database.read() as connection:
            rows = connection.execute(query).all()
        return [TakenOver(source=_measured(row._mapping), trial=Trial.from_json(row.trial)) for row in rows]

    def take_over(self, bisection_id: str, version: int, entries: Sequence[TakenOver]) -> bool:
        """Append them to the ledger; False, and nothing is written, if the bisection changed meanwhile."""
        with self._database.write() as connection:
            moved = connection.execute(
                update(bisections)
                .where(
                    bisections.c.id == bisection_id,
                    bisections.c.version == version,
                    bisections.c.status.in_([Status.RUNNING.value, Status.VERIFYING.value]),
                )
                .values(version=version + 1, updated_at=now())
            ).rowcount
            if not moved:
                return False
            ordinal, sequence = connection.execute(
                select(func.count(), func.coalesce(func.max(trials.c.sequence) + 1, 0)).where(
                    trials.c.bisection_id == bisection_id
                )
            ).one()
            for offset, entry in enumerate(entries):
                source, moment = entry.source, now()
                row = {
                    "id": new_id(),
                    "bisection_id": bisection_id,
                    "key": entry.trial.key,
                    "ordinal": ordinal + offset,
                    "trial": entry.trial.to_json(),
                    "queue": source.queue,
                    "status": TrialStatus.DONE.value,
                    "created_at": moment,
                    "queued_at": Clock(),
                    "claim": 0,
                    "worker": source.measurement.worker or None,
                    "started_at": moment,
                    "ended_at": moment,
                    "progress": "",
                    "sequence": sequence + offset,
                    "measurement": source.measurement.evolve(state=entry.trial.state).to_json(),
                    "source_trial": source.trial_id,
                }
                connection.execute(insert(trials).values(row))
                left = select(artifacts.c.name, artifacts.c.content).where(
                    artifacts.c.trial_id == source.trial_id
                )
                for kept in connection.execute(left).all():
                    connection.execute(
                        insert(artifacts).values(trial_id=row["id"], name=kept.name, content=kept.content)
                    )
                append_event(
                    connection,
                    bisection_id,
                    "trial_taken_over",
                    {"trial": row["id"], "ordinal": row["ordinal"], **entry.trial.to_json()},
                )
        return True

    def retract(self, *, worker: str | None = None, key: str | None = None, by: str = "") -> int:
        """Never take these over again; how many there were. What was taken over before stays where it is."""
        wanted = [trials.c.worker == worker] if worker is not None else []
        wanted += [trials.c.reuse_key == key] if key is not None else []
        if not wanted:
            raise ValueError("name a worker or a key")
        with self._database.write() as connection:
            count = connection.execute(
                update(trials)
                .where(
                    *wanted,
                    trials.c.reuse_key.is_not(None),
                    trials.c.sequence.is_not(None),
                    trials.c.retracted_at.is_(None),
                )
                .values(retracted_at=now())
            ).rowcount
            if by:
                told = {"worker": worker, "key": key, "measurements": count}
                record(connection, by=by, action="measurements_retracted", subject=worker or "", told=told)
        return count


def _measured(row: RowMapping) -> Measured:
    return Measured(
        trial_id=row["id"],
        bisection_id=row["bisection_id"],
        ordinal=row["ordinal"],
        key=row["reuse_key"],
        queue=row["queue"],
        ended_at=row["ended_at"],
        measurement=Measurement.from_json(row["measurement"]),
    )


def _batches(keys: Sequence[str]) -> list[Sequence[str]]:
    unique = list(dict.fromkeys(keys))
    return [unique[at : at + _KEYS_AT_ONCE] for at in range(0, len(unique), _KEYS_AT_ONCE)]
