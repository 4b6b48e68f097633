"""REST: what CIs reported and what came of it; release what is held, and catch up with what was missed."""

from __future__ import annotations

import base64
import binascii
import re
import secrets
from typing import Annotated, Any

from fastapi import APIRouter, BackgroundTasks, Path, Query, Response
from pydantic import BaseModel, Field

from bisection.adapters.catalogue import NotRegistered
from bisection.adapters.storage.audit import token_of
from bisection.adapters.storage.deliveries import Deliveries, Delivery, DeliveryStatus
from service import problems
from service.access import Reader, Writer
from service.bisections import UsesParts
from service.intake import invalid
from service.parts import Parts
from service.problem_responses import document
from service.problems import FieldError, Problem
from service.shapes import links
from service.webhooks import delivery_url

router = APIRouter(prefix="/v1", tags=["webhooks"])

_ID = re.compile(r"[A-Za-z0-9._-]{1,100}")
_CURSOR = re.compile(r"([0-9T:.+-]{20,40}) ([A-Za-z0-9._-]{1,100})")


class JobOutcome(BaseModel):
    """What came of one job of a run."""

    job: str = Field(description="A stranger's text; escape it. Empty: the run as a whole.")
    decision: str = Field(
        description="started, attached, recorded, closed, ignored, refused, held or duplicate."
    )
    why: str
    repair: str
    bisection: str | None = Field(description="URL of the bisection.")


class DeliveryView(BaseModel):
    """Something that a CI reported."""

    model_config = {"title": "Delivery"}

    id: str
    received_at: str
    event: str = Field(description="workflow_run, check_run, ci or catch_up.")
    repository: str | None
    status: DeliveryStatus
    why: str = Field(description="What was decided; before that, what it waits for.")
    url: str = Field(description="Where the CI shows the run, as it says itself.")
    outcomes: list[JobOutcome]
    self: str


class DeliveryPage(BaseModel):
    """A page of a list, the newest first."""

    items: list[DeliveryView]
    next: str | None = Field(description="Pass it as 'cursor' for the next page; null: this is the last.")


@router.get(
    "/deliveries",
    operation_id="listDeliveries",
    summary="List what CIs reported",
    response_model=DeliveryPage,
    responses=document(problems.UNAUTHENTICATED, problems.FORBIDDEN, problems.INVALID_REQUEST),
)
def list_deliveries(
    _caller: Reader,
    parts: UsesParts,
    status: Annotated[DeliveryStatus | None, Query(description="Only those that stand here.")] = None,
    repository: Annotated[str | None, Query(max_length=64, pattern=r"^[a-z0-9._-]+$")] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[str | None, Query(max_length=300, description="`next` of the page before.")] = None,
) -> DeliveryPage:
    """The newest first. What was refused or ignored by its own words alone is not stored."""
    rows = Deliveries(parts.database).page(
        limit=limit + 1,
        status=status,
        repository=repository,
        before=_read_cursor(cursor) if cursor else None,
    )
    shown = rows[:limit]
    return DeliveryPage(
        items=[_view(row, parts) for row in shown],
        next=_write_cursor(shown[-1]) if len(rows) > limit else None,
    )


def _existing(delivery_id: str, parts: Parts) -> Delivery:
    row = Deliveries(parts.database).get(delivery_id) if _ID.fullmatch(delivery_id) else None
    if row is None:
        raise Problem(
            problems.NOT_FOUND,
            f"There is no delivery {delivery_id[:100]!r}.",
            repair="Check the id against GET /v1/deliveries.",
        )
    return row


DeliveryId = Annotated[str, Path(description="As the answer to the report, or the list, gave it.")]


@router.get(
    "/deliveries/{delivery_id}",
    operation_id="getDelivery",
    summary="Read what came of a report",
    response_model=DeliveryView,
    responses=document(problems.UNAUTHENTICATED, problems.FORBIDDEN, problems.NOT_FOUND),
)
def get_delivery(_caller: Reader, delivery_id: DeliveryId, parts: UsesParts) -> DeliveryView:
    """What was decided for each job, and why."""
    return _view(_existing(delivery_id, parts), parts)


@router.post(
    "/deliveries/{delivery_id}/release",
    status_code=202,
    operation_id="releaseDelivery",
    summary="Let through what is held",
    response_model=DeliveryView,
    responses=document(
        problems.UNAUTHENTICATED, problems.FORBIDDEN, problems.NOT_FOUND, problems.WRONG_STATE
    ),
)
def release_delivery(
    caller: Writer, delivery_id: DeliveryId, parts: UsesParts, tasks: BackgroundTasks
) -> DeliveryView:
    """The day's limits do not count for it any more. One that failed is tried again."""
    row = _existing(delivery_id, parts)
    if not Deliveries(parts.database).release(delivery_id, by=token_of(caller.name)):
        raise Problem(
            problems.WRONG_STATE,
            f"Delivery {delivery_id[:100]} is {row.status}: only one that is held or failed can be released.",
            repair="Nothing is to be done; read what came of it.",
        )
    tasks.add_task(parts.queue.settle, row.repository or "")
    return _view(_existing(delivery_id, parts), parts)


@router.post(
    "/repositories/{name}/catch-up",
    status_code=202,
    operation_id="catchUp",
    summary="Ask GitHub for missed runs",
    response_model=DeliveryView,
    responses=document(
        problems.UNAUTHENTICATED, problems.FORBIDDEN, problems.NOT_FOUND, problems.BAD_CATALOGUE
    ),
)
def catch_up(
    _caller: Writer,
    name: Annotated[str, Path(description="A registered repository with `webhook` and `github`.")],
    parts: UsesParts,
    tasks: BackgroundTasks,
    response: Response,
) -> DeliveryView:
    """A worker lists the runs since the last one that is known, and takes what is new as delivered."""
    try:
        entry = parts.catalogue.repository(name)
    except NotRegistered as error:
        raise Problem(
            problems.NOT_FOUND, f"{error}.", repair="Check the name against GET /v1/repositories."
        ) from None
    if entry.webhook is None or entry.github is None:
        raise Problem(
            problems.NOT_FOUND,
            f"Repository {name!r} has no GitHub that could be asked.",
            repair="The operator has to add 'webhook' and 'github' to its file.",
        )
    delivery_id = f"catch-up-{secrets.token_hex(8)}"
    Deliveries(parts.database).store(delivery_id, "catch_up", entry.name, None)
    tasks.add_task(parts.queue.settle, entry.name)
    response.headers["Location"] = delivery_url(delivery_id, parts.settings)
    return _view(_existing(delivery_id, parts), parts)


def _view(row: Delivery, parts: Parts) -> DeliveryView:
    return DeliveryView(
        id=row.id,
        received_at=row.received_at,
        event=row.event,
        repository=row.repository,
        status=row.status,
        why=row.result,
        url=row.report.url if row.report else "",
        outcomes=[_outcome(dict(outcome), parts) for outcome in row.outcomes],
        self=delivery_url(row.id, parts.settings),
    )


def _outcome(outcome: dict[str, Any], parts: Parts) -> JobOutcome:
    bisection = outcome["bisection"]
    return JobOutcome(
        **{**outcome, "bisection": links(bisection, parts.settings).self if bisection else None}
    )


def _write_cursor(row: Delivery) -> str:
    return base64.urlsafe_b64encode(f"{row.received_at} {row.id}".encode()).decode().rstrip("=")


def _read_cursor(cursor: str) -> tuple[str, str]:
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        found = _CURSOR.fullmatch(base64.b64decode(padded.encode(), altchars=b"-_", validate=True).decode())
    except (binascii.Error, UnicodeError):
        found = None
    if found is None:
        error = FieldError(
            field="cursor", message="is not one of this service", repair="pass 'next' of the page before"
        )
        raise invalid([error])
    return found[1], found[2]
