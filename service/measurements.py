"""REST: what was measured across bisections."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field, model_validator

from bisection.adapters.storage.audit import token_of
from bisection.adapters.storage.measurement_pages import (
    KnownMeasurement,
    MeasurementFilter,
    MeasurementPages,
)
from bisection.adapters.storage.measurements import Measurements
from bisection.measurement import Outcome
from service import problems
from service.access import Reader, Writer
from service.bisections import NamePattern, UsesParts
from service.cursors import read_cursor, write_cursor
from service.problem_responses import document

router = APIRouter(prefix="/v1/measurements", tags=["evidence"])


class Retraction(BaseModel):
    """Which measurements are faulty: those of a worker, those of a state, or both together."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        json_schema_extra={"examples": [{"worker": "local-1@gpu-host-7"}, {"key": "0f" * 32}]},
    )

    worker: Annotated[str, Field(min_length=1, max_length=200)] | None = Field(
        default=None, description="`worker` of a trial: all that it measured."
    )
    key: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = Field(
        default=None, description="`reuse_key` of a trial: all that was measured of that state."
    )

    @model_validator(mode="after")
    def _names_something(self) -> Retraction:
        if self.worker is None and self.key is None:
            raise ValueError("names neither a worker nor a key")
        return self


class Retracted(BaseModel):
    retracted: int = Field(description="How many measurements are not taken over any more.")


class KnownMeasurementView(BaseModel):
    """One original measurement, which other bisections may take over."""

    model_config = ConfigDict(title="KnownMeasurement")

    key: str = Field(description="`reuse_key` of the trial: equal for what would be taken over.")
    bisection: str
    trial: str
    ordinal: int
    profile: str
    commit: str
    pins: dict[str, str]
    packages: dict[str, str]
    worker: str | None
    outcome: Outcome
    ended_at: str
    retracted_at: str | None = Field(description="Since then it is not taken over any more.")


class MeasurementPage(BaseModel):
    """A page of a list, the newest first."""

    items: list[KnownMeasurementView]
    next: str | None = Field(description="Pass it as 'cursor' for the next page; null: this is the last.")


@router.get(
    "",
    operation_id="listMeasurements",
    summary="List what was measured",
    response_model=MeasurementPage,
    responses=document(problems.UNAUTHENTICATED, problems.FORBIDDEN, problems.INVALID_REQUEST),
)
def list_measurements(
    _caller: Reader,
    parts: UsesParts,
    key: Annotated[
        str | None, Query(pattern=r"^[0-9a-f]{64}$", description="Only those of this state, job and data.")
    ] = None,
    worker: Annotated[
        str | None, Query(min_length=1, max_length=200, description="Only this worker's.")
    ] = None,
    commit: Annotated[
        str | None, Query(pattern=r"^[0-9a-f]{40}$", description="Only those measured at this commit.")
    ] = None,
    outcome: Annotated[Outcome | None, Query(description="Only those that ended so.")] = None,
    profile: Annotated[NamePattern | None, Query(description="Only those of this training job.")] = None,
    retracted: Annotated[bool | None, Query(description="Only those retracted, or only the others.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    cursor: Annotated[str | None, Query(max_length=120, description="`next` of the page before.")] = None,
) -> MeasurementPage:
    """Originals only: what a bisection took over is listed once, where it was measured."""
    wanted = MeasurementFilter(
        key=key, worker=worker, commit=commit, outcome=outcome, profile=profile, retracted=retracted
    )
    pages = MeasurementPages(parts.database)
    rows = pages.page(limit=limit + 1, before=read_cursor(cursor), wanted=wanted)
    shown, more = rows[:limit], len(rows) > limit
    return MeasurementPage(
        items=[_show(row) for row in shown],
        next=write_cursor(shown[-1].ended_at, shown[-1].trial_id) if more else None,
    )


def _show(row: KnownMeasurement) -> KnownMeasurementView:
    return KnownMeasurementView(
        key=row.key,
        bisection=row.bisection_id,
        trial=row.trial_id,
        ordinal=row.ordinal,
        profile=row.profile,
        commit=row.state.commit,
        pins=dict(row.state.pins),
        packages=dict(row.state.packages),
        worker=row.worker,
        outcome=row.outcome,
        ended_at=row.ended_at,
        retracted_at=row.retracted_at,
    )


@router.post(
    "/retract",
    operation_id="retractMeasurements",
    summary="Never take faulty measurements over",
    response_model=Retracted,
    responses=document(
        problems.MALFORMED_BODY, problems.UNAUTHENTICATED, problems.FORBIDDEN, problems.INVALID_REQUEST
    ),
)
def retract_measurements(caller: Writer, wanted: Retraction, parts: UsesParts) -> Retracted:
    """For a worker that proved faulty. Bisections that took such a measurement over before keep it."""
    by = token_of(caller.name)
    count = Measurements(parts.database).retract(worker=wanted.worker, key=wanted.key, by=by)
    return Retracted(retracted=count)
