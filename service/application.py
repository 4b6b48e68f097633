"""The application: routers, problems, headers and OpenAPI, put together from what it is given.

Nothing is read from the environment and nothing is kept outside the object that
`create_app` returns, so tests and several services in one process are easy.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.types import ASGIApp

from bisection.adapters.catalogue import Catalogue
from bisection.adapters.queue import Queue
from bisection.adapters.storage.database import Database
from service import (
    announcements,
    audit,
    bisections,
    decisions,
    deletions,
    deliveries,
    derived,
    estimates,
    evidence,
    health,
    measurements,
    pages,
    problem_responses,
    proofs,
    registry,
    reports,
    sweeps,
)
from service.ci_reports import ci_router
from service.envelope import Envelope
from service.json_answers import JsonAnswer
from service.metrics import metrics_router
from service.parts import Parts
from service.settings import ServiceSettings
from service.webhooks import webhook_router

_DESCRIPTION = """\
firstbad finds the first bad commit of a training regression (out of memory, peak memory, throughput,
crash), says in which component it lives, and proposes remedies.

Start with `POST /v1/bisections`, watch `GET /v1/bisections/{id}/events`, read
`GET /v1/bisections/{id}/report`. Every error is `application/problem+json`: `detail` says what is wrong
and how to mend it, `type` leads to a page that explains the kind.

Times are UTC ISO 8601, bytes and hashes whole: nothing is rounded.
"""

_TAGS = [
    {"name": "bisections", "description": "What a user creates: find the first bad commit of a range."},
    {"name": "derived", "description": "Go on from an ended one: its measurements are kept."},
    {"name": "decisions", "description": "GPU hours that need approval; results that are taken back."},
    {"name": "evidence", "description": "Trials, their measurements and artifacts, and events."},
    {"name": "reports", "description": "The answer, for people and for programs."},
    {"name": "sweeps", "description": "One commit under several configurations: speed against memory."},
    {"name": "estimates", "description": "What a configuration needs, why, and what to change."},
    {"name": "registry", "description": "What requests can name, and who does the work."},
    {"name": "webhooks", "description": "Failed nightly runs start bisections."},
    {"name": "audit", "description": "Who did what."},
    {"name": "health", "description": "For whatever restarts the service. No token is needed."},
]


def create_app(
    *, database: Database, queue: Queue, catalogue: Catalogue, settings: ServiceSettings
) -> FastAPI:
    """The ASGI application. The database must be migrated before the first request."""
    app = Application(
        title="firstbad",
        summary="Finds the first bad commit of a training regression.",
        description=_DESCRIPTION,
        version=settings.version,
        openapi_tags=_TAGS,
        # Their pages load scripts from elsewhere; docs/reference/api.md is made for people.
        docs_url=None,
        redoc_url=None,
        default_response_class=JsonAnswer,
        max_body_size=settings.body_bytes,
        license_info={"name": "Apache-2.0"},
    )
    app.state.parts = Parts(database=database, queue=queue, catalogue=catalogue, settings=settings)
    app.state.templates = pages.make_templates()
    routers = (
        bisections.router,
        proofs.router,
        derived.router,
        decisions.router,
        deletions.router,
        evidence.router,
        measurements.router,
        reports.router,
        sweeps.router,
        estimates.router,
        registry.router,
        webhook_router(settings.webhook_body_bytes),
        ci_router(settings.webhook_body_bytes),
        deliveries.router,
        announcements.router,
        audit.router,
        health.router,
        metrics_router(database),
        pages.router,
    )
    for router in routers:
        app.include_router(router)
    routes = [route for router in routers for route in router.routes]
    problem_responses.install(app, settings, app.state.templates, routes)
    app.add_exception_handler(pages.LoginNeeded, pages.to_login)
    return app


class Application(FastAPI):
    """FastAPI, with the envelope around all of it and our problems in its description."""

    def build_middleware_stack(self) -> ASGIApp:
        parts: Parts = self.state.parts
        return Envelope(super().build_middleware_stack(), parts.settings)

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            self.openapi_schema = get_openapi(
                title=self.title,
                version=self.version,
                summary=self.summary,
                description=self.description,
                routes=self.routes,
                tags=self.openapi_tags,
                license_info=self.license_info,
            )
            problem_responses.complete(self.openapi_schema)
        return self.openapi_schema
