"""What a sweep found, at any moment of it: points beside their estimates, what may be compared, the best.

Pure, from the specification and the trials; how it looks is `rendering`'s matter. An allocator that refused
is a result like any other, and so is code that refuses a configuration: its own words are told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from bisection.json_shapes import decode_fields, encode_fields
from bisection.ledger import LedgerEntry, Trial
from bisection.measurement import Measurement, Outcome
from bisection.quantities import counted, show_bytes
from bisection.report_parts import Simulation
from bisection.report_pictures import simulation_of
from bisection.sweep import SweepPoint, SweepSpec, decided, words_of
from bisection.workload import differences
from memory_models.variations import Axis, VariedEstimate

VERSION = 1


class Standing(StrEnum):
    """What became of a point."""

    MEASURED = "measured"  #: all steps were taken
    OUT_OF_MEMORY = "out_of_memory"  #: the allocator refused
    REFUSED = (
        "refused"  #: the code, or the profile's spelling, did not take the configuration: no step was taken
    )
    FAILED = "failed"  #: it ran and failed in another way, or not what was asked was run
    ILLEGAL = "illegal"  #: a rule of upstream's refuses it: not run
    LOST = "lost"  #: its trials were lost
    WAITING = "waiting"  #: not run yet
    RUNNING = "running"
    NOT_RUN = "not_run"  #: the sweep ended before


@dataclass(frozen=True, kw_only=True)
class PointResult:
    """One point, its estimate and its measurement; every figure may be missing."""

    settings: Mapping[Axis, str]
    changes: Mapping[str, Any]
    is_base: bool
    standing: Standing
    why: str = ""  #: in one sentence: how it ended, in the code's own words where it refused
    estimate: VariedEstimate
    fits: str = ""  #: by the estimate: yes, maybe or no; "" without a capacity or an estimate
    peak_bytes: int | None = None  #: allocated, on the worst rank
    least_bytes: int | None = None  #: where it ran out of memory: what it would have had then
    headroom_bytes: int | None = None  #: capacity minus what the allocator held
    off_bytes: int | None = None  #: estimated minus measured peak
    rate: float | None = None  #: useful tokens a second
    slowest_rate: float | None = None  #: of its slowest steady step
    fastest_rate: float | None = None
    trainable: Mapping[str, int] = field(default_factory=dict)  #: parameters by component
    incomparable: str = ""  #: why its speed is not ranked; "" where it may be
    place: int | None = None  #: among the points that may be compared, the fastest first, from 1
    seconds: float = 0.0  #: of its trial

    @property
    def trainable_parameters(self) -> int:
        return sum(self.trainable.values())


@dataclass(frozen=True, kw_only=True)
class Swept:
    """What was swept, in words."""

    sweep: str = ""
    repository: str = ""
    profile: str = ""
    at: str = ""  #: the ref, as it was asked for
    commit: str = ""  #: 40 hex digits
    subject: str = ""  #: hostile text, escape it
    started_at: str = ""
    ended_at: str = ""


@dataclass(frozen=True, kw_only=True)
class SweepReport:
    """A frozen, versioned report, whole or of a sweep that still runs."""

    swept: Swept
    axes: Mapping[Axis, tuple[str, ...]]
    capacity_bytes: int | None
    batch: int | None = None  #: the global batch size of every point
    points: tuple[PointResult, ...] = ()  #: in the order of running
    best: int | None = None  #: index in ``points``
    best_why: str = ""
    failure: str = ""  #: why there are no points, or not all
    problem: str = ""  #: name of a docs/errors page, where there is something to repair
    ended: bool = False
    simulation: Simulation | None = None
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"version": VERSION, **encode_fields(self)}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> SweepReport:
        """Raises ValueError for another version and for what is not a report."""
        if row.get("version") != VERSION:
            raise ValueError(f"sweep report version {row.get('version')!r} is not known here")
        report: SweepReport = decode_fields(cls, row)
        return report


def build_sweep_report(
    spec: SweepSpec,
    ledger: Sequence[LedgerEntry],
    running: Sequence[Trial],
    swept: Swept,
    *,
    ended: bool,
    failure: str = "",
    problem: str = "",
) -> SweepReport:
    """``running`` are the trials that a worker has now."""
    measured = [decided(point, spec, ledger) for point in spec.points]
    reference = _reference(spec.points, measured)
    rows = [
        _result(point, one, spec, running, ended=ended, reference=reference)
        for point, one in zip(spec.points, measured, strict=True)
    ]
    rows = _placed(rows)
    best = next((index for index, row in enumerate(rows) if row.place == 1), None)
    return SweepReport(
        swept=replace(swept, commit=spec.state.commit, subject=spec.subject),
        axes=spec.axes,
        capacity_bytes=spec.capacity_bytes,
        batch=spec.batch,
        points=tuple(rows),
        best=best,
        best_why=_why_best(rows, best, spec.capacity_bytes) if best is not None else "",
        failure=failure,
        problem=problem,
        ended=ended,
        simulation=simulation_of(ledger),
        notes=tuple(dict.fromkeys(note for entry in ledger for note in entry.measurement.notes)),
    )


def _reference(
    points: Sequence[SweepPoint], measured: Sequence[Measurement | None]
) -> tuple[SweepPoint, Measurement] | None:
    """What the others' work is compared with: the base, or the first point that took all its steps."""
    whole = [
        (point, one)
        for point, one in zip(points, measured, strict=True)
        if one is not None and one.outcome is Outcome.COMPLETED
    ]
    return next((pair for pair in whole if pair[0].is_base), whole[0] if whole else None)


def _result(
    point: SweepPoint,
    measured: Measurement | None,
    spec: SweepSpec,
    running: Sequence[Trial],
    *,
    ended: bool,
    reference: tuple[SweepPoint, Measurement] | None,
) -> PointResult:
    estimate = point.estimate
    known = not (estimate.unknown or estimate.why_not)
    row = PointResult(
        settings=point.settings,
        changes=point.changes,
        is_base=point.is_base,
        standing=Standing.WAITING,
        estimate=estimate,
        fits=estimate.fits(spec.capacity_bytes) if known and spec.capacity_bytes is not None else "",
    )
    if point.illegal:
        return replace(row, standing=Standing.ILLEGAL, why=point.illegal)
    if measured is None:
        overrides = point.overrides(spec.batch)
        if any(dict(trial.overrides) == overrides for trial in running):
            return replace(row, standing=Standing.RUNNING)
        return replace(row, standing=Standing.NOT_RUN if ended else Standing.WAITING)
    peak = measured.peak
    whole = measured.outcome is Outcome.COMPLETED
    rates = [step.useful_tokens / step.seconds for step in measured.work.timed_steps if step.seconds > 0]
    standing = _standing(measured)
    row = replace(
        row,
        standing=standing,
        why=measured.reason,
        trainable=measured.trainable,
        seconds=measured.seconds,
    )
    if standing is Standing.OUT_OF_MEMORY and measured.oom is not None:
        refused = measured.oom
        return replace(
            row,
            least_bytes=refused.allocated_bytes + refused.requested_bytes,
            why=f"the allocator refused {show_bytes(refused.requested_bytes)} in {refused.component}, "
            f"{refused.phase}, with {show_bytes(refused.allocated_bytes)} allocated",
        )
    if not whole or peak is None:
        return row
    capacity = spec.capacity_bytes
    return replace(
        row,
        peak_bytes=peak.allocated_bytes,
        headroom_bytes=capacity - peak.reserved_bytes if capacity is not None else None,
        off_bytes=estimate.allocated_bytes - peak.allocated_bytes if known else None,
        rate=measured.useful_tokens_per_second,
        slowest_rate=min(rates, default=None),
        fastest_rate=max(rates, default=None),
        incomparable=_incomparable(measured, reference),
    )


def _standing(measured: Measurement) -> Standing:
    match measured.outcome:
        case Outcome.COMPLETED:
            return Standing.MEASURED
        case Outcome.OUT_OF_MEMORY:
            return Standing.OUT_OF_MEMORY
        case Outcome.LOST:
            return Standing.LOST
        case Outcome.UNBUILDABLE:
            return Standing.REFUSED
        case Outcome.CRASHED if not measured.steps:
            return Standing.REFUSED
        case _:
            return Standing.FAILED


def _incomparable(measured: Measurement, reference: tuple[SweepPoint, Measurement] | None) -> str:
    """Why a point's speed says nothing beside the others'."""
    if measured.useful_tokens_per_second is None:
        return "no steady step was timed"
    if reference is None:
        return ""
    base = reference[1]
    if measured.hardware != base.hardware:
        return f"it ran on {measured.hardware or 'unknown hardware'}, the others on {base.hardware}"
    named = "the job as it is" if reference[0].is_base else f"the point with {words_of(reference[0])}"
    return "; ".join(differences(base.work, measured.work, of=named, batched_alike=False))


def _placed(rows: Sequence[PointResult]) -> list[PointResult]:
    ranked = sorted(
        (row for row in rows if row.rate is not None and not row.incomparable),
        key=lambda row: -(row.rate or 0.0),
    )
    places = {id(row): place for place, row in enumerate(ranked, start=1)}
    return [replace(row, place=places.get(id(row))) for row in rows]


def _why_best(rows: Sequence[PointResult], best: int, capacity_bytes: int | None) -> str:
    """By how much, what is left of the capacity, and whether the steps tell it apart from others."""
    row = rows[best]
    assert row.rate is not None
    ranked = sorted((one for one in rows if one.place is not None), key=lambda one: one.place or 0)
    words = f"It is the fastest of {counted(len(ranked), 'comparable point')}"
    words += f": {row.rate:,.1f} useful tokens a second"
    base = next((one for one in ranked if one.is_base), None)
    if base is not None and base is not row and base.rate:
        words += f", {100 * (row.rate / base.rate - 1):.0f} % more than the job as it is"
    elif row.is_base:
        words += ", and it is the job as it is"
    if row.headroom_bytes is not None and capacity_bytes:
        share = row.headroom_bytes / capacity_bytes
        words += f"; it leaves {show_bytes(row.headroom_bytes)} ({100 * share:.0f} %) of the capacity free"
    close = [
        one
        for one in ranked[1:]
        if one.fastest_rate and row.slowest_rate and one.fastest_rate >= row.slowest_rate
    ]
    if close:
        leanest = min(close, key=lambda one: one.peak_bytes or 0)
        saved = (row.peak_bytes or 0) - (leanest.peak_bytes or 0)
        words += (
            f". The steps of {counted(len(close), 'other point')} overlap with its own: "
            "on speed alone they are not told apart"
        )
        if saved > 0:
            point = SweepPoint(settings=leanest.settings)
            words += f", and {words_of(point)} needs {show_bytes(saved)} less"
    return f"{words}."
