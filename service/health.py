"""Is the process alive, and can it work? Without a token, for whatever restarts it."""

from __future__ import annotations

import structlog
from fastapi import APIRouter
from pydantic import BaseModel, Field
from sqlalchemy.exc import SQLAlchemyError

from bisection.adapters.catalogue import CatalogueError
from service import problems
from service.bisections import UsesParts
from service.parts import Parts
from service.problem_responses import document
from service.problems import FieldError, Problem

log = structlog.get_logger(__name__)

router = APIRouter(tags=["health"])


class Alive(BaseModel):
    """The process answers."""

    status: str
    version: str


class Ready(BaseModel):
    """The service can work."""

    status: str
    broker: str = Field(description="'reachable' or 'away'; away only delays the workers' hints.")


@router.get(
    "/healthz", operation_id="healthz", summary="Is it alive?", response_model=Alive, responses=document()
)
def healthz(parts: UsesParts) -> Alive:
    """Looks at nothing but the process itself."""
    return Alive(status="ok", version=parts.settings.version)


@router.get(
    "/readyz",
    operation_id="readyz",
    summary="Can it work?",
    response_model=Ready,
    responses=document(problems.NOT_READY),
)
def readyz(parts: UsesParts) -> Ready:
    """The database answers and has the newest schema, and the catalogue can be read."""
    errors = [error for error in (_database(parts), _catalogue(parts)) if error]
    if errors:
        detail = "; ".join(f"{error.field} {error.message}" for error in errors) + "."
        raise Problem(problems.NOT_READY, detail, errors=errors)
    return Ready(status="ready", broker="reachable" if parts.queue.is_reachable() else "away")


def _database(parts: Parts) -> FieldError | None:
    try:
        if parts.database.is_migrated():
            return None
    except SQLAlchemyError as error:
        log.error("database does not answer", reason=str(error))
        return FieldError(field="database", message="does not answer", repair="see the service's log")
    return FieldError(field="database", message="has an old schema", repair="restart `firstbad up`")


def _catalogue(parts: Parts) -> FieldError | None:
    try:
        parts.catalogue.profiles()
        parts.catalogue.repositories()
    except CatalogueError as error:
        # Its message names files of the operator's machine, and this path needs no token.
        log.error("catalogue cannot be read", reason=str(error))
        return FieldError(
            field="catalogue",
            message="holds a file that is not valid",
            repair="the service's log names the file, the field and the repair",
        )
    return None
