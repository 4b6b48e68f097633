"""Is the process alive, and can it work? Without a token, for whatever restarts it."""

from __future__ import annotations

import sqlite3

from fastapi import APIRouter
from pydantic import BaseModel, Field
from sqlalchemy.exc import SQLAlchemyError

from bisection.adapters.catalogue import CatalogueError
from service import problems
from service.bisections import UsesParts
from service.parts import Parts
from service.problem_responses import document, tell_operator
from service.problems import FieldError, Problem
from service.storage_room import LEAST_FREE_BYTES, lacks_room

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
    """The database answers, has the newest schema and room to write, and the catalogue can be read."""
    errors = [error for error in (_database(parts), _disk(parts), _catalogue(parts)) if error]
    if errors:
        detail = "; ".join(f"{error.field} {error.message}" for error in errors) + "."
        raise Problem(problems.NOT_READY, detail, errors=errors)
    return Ready(status="ready", broker="reachable" if parts.queue.is_reachable() else "away")


def _database(parts: Parts) -> FieldError | None:
    try:
        if parts.database.is_migrated():
            return None
    except (SQLAlchemyError, sqlite3.Error) as error:
        tell_operator("database does not answer", reason=str(error))
        return FieldError(field="database", message="does not answer", repair="see the service's log")
    return FieldError(field="database", message="has an old schema", repair="restart `firstbad up`")


def _disk(parts: Parts) -> FieldError | None:
    """Where the database is SQLite's; another database's disk is not seen from here."""
    if not lacks_room(parts.database.url):
        return None
    return FieldError(
        field="disk",
        message=f"has less than {LEAST_FREE_BYTES // 2**20} MiB free for the database",
        repair="free space on it",
    )


def _catalogue(parts: Parts) -> FieldError | None:
    try:
        parts.catalogue.profiles()
        parts.catalogue.repositories()
    except CatalogueError as error:
        # Its message names files of the operator's machine, and this path needs no token.
        tell_operator("catalogue cannot be read", reason=str(error))
        return FieldError(
            field="catalogue",
            message="holds a file that is not valid",
            repair="the service's log names the file, the field and the repair",
        )
    return None
