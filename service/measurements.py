"""REST: what was measured across bisections."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, model_validator

from bisection.adapters.storage.measurements import Measurements
from service import problems
from service.access import Writer
from service.bisections import UsesParts
from service.problem_responses import document

router = APIRouter(prefix="/v1/measurements", tags=["evidence"])


class Retraction(BaseModel):
    """Which measurements are faulty: those of a worker, those of a state, or both together."""

    model_config = ConfigDict(extra="forbid", frozen=True)

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


@router.post(
    "/retract",
    operation_id="retractMeasurements",
    summary="Never take faulty measurements over",
    response_model=Retracted,
    responses=document(
        problems.MALFORMED_BODY, problems.UNAUTHENTICATED, problems.FORBIDDEN, problems.INVALID_REQUEST
    ),
)
def retract_measurements(_caller: Writer, wanted: Retraction, parts: UsesParts) -> Retracted:
    """For a worker that proved faulty. Bisections that took such a measurement over before keep it."""
    count = Measurements(parts.database).retract(worker=wanted.worker, key=wanted.key)
    return Retracted(retracted=count)
