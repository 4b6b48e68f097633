"""What nightlies of a repository may start on one day, and what they have started."""

from __future__ import annotations

from datetime import UTC, datetime

from bisection.adapters.catalogue import RepositoryEntry
from bisection.adapters.storage.job_runs import JobRuns
from workers.context import WorkerContext


def over_limit(context: WorkerContext, entry: RepositoryEntry) -> str:
    """Why one more may not be started today; "" if it may. Two workers at once may let one more through."""
    limits = entry.limits
    today = datetime.now(UTC).date().isoformat()
    sources = [f"ci:{entry.name}", *([entry.webhook.github] if entry.webhook else [])]
    requests = JobRuns(context.database).requests_since(sources, today)
    if len(requests) >= limits.bisections_a_day:
        return (
            f"{len(requests)} bisections were started from nightlies of {entry.name} today (UTC), and "
            f"limits.bisections_a_day is {limits.bisections_a_day}"
        )
    if limits.gpu_hours_a_day is not None and limits.gpu_hours is not None:
        promised = sum((request.get("budget") or {}).get("gpu_hours") or 0.0 for request in requests)
        if promised + limits.gpu_hours > limits.gpu_hours_a_day:
            return (
                f"budgets of {promised:g} GPU hours were given to nightlies of {entry.name} today (UTC); "
                f"{limits.gpu_hours:g} more exceed limits.gpu_hours_a_day, {limits.gpu_hours_a_day:g}"
            )
    return ""
