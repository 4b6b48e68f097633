"""GitHub in: what its webhook delivers is checked, stored and answered at once; a worker decides.

The signature is checked over the raw body before a byte of it is parsed. Every answer says what comes of
it and why, since GitHub shows it to whoever set up the hook. Nothing here waits for GitHub.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, BackgroundTasks, Depends, Header, Request, Response
from pydantic import BaseModel, Field, ValidationError

from bisection.adapters.catalogue import RepositoryEntry
from bisection.adapters.standard_webhooks import secrets_in
from bisection.adapters.storage.deliveries import Deliveries, Delivery
from service import problems
from service.bisections import UsesParts
from service.github import EVENTS, Reading, is_signed, read_delivery
from service.intake import invalid
from service.parts import Parts, body_of
from service.problem_responses import document, tell_operator
from service.problems import Problem, field_errors
from service.settings import ServiceSettings


class Decision(StrEnum):
    """What comes of a delivery, as far as it is known when it is answered."""

    ACCEPTED = "accepted"  #: stored; a worker decides, see the delivery
    IGNORED = "ignored"
    REFUSED = "refused"
    DUPLICATE = "duplicate"  #: this delivery came before
    PONG = "pong"


class DeliveryAnswer(BaseModel):
    """What was decided, and why."""

    decision: Decision
    why: str
    delivery: str | None = Field(default=None, description="URL of the delivery, where it is stored.")


def webhook_router(body_bytes: int) -> APIRouter:
    """The webhook's one path; ``body_bytes`` is the longest body that it reads."""
    router = APIRouter(prefix="/v1/webhooks", tags=["webhooks"])
    router.add_api_route(
        "/github",
        receive_github,
        methods=["POST"],
        status_code=202,
        operation_id="receiveGithub",
        summary="Receive a GitHub delivery",
        response_model=DeliveryAnswer,
        max_body_size=body_bytes,
        responses={
            202: {"description": "It is genuine; the body says what was decided and why."},
            **document(
                problems.MALFORMED_BODY,
                problems.SIGNATURE_REFUSED,
                problems.UNSUPPORTED_MEDIA_TYPE,
                problems.INVALID_REQUEST,
                problems.BAD_CATALOGUE,
            ),
        },
        openapi_extra={
            "requestBody": {
                "required": True,
                "description": "GitHub's payload, of which `workflow_run` and `check_run` are acted upon.",
                "content": {"application/json": {"schema": {"type": "object"}}},
            }
        },
    )
    return router


def receive_github(
    request: Request,
    body: Annotated[bytes, Depends(body_of)],
    parts: UsesParts,
    tasks: BackgroundTasks,
    response: Response,
    x_hub_signature_256: Annotated[str, Header(description="`sha256=` and the HMAC of the body.")] = "",
    x_github_event: Annotated[str, Header(max_length=60, pattern=r"^[a-z_]*$")] = "",
    x_github_delivery: Annotated[str, Header(max_length=100, pattern=r"^[A-Za-z0-9-]*$")] = "",
) -> DeliveryAnswer:
    """A completed `workflow_run` or `check_run` of an allowed repository, workflow and branch is stored.

    A worker then asks GitHub for the jobs and their logs, and starts bisections. Forks are refused, and
    each delivery is acted on once.
    """
    trusted = _signers(body, x_hub_signature_256, parts.catalogue.repositories())
    if not trusted:
        raise Problem(problems.SIGNATURE_REFUSED, problems.SIGNATURE_REFUSED.cause)
    if not x_github_event or not x_github_delivery:
        raise Problem(
            problems.INVALID_REQUEST,
            "X-GitHub-Event and X-GitHub-Delivery are needed.",
            repair="Send the delivery as GitHub does, with both headers.",
        )
    if request.headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
        raise Problem(problems.UNSUPPORTED_MEDIA_TYPE, problems.UNSUPPORTED_MEDIA_TYPE.cause)
    if x_github_event == "ping":
        return DeliveryAnswer(decision=Decision.PONG, why="the signature is right: the webhook is set up")
    if x_github_event not in EVENTS:
        return DeliveryAnswer(
            decision=Decision.IGNORED,
            why=f"{x_github_event} is not acted upon, only {' and '.join(EVENTS)} are",
        )
    entry, reading = _read(body, x_github_event, trusted)
    if reading.report is None:
        return DeliveryAnswer(decision=Decision(reading.intake.value), why=reading.why)
    new = Deliveries(parts.database).store(x_github_delivery, x_github_event, entry.name, reading.report)
    tasks.add_task(parts.queue.settle, entry.name)
    return answer_to(new, x_github_delivery, parts, response)


def answer_to(new: bool, delivery_id: str, parts: Parts, response: Response) -> DeliveryAnswer:
    """The answer to a report that is stored, now or before."""
    url = delivery_url(delivery_id, parts.settings)
    response.headers["Location"] = url
    if new:
        return DeliveryAnswer(decision=Decision.ACCEPTED, why="it is stored; a worker decides", delivery=url)
    known = Deliveries(parts.database).get(delivery_id)
    return DeliveryAnswer(
        decision=Decision.DUPLICATE, why=f"it came before: {_standing(known)}", delivery=url
    )


def delivery_url(delivery_id: str, settings: ServiceSettings) -> str:
    return settings.url(f"/v1/deliveries/{delivery_id}")


def _standing(known: Delivery | None) -> str:
    if known is None or not known.result:
        return "a worker decides"
    return f"{known.status}, {known.result}"


def _signers(body: bytes, signature: str, entries: Sequence[RepositoryEntry]) -> list[RepositoryEntry]:
    """The registered repositories of which a secret signed the body."""
    return [
        entry
        for entry in entries
        if entry.webhook
        and signature
        and any(
            is_signed(body, signature, secret)
            for secret in read_secrets(entry.webhook.secret_file, entry.name)
        )
    ]


def read_secrets(path: str, repository: str) -> tuple[bytes, ...]:
    """Empty, and so trusted by nobody, where the file cannot be used; other repositories go on working."""
    try:
        found = secrets_in(Path(path).read_bytes())
    except OSError as error:
        tell_operator("a secret_file cannot be read", repository=repository, reason=str(error))
        return ()
    if not found:
        tell_operator("a secret_file is empty; put the secret in it", repository=repository)
    return found


def _read(body: bytes, event: str, trusted: Sequence[RepositoryEntry]) -> tuple[RepositoryEntry, Reading]:
    try:
        row = json.loads(body)
    except (ValueError, RecursionError):
        raise Problem(problems.MALFORMED_BODY, "The body is not valid JSON.") from None
    try:
        delivery = EVENTS[event].model_validate(row)
    except ValidationError as error:
        raise invalid(field_errors(error.errors())) from None
    name = delivery.repository.full_name
    entry = next((e for e in trusted if e.webhook and e.webhook.github == name), trusted[0])
    assert entry.webhook is not None  # only entries with a webhook can sign
    return entry, read_delivery(delivery, entry.webhook)
