"""Can the service work, who does the work, and what waits for whom."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from bisection.adapters.catalogue import BadCatalogueFile
from bisection.adapters.storage.tokens import Caller
from service.bisections import UsesParts
from service.health import readyz
from service.pages.sessions import SignedIn
from service.pages.templates import page
from service.parts import Parts
from service.problems import Problem
from service.registry import list_pools, list_workers

router = APIRouter(prefix="/workers")


@router.get("")
def show_workers(request: Request, caller: SignedIn, parts: UsesParts) -> Response:
    return page(request, "workers.html", live=True, caller=caller, **_state(caller, parts))


@router.get("/live")
def show_workers_now(request: Request, caller: SignedIn, parts: UsesParts) -> Response:
    """The part of the page that changes."""
    return page(request, "workers_live.html", live=True, **_state(caller, parts))


def _state(caller: Caller, parts: Parts) -> dict[str, Any]:
    errors: list[Any] = []
    broker = "not known"
    try:
        broker = readyz(parts).broker
    except Problem as problem:
        errors = list(problem.errors)
    try:
        pools = list_pools(caller, parts).items
    except BadCatalogueFile:
        pools = []  # told among the errors
    return {"errors": errors, "broker": broker, "pools": pools, "workers": list_workers(caller, parts).items}
