"""The whole logs of trials whose samples must not leave: kept on this host, for its operator, for a time."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

#: Long enough for somebody to come back from leave, and no longer: these logs may hold samples.
KEEP_SECONDS = 14 * 86400.0
#: A log has at most 1 MiB.
BUDGET_BYTES = 512 * 2**20


class WithheldLogs:
    """The folder ``root / "withheld-logs"``; any number of workers may share it."""

    def __init__(
        self, root: Path, keep_seconds: float = KEEP_SECONDS, budget_bytes: int = BUDGET_BYTES
    ) -> None:
        self.folder = root / "withheld-logs"
        self._keep_seconds = keep_seconds
        self._budget_bytes = budget_bytes

    def keep(self, name: str, log: str) -> Path:
        """Writes one, readable by the worker's user alone, and removes those whose time is over."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self.folder / f"{name}.txt"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(log.encode(errors="replace"))
        self.clean()
        return path

    def clean(self) -> None:
        """Removes what is older than its time, and the oldest of what is more than the budget."""
        ages = []
        with suppress(FileNotFoundError):
            for path in self.folder.iterdir():
                with suppress(FileNotFoundError):
                    facts = path.stat()
                    ages.append((facts.st_mtime, facts.st_size, path))
        left, oldest = self._budget_bytes, time.time() - self._keep_seconds
        for modified, size, path in sorted(ages, reverse=True):
            left -= size
            if modified < oldest or left < 0:
                path.unlink(missing_ok=True)
