"""Why a bisection does not go on, where only people can help: nobody serves its queue, or approved it.

A profile may name a queue before its workers are started, so this is a hint and
not an error. Nothing here changes anything.
"""

from __future__ import annotations

from collections.abc import Sequence

from bisection.adapters.storage.bisections import BisectionRow, Status
from bisection.adapters.storage.roster import Roster
from bisection.adapters.storage.trials import TrialRow, TrialStatus
from bisection.progress import ANSWER_SO_FAR
from service.parts import Parts
from service.shapes import BisectionView, view


def view_now(row: BisectionRow, parts: Parts) -> BisectionView:
    """The bisection as it stands, its trials and hints looked up."""
    trials = parts.trials.of(row.id)
    told = parts.bisections.last_event(row.id, ANSWER_SO_FAR)
    return view(row, trials, parts.settings, hints(row, trials, parts.roster), told.payload if told else None)


def hints(row: BisectionRow, trials: Sequence[TrialRow], roster: Roster) -> list[str]:
    """Empty while a trial runs, while a worker of the pool is alive, and when no trial is wanted any more."""
    if row.status is Status.HELD:
        return [_awaited_approval(row)]
    if row.status not in (Status.PLANNED, Status.RUNNING, Status.VERIFYING):
        return []
    if any(trial.status is TrialStatus.RUNNING for trial in trials):
        return []
    queue = str(row.profile["queue"])
    if roster.alive(queue):
        return []
    return [f"no worker serves queue {queue}; start one with `firstbad worker --queue {queue}`"]


def _awaited_approval(row: BisectionRow) -> str:
    limit = row.profile["limits"]["gpu_hours_without_approval"]
    expected = (row.plan or {}).get("gpu_hours")
    about = f"about {expected:.1f} GPU hours are expected" if expected is not None else "it takes more"
    return (
        f"{about}, and profile {row.profile['name']!r} allows {limit:g} without approval: somebody with the "
        f"scope approve has to decide, with `firstbad approve {row.id}` or `firstbad refuse {row.id}`"
    )
