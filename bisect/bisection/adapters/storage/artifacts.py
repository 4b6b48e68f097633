"""What the trials of a bisection left behind, by name."""

from __future__ import annotations

from collections import defaultdict

from sqlalchemy import select

from bisection.adapters.storage.database import Database
from bisection.adapters.storage.schema import artifacts, trials


class Artifacts:
    """Reads names and contents; both are written with the measurement, by `Claims.complete`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def names(self, bisection_id: str) -> dict[str, tuple[str, ...]]:
        """Trial id to the names of its artifacts, sorted; trials without any are absent."""
        query = (
            select(artifacts.c.trial_id, artifacts.c.name)
            .join(trials, trials.c.id == artifacts.c.trial_id)
            .where(trials.c.bisection_id == bisection_id)
            .order_by(artifacts.c.name)
        )
        names: defaultdict[str, list[str]] = defaultdict(list)
        with self._database.read() as connection:
            for row in connection.execute(query):
                names[row.trial_id].append(row.name)
        return {trial_id: tuple(found) for trial_id, found in names.items()}

    def content(self, trial_id: str, name: str) -> bytes | None:
        query = select(artifacts.c.content).where(artifacts.c.trial_id == trial_id, artifacts.c.name == name)
        with self._database.read() as connection:
            return connection.execute(query).scalar_one_or_none()
