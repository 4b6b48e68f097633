"""What a reader is told where something was removed: by whom and when, and never as an error."""

from __future__ import annotations

from bisection.adapters.storage.database import Database
from bisection.adapters.storage.removals import POLICY, Removals, Removed

_KINDS = {
    Removed.LOGS: "The logs of its trials",
    Removed.ARTIFACTS: "The logs and files of its trials",
    Removed.BISECTION: "The bisection",
}


def removal_words(database: Database, bisection_id: str) -> str:
    """E.g. "The logs of its trials expired by policy on 2026-11-30."; "" where nothing was removed."""
    removals = Removals(database).of(bisection_id)
    if not removals:
        return ""
    last = removals[-1]
    if last.by == POLICY:
        return f"{_KINDS[last.what]} expired by policy on {last.at[:10]}."
    return f"{_KINDS[last.what]} was deleted on {last.at[:10]}."  # people delete all of it
