"""Which measurements of other bisections count in this one, and which do not.

A measurement is of files, an environment, a job and a machine, not of a commit or a bisection. Whoever asks
about an overlapping range pays for it once: what is equal is taken over, as one entry of the ledger each.

What keeps it from misleading:

- the key names all that decides a measurement and is known beforehand: content, overrides, profile, data;
- what is known only afterwards (hardware, device, environment) must equal what this bisection itself has
  measured; so nothing is taken over before a trial of its own, the bad end as a rule, has run today;
- which of several is taken goes by age alone, never by outcome;
- each counts once, with the worker that measured it: an answer still needs two workers, or two trials;
- what was taken over is never passed on: only the original counts, and it can be retracted.

Not covered: what no key names, such as another driver on hardware of the same name. That is what the age
limit is for.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from bisection.commits import Commit, State
from bisection.criteria import Criterion, CriterionKind
from bisection.measurement import Measurement, Outcome
from bisection.specification import BisectionSpec

#: Drivers and firmware change by the week; what is older is measured again.
MOST_AGE = timedelta(days=14)
#: More measurements of one state would only repeat what two or three agreeing ones say.
MOST_PER_STATE = 4
#: What was really measured. A lost, unbuildable or invalid trial may be its host's doing.
_MEASURED = frozenset({Outcome.COMPLETED, Outcome.OUT_OF_MEMORY, Outcome.CRASHED, Outcome.TIMED_OUT})


@dataclass(frozen=True, kw_only=True)
class Job:
    """What decides a measurement besides the state, as a request and its profile say."""

    repository: str
    profile_digest: str  #: environment, launch, data, steps, devices, time limit
    relevant_paths: tuple[str, ...]
    overrides: Mapping[str, Any]


class ContentKeys:
    """The keys of a specification's states: equal for equal content, whatever the commits are called."""

    def __init__(self, spec: BisectionSpec, job: Job) -> None:
        self._commits: dict[str, Commit] = {
            commit.hash: commit for level in spec.levels if level.is_ground for commit in level.range.commits
        }
        self._job = [job.repository, job.profile_digest, list(job.relevant_paths), dict(job.overrides)]

    def key(self, state: State) -> str:
        """64 hex digits. Overridden pins and packages are named one by one, beside what they override."""
        row = [*self._job, self._content(state), state.pins, state.packages]
        return hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()

    def lock(self, state: State) -> tuple[object, ...]:
        """Equal for states whose environments are made from the same lock."""
        commit = self._commits.get(state.commit)
        return (commit.environment_key if commit else state.commit, state.packages)

    def _content(self, state: State) -> list[str]:
        commit = self._commits.get(state.commit)
        if commit is None or not commit.tree_key:
            return [state.commit]
        return [commit.tree_key, commit.environment_key]


def oldest_allowed(now: datetime) -> str:
    """UTC, ISO 8601: what ended before is too old."""
    return (now.astimezone(UTC) - MOST_AGE).isoformat(timespec="microseconds")


def counts_here(
    criterion: Criterion, measured: Measurement, state: State, own: Sequence[Measurement], keys: ContentKeys
) -> bool:
    """Whether a measurement with the key of ``state`` counts beside ``own``, what this bisection measured."""
    if measured.outcome not in _MEASURED:
        return False
    if (measured.device, measured.hardware) not in {(one.device, one.hardware) for one in own}:
        return False
    if measured.outcome is Outcome.OUT_OF_MEMORY and measured.capacity_bytes != criterion.capacity_bytes:
        return False  # refused at another limit: what it would have needed is not known
    if criterion.kind is CriterionKind.THROUGHPUT and measured.outcome is Outcome.COMPLETED:
        timed = {_control(one) for one in own if one.outcome is Outcome.COMPLETED}
        if _control(measured) not in timed:
            return False  # a speed is compared by its control, and that is of another state, or missing
    made = {keys.lock(one.state): one.environment_key for one in own if one.environment_key}
    return made.get(keys.lock(state), measured.environment_key) == measured.environment_key


def _control(measured: Measurement) -> State | None:
    return measured.control.state if measured.control else None


def is_own(measured: Measurement) -> bool:
    """Whether a trial of this bisection tells on what machine and in what environment it is measured."""
    return measured.outcome in _MEASURED
