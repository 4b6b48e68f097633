"""What every task of a worker process needs, put together once by whoever starts the worker."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bisection.adapters.catalogue import Catalogue
from bisection.adapters.queue import CONTROL, Hints
from bisection.adapters.storage.artifacts import Artifacts
from bisection.adapters.storage.bisections import Bisections
from bisection.adapters.storage.claims import Claims
from bisection.adapters.storage.database import Database
from bisection.adapters.storage.installation_keys import InstallationKeys
from bisection.adapters.storage.removals import Keeping
from bisection.adapters.storage.roster import Roster
from bisection.adapters.storage.trials import Trials


@dataclass(frozen=True, kw_only=True)
class WorkerContext:
    """One worker process: its name, the queue it serves, and its doors to the outside."""

    name: str  #: unique among living workers, e.g. "local-1@host"
    queue: str
    database: Database
    hints: Hints
    catalogue: Catalogue
    root: Path  #: where mirrors, workspaces, environments and running trials are kept
    keeping: Keeping = Keeping()  #: how long what has ended is kept
    public_url: str = ""  #: how people reach the service, "" if only this machine does

    @property
    def bisections(self) -> Bisections:
        return Bisections(self.database)

    @property
    def trials(self) -> Trials:
        return Trials(self.database)

    @property
    def claims(self) -> Claims:
        return Claims(self.database)

    @property
    def artifacts(self) -> Artifacts:
        return Artifacts(self.database)

    @property
    def keys(self) -> InstallationKeys:
        return InstallationKeys(self.database)

    @property
    def roster(self) -> Roster:
        return Roster(self.database)

    @property
    def serves_control(self) -> bool:
        return self.queue == CONTROL
