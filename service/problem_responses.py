"""Turns what was raised into application/problem+json, and documents those answers in OpenAPI.

No status leaves the service that is not a ProblemKind, and no message of an
exception that was not written for callers.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeGuard

import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.templating import Jinja2Templates
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Route

from bisection.adapters.catalogue import BadCatalogueFile
from service import problems
from service.problems import Problem, ProblemBody, ProblemKind, field_errors
from service.settings import ServiceSettings
from service.storage_room import is_full, lacks_room

log = structlog.get_logger(__name__)

MEDIA_TYPE = "application/problem+json"
DISK_FULL = "The disk that holds the database is full."
DISK_FULL_REPAIR = "The operator has to free space on it; then send the request again."
_BY_STATUS = {
    400: problems.MALFORMED_BODY,
    404: problems.NOT_FOUND,
    405: problems.METHOD_NOT_ALLOWED,
    413: problems.BODY_TOO_LARGE,
}


def tell_operator(event: str, **facts: Any) -> None:
    """Log an error. A log that cannot be written, as on a full disk, must not cost the caller the answer."""
    with suppress(OSError):
        log.error(event, **facts)


def document(*kinds: ProblemKind) -> dict[int | str, dict[str, Any]]:
    """OpenAPI responses for these kinds, each with an example; kinds of one status share an entry."""
    responses: dict[int | str, dict[str, Any]] = {}
    everywhere = (problems.BODY_TOO_LARGE, problems.INTERNAL_ERROR, problems.DATABASE_UNAVAILABLE)
    limited = (problems.TOO_MANY_REQUESTS,) if problems.UNAUTHENTICATED in kinds else ()
    for kind in (*kinds, *limited, *everywhere):
        example = Problem(kind, kind.cause).body(base_url="http://127.0.0.1:8321", instance="/v1/bisections")
        entry = responses.setdefault(
            kind.status,
            {
                "description": kind.title,
                "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}, "examples": {}}},
            },
        )
        if kind.title not in entry["description"]:
            entry["description"] += f"; or: {kind.title}"
        if kind.status == 401:
            entry["headers"] = {"WWW-Authenticate": {"schema": {"type": "string"}}}
        if kind.status == 429:
            entry["headers"] = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}}
        entry["content"][MEDIA_TYPE]["examples"][kind.name] = {
            "summary": kind.title,
            "value": example.model_dump(mode="json"),
        }
    return responses


def complete(schema: dict[str, Any]) -> None:
    """Mend FastAPI's OpenAPI in place: our Problem schema in, its own error shape, never sent, out."""
    schemas = schema["components"]["schemas"]
    problem = ProblemBody.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas |= problem.pop("$defs") | {"Problem": problem}
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    for operations in schema["paths"].values():
        for operation in operations.values():
            if "HTTPValidationError" in json.dumps(operation["responses"].get("422", {})):
                del operation["responses"]["422"]


def encode(body: ProblemBody) -> bytes:
    """ASCII only: a lone surrogate in what a caller sent must not break the answer."""
    return json.dumps(body.model_dump(mode="json")).encode("ascii")


def install(
    app: FastAPI, settings: ServiceSettings, templates: Jinja2Templates, routes: Sequence[BaseRoute]
) -> None:
    """Make the application answer every exception with a problem."""

    def answer(request: Request, problem: Problem) -> Response:
        body = problem.body(base_url=settings.public_url, instance=request.url.path)
        headers = dict(problem.headers)
        if _is_for_a_browser(request):
            return templates.TemplateResponse(
                request,
                "problem.html",
                {"problem": body},
                status_code=body.status,
                headers=headers,
            )
        return Response(
            encode(body),
            status_code=body.status,
            media_type=MEDIA_TYPE,
            headers=headers,
        )

    @app.exception_handler(Problem)
    def on_problem(request: Request, problem: Problem) -> Response:
        return answer(request, problem)

    @app.exception_handler(RequestValidationError)
    def on_invalid(request: Request, error: RequestValidationError) -> Response:
        return answer(request, _invalid(error))

    @app.exception_handler(HTTPException)
    def on_http(request: Request, error: HTTPException) -> Response:
        problem = _http(request, error)
        if problem.kind is problems.METHOD_NOT_ALLOWED:
            # The framework names the methods of the first route of the path only.
            methods = {m for r in routes if _fits(r, request.url.path) for m in r.methods or ()}
            problem.headers["Allow"] = ", ".join(sorted(methods))
        return answer(request, problem)

    @app.exception_handler(BadCatalogueFile)
    def on_bad_catalogue(request: Request, error: BadCatalogueFile) -> Response:
        tell_operator("catalogue file is not valid", reason=str(error))
        if "authorization" not in request.headers:  # a webhook's sender: none of its business
            return answer(request, Problem(problems.BAD_CATALOGUE, problems.BAD_CATALOGUE.cause))
        folder = request.app.state.parts.catalogue.folder
        return answer(request, Problem(problems.BAD_CATALOGUE, str(error).replace(f"{folder}/", "")))

    @app.exception_handler(OperationalError)
    @app.exception_handler(InterfaceError)
    @app.exception_handler(sqlite3.Error)  # bare where opening the file fails, before SQLAlchemy wraps it
    def on_database(request: Request, error: Exception) -> Response:
        cause = error.orig if isinstance(error, DBAPIError) else error
        tell_operator("database does not answer", reason=str(cause))
        kind, headers = problems.DATABASE_UNAVAILABLE, {"Retry-After": "5"}
        if is_full(cause) or lacks_room(request.app.state.parts.database.url):
            return answer(request, Problem(kind, DISK_FULL, repair=DISK_FULL_REPAIR, headers=headers))
        return answer(request, Problem(kind, kind.cause, headers=headers))

    @app.exception_handler(Exception)
    def on_fault(request: Request, error: Exception) -> Response:
        reference = secrets.token_hex(4)
        tell_operator("request failed", reference=reference, path=request.url.path, exc_info=error)
        detail = f"An unexpected fault; its reference is {reference}."
        return answer(request, Problem(problems.INTERNAL_ERROR, detail))


def _is_for_a_browser(request: Request) -> bool:
    pages = not request.url.path.startswith(("/v1/", "/healthz", "/readyz"))
    return pages and "text/html" in request.headers.get("accept", "")


def _fits(route: BaseRoute, path: str) -> TypeGuard[Route]:
    return isinstance(route, Route) and route.path_regex.match(path) is not None


def _invalid(error: RequestValidationError) -> Problem:
    errors: list[Mapping[str, Any]] = list(error.errors())
    if errors and errors[0]["type"] == "json_invalid":
        reason = errors[0].get("ctx", {}).get("error", "not JSON")
        return Problem(problems.MALFORMED_BODY, f"The body is not valid JSON: {reason}.")
    listed = field_errors(errors)
    detail = "; ".join(f"{one.field}: {one.message}, {one.repair}" for one in listed[:5]) + "."
    return Problem(problems.INVALID_REQUEST, detail, errors=listed)


def _http(request: Request, error: HTTPException) -> Problem:
    kind = _BY_STATUS.get(error.status_code)
    if kind is None:
        tell_operator("a status that is not documented", status=error.status_code, path=request.url.path)
        kind = problems.INTERNAL_ERROR
    detail = {
        400: "The body could not be parsed.",
        404: f"Nothing is at {request.url.path[:200]}.",
        405: f"{request.method} is not possible at {request.url.path[:200]}.",
    }.get(error.status_code, kind.cause)
    return Problem(kind, detail)
