"""What changed between two jobs: bytes by component and category, and which key explains which bytes.

Each configuration key that differs is switched alone, from the first job towards the second; then the keys
of one part of the configuration are switched together, as a layout often only is one as a whole. Keys that
cannot be switched alone, and what keys or groups do only together, are told apart.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from memory_models.breakdown import Cell
from memory_models.calibration import DEFAULT, Calibration
from memory_models.configuration_keys import BRIDGE_KEYS
from memory_models.estimation import Estimate, RankEstimate, estimate
from memory_models.job import TrainingJob

#: The name of what several keys do only together.
TOGETHER = "(together)"


@dataclass(frozen=True, kw_only=True)
class KeyEffect:
    """A configuration key that differs, and what switching it alone does to the peak."""

    key: str
    before: Any
    after: Any
    #: None where the job with only this key switched cannot be laid out
    delta_bytes: int | None
    #: what it does last: the second job against itself with this key switched back
    last_delta_bytes: int | None = None
    #: as delta_bytes, with what lies outside the allocator's figure: fragmentation, contexts, buffers
    device_delta_bytes: int | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "key": self.key,
            "before": plain(self.before),
            "after": plain(self.after),
            "delta_bytes": self.delta_bytes,
            "last_delta_bytes": self.last_delta_bytes,
            "device_delta_bytes": self.device_delta_bytes,
        }


#: Parts of a configuration whose keys are switched together, by the fields of a job.
GROUPS: Mapping[str, tuple[str, ...]] = {
    "parallel layout": ("layout",),
    "batch and data": ("batch", "unknowns"),
    "recompute and offload": ("recompute", "offload", "offloaded_layers"),
    "states and precision": ("optimizer", "precision", "sharding", "double_buffer"),
    "model and what of it learns": ("text", "vision", "frozen", "adapters"),
    "routing": ("routing",),
}
#: The group of every other field.
KERNELS = "kernels and software"


@dataclass(frozen=True, kw_only=True)
class GroupEffect:
    """Keys of one part of the configuration, and what switching all of them at once does to the peak."""

    name: str
    keys: tuple[str, ...]
    #: None where the job with only this group switched cannot be laid out
    delta_bytes: int | None
    #: what it does last: the second job against itself with this group switched back
    last_delta_bytes: int | None = None
    device_delta_bytes: int | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "group": self.name,
            "keys": list(self.keys),
            "delta_bytes": self.delta_bytes,
            "last_delta_bytes": self.last_delta_bytes,
            "device_delta_bytes": self.device_delta_bytes,
        }


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two estimates, and where their difference comes from."""

    before: Estimate
    after: Estimate
    delta: Mapping[Cell, int]  #: of the worst ranks' breakdowns, at their peaks
    keys: tuple[KeyEffect, ...]  #: the largest effect first, then what they do only together
    groups: tuple[GroupEffect, ...]  #: the same of groups of keys; none where each group is one key

    @property
    def delta_bytes(self) -> int:
        """The second job's peak minus the first's, in allocated bytes of the worst ranks."""
        return self.after.worst.allocated_bytes - self.before.worst.allocated_bytes

    @property
    def device_delta_bytes(self) -> int:
        """The same, with fragmentation, contexts and buffers outside the allocator."""
        return self.after.worst.device_bytes - self.before.worst.device_bytes

    def to_json(self) -> dict[str, Any]:
        return {
            "version": 1,
            "before": _summary(self.before),
            "after": _summary(self.after),
            "delta_bytes": self.delta_bytes,
            "device_delta_bytes": self.device_delta_bytes,
            "delta": [
                {"component": component.value, "category": category.value, "bytes": count}
                for (component, category), count in sorted(self.delta.items())
            ],
            "keys": [effect.to_json() for effect in self.keys],
            "groups": [effect.to_json() for effect in self.groups],
        }


def _summary(answer: Estimate) -> dict[str, Any]:
    worst = answer.worst
    return {
        "stage": worst.stage,
        "instant": worst.instant,
        "allocated_bytes": worst.allocated_bytes,
        "breakdown": worst.breakdown.to_json(),
    }


def plain(value: Any) -> Any:
    """A value of a job as JSON holds it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, tuple):
        return f"{len(value)} entries" if len(value) > 8 else [plain(item) for item in value]
    return value


def compare(before: TrainingJob, after: TrainingJob, calibration: Calibration = DEFAULT) -> Comparison:
    """The difference of two jobs, and the share of each key that differs.

    Raises ValueError where one of the two cannot be laid out.
    """
    first, second = estimate(before, calibration), estimate(after, calibration)
    differing = list(differences(before, after))
    effects = [
        KeyEffect(
            key=BRIDGE_KEYS.get(path, path),
            before=old,
            after=new,
            **_switching(first, second, before, after, [(path, old, new)], calibration),
        )
        for path, old, new in differing
    ]
    effects.sort(key=lambda e: (-abs(e.delta_bytes or 0), -abs(e.device_delta_bytes or 0)))
    delta = second.worst.allocated_bytes - first.worst.allocated_bytes
    together = delta - sum(effect.delta_bytes or 0 for effect in effects)
    if together and len(effects) > 1:
        effects.append(KeyEffect(key=TOGETHER, before=None, after=None, delta_bytes=together))
    return Comparison(
        before=first,
        after=second,
        delta=second.worst.breakdown.minus(first.worst.breakdown),
        keys=tuple(effects),
        groups=_groups(first, second, before, after, differing, calibration),
    )


_Difference = tuple[str, Any, Any]


def _groups(
    first: Estimate,
    second: Estimate,
    before: TrainingJob,
    after: TrainingJob,
    differing: list[_Difference],
    calibration: Calibration,
) -> tuple[GroupEffect, ...]:
    groups: dict[str, list[_Difference]] = {}
    for difference in differing:
        groups.setdefault(group_of(difference[0]), []).append(difference)
    if all(len(members) == 1 for members in groups.values()):
        return ()  # the keys say it already
    effects = [
        GroupEffect(
            name=name,
            keys=tuple(BRIDGE_KEYS.get(path, path) for path, _, _ in members),
            **_switching(first, second, before, after, members, calibration),
        )
        for name, members in groups.items()
    ]
    effects.sort(key=lambda e: (-abs(e.delta_bytes or 0), -abs(e.device_delta_bytes or 0)))
    delta = second.worst.allocated_bytes - first.worst.allocated_bytes
    together = delta - sum(effect.delta_bytes or 0 for effect in effects)
    if together and len(effects) > 1:
        effects.append(GroupEffect(name=TOGETHER, keys=(), delta_bytes=together))
    return tuple(effects)


def group_of(path: str) -> str:
    """The part of the configuration that a field, by dotted path, belongs to."""
    head = path.partition(".")[0]
    return next((name for name, fields in GROUPS.items() if head in fields), KERNELS)


def _switching(
    first: Estimate,
    second: Estimate,
    before: TrainingJob,
    after: TrainingJob,
    differing: list[_Difference],
    calibration: Calibration,
) -> dict[str, int | None]:
    """What these differences do to the peak first, and what they do last."""
    start, end = first.worst, second.worst
    alone = _peak(before, {path: new for path, _, new in differing}, calibration)
    without = _peak(after, {path: old for path, old, _ in differing}, calibration)
    return {
        "delta_bytes": None if alone is None else alone.allocated_bytes - start.allocated_bytes,
        "last_delta_bytes": None if without is None else end.allocated_bytes - without.allocated_bytes,
        "device_delta_bytes": None if alone is None else alone.device_bytes - start.device_bytes,
    }


def _peak(job: TrainingJob, changes: Mapping[str, Any], calibration: Calibration) -> RankEstimate | None:
    try:
        return estimate(switched(job, changes), calibration).worst
    except ValueError:
        return None


def differences(before: Any, after: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Fields, by dotted path, in which two jobs differ; nested values are walked where both have them."""
    for field in dataclasses.fields(before):
        path = f"{prefix}{field.name}"
        old, new = getattr(before, field.name), getattr(after, field.name)
        if old == new:
            continue
        walk = dataclasses.is_dataclass(old) and type(old) is type(new) and path not in BRIDGE_KEYS
        if walk:
            yield from differences(old, new, f"{path}.")
        else:
            yield path, old, new


def switched(job: Any, changes: Mapping[str, Any]) -> Any:
    """The job with fields, by dotted path, set to other values, all at once: a layout on the way between two
    may be none. Raises ValueError if that is no job."""
    values: dict[str, Any] = {}
    nested: dict[str, dict[str, Any]] = {}
    for path, value in changes.items():
        name, _, rest = path.partition(".")
        if rest:
            nested.setdefault(name, {})[rest] = value
        else:
            values[name] = value
    for name, inside in nested.items():
        values[name] = switched(getattr(job, name), inside)
    return dataclasses.replace(job, **values)
