"""A sweep: one commit under several configurations, over the same data. Its points, and which is next.

Pure: the configuration of the job as it is comes from its own first trial, the base. Everything else is
planned from that: the points, what the memory model says of each, and the order in which they are run.

    base (no change) -> its resolved configuration -> points -> legal ones run, best guesses first
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from bisection.commits import State
from bisection.json_shapes import decode_fields, encode_fields
from bisection.ledger import LedgerEntry, Purpose, Trial
from bisection.measurement import Measurement, Outcome
from memory_models.shapes import ImageLoad
from memory_models.upstream import NEWEST, Upstream
from memory_models.variations import (
    BATCH,
    JOINED,
    NONE,
    Axis,
    VariedEstimate,
    changes_of,
    estimate_variation,
    setting,
)

VERSION = 1
#: Lost trials of one point after which it is given up.
MOST_LOST = 2
#: More would take days, and nobody reads them.
MOST_POINTS = 120


@dataclass(frozen=True, kw_only=True)
class SweepPoint:
    """One configuration: a word for each axis, and the keys that this changes in the job as it is."""

    settings: Mapping[Axis, str]
    changes: Mapping[str, Any] = field(default_factory=dict)  #: empty for the base
    estimate: VariedEstimate = VariedEstimate(unknown="not estimated")

    @property
    def is_base(self) -> bool:
        return not self.changes

    @property
    def illegal(self) -> str:
        """The rule that refuses it; the base runs whatever the rules say."""
        return "" if self.is_base else self.estimate.why_not

    def overrides(self, batch: int | None) -> dict[str, Any]:
        """What its trial changes: its keys, and the global batch pinned, so that all do the same work."""
        pinned = {BATCH: batch} if batch is not None and not self.is_base else {}
        return {**self.changes, **pinned}


@dataclass(frozen=True, kw_only=True)
class SweepSpec:
    """What is swept, fixed once the commit is known; the points once the base was run."""

    state: State
    subject: str = ""  #: of the commit; hostile text, escape it
    axes: Mapping[Axis, tuple[str, ...]]
    capacity_bytes: int | None = None  #: enforced in every trial
    parallel: int = 1
    world_size: int = 1
    batch: int | None = None  #: the global batch size of the base, which all points keep
    points: tuple[
        SweepPoint, ...
    ] = ()  #: in the order of running, illegal ones last; the base is one of them

    def to_json(self) -> dict[str, Any]:
        return {"version": VERSION, **encode_fields(self)}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> SweepSpec:
        if row.get("version") != VERSION:
            raise ValueError(f"sweep version {row.get('version')!r} is not known here")
        spec: SweepSpec = decode_fields(cls, row)
        return spec


def plan_points(
    spec: SweepSpec,
    config: Mapping[str, Any],
    *,
    ran: bool,
    images: ImageLoad | None = None,
    upstream: Upstream = NEWEST,
) -> tuple[SweepPoint, ...]:
    """Every combination, once, and the base among them. ``ran`` says that the base took steps: the rules
    that it breaks are none here. Raises ValueError for a configuration that is not Megatron Bridge's.
    """
    if not isinstance(config.get("model"), Mapping) or not isinstance(config.get("train"), Mapping):
        raise ValueError(
            "the job recorded no configuration of Megatron Bridge, and a sweep changes keys of that"
        )

    def estimated(changes: Mapping[str, Any], tolerated: Sequence[str] = ()) -> VariedEstimate:
        return estimate_variation(
            config,
            changes,
            world_size=spec.world_size,
            images=images,
            upstream=upstream,
            tolerated=tolerated,
        )

    base = SweepPoint(settings={axis: setting(axis, config) for axis in spec.axes}, estimate=estimated({}))
    tolerated: tuple[str, ...] = ()
    if ran and base.estimate.why_not:
        tolerated = tuple(base.estimate.why_not.split("; "))
        base = SweepPoint(settings=base.settings, estimate=estimated({}, tolerated))
    found = {frozenset(base.settings.items()): base}
    for words in product(*spec.axes.values()):
        settings = dict(zip(spec.axes, words, strict=True))
        key = frozenset(settings.items())
        if key in found:
            continue
        changes: dict[str, Any] = {}
        for axis, word in settings.items():
            changes |= changes_of(axis, word, config)
        found[key] = SweepPoint(settings=settings, changes=changes, estimate=estimated(changes, tolerated))
    return tuple(sorted(found.values(), key=lambda point: _turn(point, spec.capacity_bytes)))


def _turn(point: SweepPoint, capacity_bytes: int | None) -> tuple[int, int, int]:
    """The base, then what fits by its estimate, the fullest first: what saves memory mostly costs time.

    Then what may fit, what has no estimate, and what does not fit, the nearest to fitting first. Of these,
    narrow graph scopes come before wide ones: what refuses a narrow one refuses what holds it.
    """
    size = point.estimate.device_bytes
    word = point.settings.get(Axis.GRAPH_SCOPE, NONE)
    scopes = 0 if word == NONE else 1 + word.count(JOINED)
    if point.is_base:
        return 0, 0, 0
    if point.illegal:
        return 5, scopes, 0
    if point.estimate.unknown or capacity_bytes is None:
        return 3, scopes, -size
    fits = point.estimate.fits(capacity_bytes)
    turn, order = {"yes": (1, -size), "maybe": (2, size), "no": (4, size)}[fits]
    return turn, scopes, order


def wanted_trials(
    spec: SweepSpec, ledger: Sequence[LedgerEntry], pending: Sequence[Trial]
) -> tuple[Trial, ...]:
    """The trials to start now, in turn; none means: wait for the pending ones, or all is run."""
    chosen: list[Trial] = []
    points = spec.points or (SweepPoint(settings={}),)
    for point in points:
        if len(pending) + len(chosen) >= spec.parallel:
            break
        overrides = point.overrides(spec.batch)
        busy = any(dict(trial.overrides) == overrides for trial in pending)
        if point.illegal or busy or decided(point, spec, ledger) is not None:
            continue
        chosen.append(
            Trial(
                state=spec.state,
                attempt=1 + len(measurements_of(point, spec, ledger)),
                purpose=Purpose.POINT,
                why="The job as it is: what all points are compared with, and what they change."
                if point.is_base
                else f"The job with {words_of(point)}.",
                overrides=overrides,
            )
        )
    return tuple(chosen)


def words_of(point: SweepPoint) -> str:
    """E.g. "micro batch 2, recompute full"."""
    return ", ".join(f"{AXIS_WORDS[axis]} {word}" for axis, word in point.settings.items())


AXIS_WORDS: Mapping[Axis, str] = {
    Axis.MICRO_BATCH: "micro batch",
    Axis.RECOMPUTE: "recompute",
    Axis.GRAPH_SCOPE: "graph scope",
    Axis.DISPATCHER: "dispatcher",
    Axis.EXPERT_PARALLEL: "EP",
    Axis.EXPERT_TENSOR_PARALLEL: "ETP",
}


def measurements_of(point: SweepPoint, spec: SweepSpec, ledger: Sequence[LedgerEntry]) -> list[Measurement]:
    overrides = point.overrides(spec.batch)
    return [entry.measurement for entry in ledger if dict(entry.trial.overrides) == overrides]


def decided(point: SweepPoint, spec: SweepSpec, ledger: Sequence[LedgerEntry]) -> Measurement | None:
    """The measurement that counts: the last that was not lost, or a lost one after which none is wanted."""
    found = measurements_of(point, spec, ledger)
    kept = [one for one in found if one.outcome is not Outcome.LOST]
    if kept:
        return kept[-1]
    return found[-1] if len(found) >= MOST_LOST else None


def batch_of(config: Mapping[str, Any]) -> int | None:
    train = config.get("train")
    batch = train.get("global_batch_size") if isinstance(train, Mapping) else None
    return batch if type(batch) is int and batch > 0 else None
