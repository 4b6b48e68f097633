"""From a request's words to a specification: what only git and the worker can know.

A request whose words cannot be carried out ends as a REJECTED finding that names
the repair; nothing is retried that would be refused again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bisection.adapters.catalogue import CatalogueError, Profile
from bisection.adapters.mirror import Mirror, MirrorError, MissingPath, Unreachable
from bisection.criteria import Criterion
from bisection.finding import Finding, FindingKind
from bisection.forecast import forecast
from bisection.levels import Level
from bisection.measurement import Measurement, Outcome
from bisection.specification import BisectionSpec, Budget
from workers.context import WorkerContext
from workers.eras import OverrideRefused
from workers.launching import check_overrides
from workers.pair_ends import pair_level
from workers.redacted_messages import NO_SUCH_KEY
from workers.state_reading import StateReader
from workers.workspaces import mirror_of


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """A request that can be carried out, and what carrying it out will take."""

    spec: BisectionSpec
    plan: Mapping[str, Any]


def rejected(why: str, problem: str) -> Finding:
    return Finding(kind=FindingKind.REJECTED, why=why, problem=problem)


def criterion_of(request: Mapping[str, Any], profile: Profile) -> Criterion:
    """The request's criterion, filled up from the profile's.

    ValueError if a number is missing, or this profile's runs cannot be judged by it.
    """
    criterion = _criterion_of(request, profile)
    refusal = profile.refuses(criterion)
    if refusal:
        raise ValueError(f"{refusal}; name a profile that trains on real data, and is no dry run")
    return criterion


def _criterion_of(request: Mapping[str, Any], profile: Profile) -> Criterion:
    wanted = request.get("criterion")
    if not wanted:
        default = profile.default_criterion()
        if default is None:
            raise ValueError(f"profile {profile.name!r} has no default criterion; give one in the request")
        return default
    capacity = wanted.get("capacity_bytes") or profile.capacity_bytes
    return Criterion.from_json({**wanted, "capacity_bytes": capacity})


def open_mirror(context: WorkerContext, profile: Profile) -> Mirror:
    return mirror_of(context.root, context.catalogue.repository(profile.repository))


def resolve(
    context: WorkerContext, request: Mapping[str, Any], profile: Profile, past_seconds: float | None
) -> Resolved | Finding:
    """Ask git. ``past_seconds`` is what a trial of this profile took so far, if one was run.

    Raises `Unreachable` where a repository on another host does not answer: that may pass.
    """
    try:
        check_overrides(request.get("overrides") or {})
        spec = _specify(context, request, profile)
    except Unreachable as error:
        if is_elsewhere(context, profile):
            raise
        return rejected(str(error), error.problem)
    except MirrorError as error:
        return rejected(str(error), error.problem)
    except CatalogueError as error:
        return rejected(str(error), "repository-not-registered")
    except OverrideRefused as error:
        return rejected(str(error), "override-refused")
    except ValueError as error:
        return rejected(str(error), "criterion-invalid")
    return Resolved(spec=spec, plan=forecast(spec, past_seconds).to_json())


def _specify(context: WorkerContext, request: Mapping[str, Any], profile: Profile) -> BisectionSpec:
    mirror = open_mirror(context, profile)
    mirror.fetch()
    good, bad = request["good"], request["bad"]
    first: Level | None = None
    if isinstance(good, str) and isinstance(bad, str):
        ends = mirror.resolve(good), mirror.resolve(bad)
        refuse_absent_paths(context, profile, mirror, ends)
        commits = mirror.read_range(*ends, profile.relevant_paths, profile.environment_paths)
    else:
        first = pair_level(StateReader(context.root, context.catalogue, profile), profile, good, bad)
        commits = first.range
    workers = max(1, len(context.roster.alive(profile.queue)))
    return BisectionSpec(
        range=commits,
        first=first,
        criterion=criterion_of(request, profile),
        budget=Budget(**(request.get("budget") or {})),
        parallel=request.get("parallel") or workers,
        confidence=request.get("confidence") or BisectionSpec.confidence,
        seed=request.get("seed") or 0,
        relevant_paths=profile.relevant_paths,
        gpus_per_trial=profile.gpus,
        workers=workers,
    )


def refuse_absent_paths(
    context: WorkerContext, profile: Profile, mirror: Mirror, commits: Sequence[str]
) -> None:
    """Raises MissingPath for a relevant path that none of the commits has.

    A slip of the pen there would make all commits one state, and an answer of nothing.
    """
    pins = context.catalogue.repository(profile.repository).pins
    for path in profile.relevant_paths:
        name = path.rstrip("/")
        below_a_pin = any(name == pin or name.startswith(f"{pin}/") for pin in pins)
        if not below_a_pin and not any(mirror.has_path(commit, name) for commit in commits):
            raise MissingPath(
                f"profile {profile.name!r} names {path!r} under relevant_paths, which neither end of the "
                "range has: correct it there"
            )


def is_elsewhere(context: WorkerContext, profile: Profile) -> bool:
    return not context.catalogue.repository(profile.repository).url.startswith(("/", "file://"))


def refused_key(measurement: Measurement, overrides: Mapping[str, Any]) -> str | None:
    """The override that the training script did not know, if that is why it failed."""
    if measurement.outcome is not Outcome.CRASHED or not NO_SUCH_KEY.search(measurement.reason):
        return None
    for key in overrides:
        last = re.escape(key.rpartition(".")[2])
        if re.search(rf"(?<![\w]){last}(?![\w])", measurement.reason):
            return key
    return None
