"""What a bisection of a failed job looks for: the log's word on memory, the rule's word, the profile's."""

from __future__ import annotations

from bisection.adapters.catalogue import BadCatalogueFile, Profile
from bisection.adapters.nightlies import JobRule
from bisection.criteria import OUT_OF_MEMORY_SIGNATURE, Criterion, CriterionKind
from workers.ci_logs import LogReading
from workers.signatures import FailureKind

_MEMORY = (CriterionKind.OUT_OF_MEMORY, CriterionKind.PEAK_MEMORY)


def nightly_criterion(rule: JobRule, reading: LogReading, profile: Profile) -> Criterion:
    """A crash is looked for with whichever signature the bad end shows: a CI's log prints it otherwise.

    Raises BadCatalogueFile where the rule's own criterion lacks a number.
    """
    said = _from_rule(rule, profile)
    if reading.kind is FailureKind.DEVICE_MEMORY:
        return _memory_criterion(said, profile)
    if reading.kind is None:
        return said or profile.default_criterion() or Criterion(kind=CriterionKind.CRASH)
    # It failed in another way than by its memory: every such trial would be skipped by a criterion of memory.
    if said is not None and said.kind not in _MEMORY:
        return said
    return Criterion(kind=CriterionKind.CRASH)


def _memory_criterion(said: Criterion | None, profile: Profile) -> Criterion:
    for one in (said, profile.default_criterion()):
        if one is not None and one.kind in _MEMORY:
            return one
    if profile.capacity_bytes:
        return Criterion(kind=CriterionKind.OUT_OF_MEMORY, capacity_bytes=profile.capacity_bytes)
    return Criterion(kind=CriterionKind.CRASH, signature=OUT_OF_MEMORY_SIGNATURE)


def _from_rule(rule: JobRule, profile: Profile) -> Criterion | None:
    if rule.criterion is None:
        return None
    values = rule.criterion.model_dump()
    if rule.criterion.kind is CriterionKind.OUT_OF_MEMORY:
        values["capacity_bytes"] = rule.criterion.capacity_bytes or profile.capacity_bytes
    try:
        return Criterion(**values)
    except ValueError as error:
        raise BadCatalogueFile(f"the criterion of the rule for {rule.job!r}: {error}") from error
