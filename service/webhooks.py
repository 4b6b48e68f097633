"""GitHub in: a failed nightly run starts a bisection.

The signature is checked over the raw body before a byte of it is parsed. Every
answer says what was decided and why, since GitHub shows it to whoever set up the hook.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, BackgroundTasks, Depends, Header, Request, Response
from pydantic import BaseModel, Field, ValidationError

from bisection.adapters.catalogue import BadCatalogueFile, NotRegistered, RepositoryEntry, Webhook
from bisection.adapters.storage.bisections import BisectionRow
from bisection.adapters.storage.deliveries import Deliveries
from bisection.adapters.storage.green_runs import GreenRun, GreenRuns
from service import problems
from service.bisections import UsesParts
from service.github import Conclusion, WorkflowRun, WorkflowRunDelivery, is_signed, read_run
from service.intake import BisectionRequest, invalid, normalise
from service.parts import Parts, body_of
from service.problem_responses import document, tell_operator
from service.problems import Problem, field_errors
from service.shapes import links

_RECEIVED = "received"


class Decision(StrEnum):
    """What was done with a delivery."""

    STARTED = "started"  #: a bisection was created
    ATTACHED = "attached"  #: a bisection of this failure exists already
    RECORDED = "recorded"  #: remembered as the last green
    IGNORED = "ignored"
    REFUSED = "refused"
    DUPLICATE = "duplicate"  #: this delivery was settled before
    PONG = "pong"


class DeliveryAnswer(BaseModel):
    """What was decided, and why."""

    decision: Decision
    why: str
    repair: str = Field(default="", description="What the operator can do, where there is something.")
    bisection: str | None = Field(default=None, description="URL of the bisection.")


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
                "description": "GitHub's payload, of which `workflow_run` is acted upon.",
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
    """A completed, failed `workflow_run` of an allowed repository, workflow and branch starts a bisection.

    A successful one is remembered as the last green. Forks are refused, and each delivery is acted on once.
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
    if x_github_event != "workflow_run":
        return DeliveryAnswer(
            decision=Decision.IGNORED, why=f"{x_github_event} is not acted upon, only workflow_run is"
        )
    delivery = _parse(body)
    deliveries = Deliveries(parts.database)
    if not deliveries.first(x_github_delivery, x_github_event):
        known = deliveries.get(x_github_delivery)
        # "received" only: we were killed between the two writes, so the work is still to be done.
        if known and known.result != _RECEIVED:
            return DeliveryAnswer(
                decision=Decision.DUPLICATE,
                why=f"this delivery was settled before: {known.result}",
                bisection=links(known.bisection_id, parts.settings).self if known.bisection_id else None,
            )
    answer, bisection_id = _act(delivery, trusted, parts)
    deliveries.settle(x_github_delivery, f"{answer.decision}: {answer.why}", bisection_id)
    if bisection_id:
        tasks.add_task(parts.queue.advance, bisection_id)
        response.headers["Location"] = links(bisection_id, parts.settings).self
    return answer


def _signers(body: bytes, signature: str, entries: Sequence[RepositoryEntry]) -> list[RepositoryEntry]:
    """The registered repositories whose secret signed the body."""
    return [
        entry
        for entry in entries
        if entry.webhook and signature and is_signed(body, signature, _secret(entry.webhook))
    ]


def _secret(webhook: Webhook) -> bytes:
    """Empty, and so trusted by nobody, where the file cannot be used; other hooks go on working."""
    try:
        secret = Path(webhook.secret_file).read_bytes().strip()
    except OSError as error:
        tell_operator("webhook.secret_file cannot be read", webhook=webhook.github, reason=str(error))
        return b""
    if not secret:
        tell_operator("webhook.secret_file is empty; put the secret in it", webhook=webhook.github)
    return secret


def _parse(body: bytes) -> WorkflowRunDelivery:
    try:
        row = json.loads(body)
    except (ValueError, RecursionError):
        raise Problem(problems.MALFORMED_BODY, "The body is not valid JSON.") from None
    try:
        return WorkflowRunDelivery.model_validate(row)
    except ValidationError as error:
        raise invalid(field_errors(error.errors())) from None


def _act(
    delivery: WorkflowRunDelivery, trusted: Sequence[RepositoryEntry], parts: Parts
) -> tuple[DeliveryAnswer, str | None]:
    """The decision, and the id of the bisection that follows from it."""
    entry = next(
        (e for e in trusted if e.webhook and e.webhook.github == delivery.repository.full_name), trusted[0]
    )
    webhook = entry.webhook
    assert webhook is not None  # only entries with a webhook can sign
    reading = read_run(delivery, webhook)
    if reading.conclusion is Conclusion.FAILURE:
        return _start(delivery.workflow_run, entry.name, webhook, parts)
    if reading.conclusion is Conclusion.SUCCESS:
        GreenRuns(parts.database).record(_green(delivery.workflow_run, webhook))
        return DeliveryAnswer(decision=Decision.RECORDED, why=reading.why), None
    return DeliveryAnswer(decision=Decision(reading.conclusion.value), why=reading.why), None


def _green(run: WorkflowRun, webhook: Webhook) -> GreenRun:
    return GreenRun(
        repository=webhook.github,
        workflow=run.name or "",
        branch=run.head_branch or "",
        run_id=run.id,
        head_sha=run.head_sha,
    )


def _start(
    run: WorkflowRun, repository: str, webhook: Webhook, parts: Parts
) -> tuple[DeliveryAnswer, str | None]:
    failed = _green(run, webhook)
    last = GreenRuns(parts.database).last_before(
        failed.repository, failed.workflow, failed.branch, failed.run_id
    )
    good = last.head_sha if last else webhook.good
    if good is None:
        return DeliveryAnswer(
            decision=Decision.IGNORED,
            why="no last green is known: no successful run of this workflow and branch was delivered yet",
            repair="Set 'good' of the webhook in the repository's file, or POST /v1/bisections yourself.",
        ), None
    if good == run.head_sha:
        return DeliveryAnswer(
            decision=Decision.IGNORED,
            why="the same commit was green in an earlier run, so no commit is to blame",
            repair="Run the workflow again; look at what changed outside the repository.",
        ), None
    row, new = _create(run, repository, webhook, good, parts)
    return DeliveryAnswer(
        decision=Decision.STARTED if new else Decision.ATTACHED,
        why=f"the run failed; the range is {good[:40]}..{run.head_sha}"
        if new
        else "a bisection of this failure exists",
        bisection=links(row.id, parts.settings).self,
    ), row.id


def _create(
    run: WorkflowRun, repository: str, webhook: Webhook, good: str, parts: Parts
) -> tuple[BisectionRow, bool]:
    try:
        wanted = BisectionRequest(repository=repository, profile=webhook.profile, good=good, bad=run.head_sha)
        request, profile = normalise(wanted, parts.catalogue)
    except (Problem, ValidationError, NotRegistered) as error:
        # All but the two hashes comes from the operator's files.
        raise BadCatalogueFile(f"webhook of {webhook.github}: {error}") from error
    # One key a run and attempt: a signed body that is replayed under a new delivery id starts nothing,
    # even after the bisection of the failure has ended.
    return parts.bisections.create(
        request=request,
        profile=profile.model_dump(mode="json"),
        source=f"github:{webhook.github}/actions/runs/{run.id}",
        idempotency_key=_digest({"repository": webhook.github, "run": run.id, "attempt": run.run_attempt}),
        failure_key=f"{webhook.github}:{run.name}:{run.head_sha}",
    )


def _digest(row: dict[str, Any]) -> str:
    return "github:" + hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()
