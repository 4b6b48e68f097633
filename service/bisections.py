"""REST: create, watch, confirm and cancel bisections. Parse, call, answer."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, BackgroundTasks, Depends, Header, Path, Query, Response
from pydantic import StringConstraints

from bisection.adapters.catalogue import Profile
from bisection.adapters.storage.audit import token_of
from bisection.adapters.storage.bisections import BisectionRow, IdempotencyConflict, Kind, Status
from bisection.adapters.storage.summaries import Filter
from bisection.adapters.storage.tokens import Caller
from bisection.approval import expected_above
from service import problems
from service.access import Reader, Writer
from service.cursors import read_cursor, write_cursor
from service.expiry import removal_words
from service.hints import view_now
from service.intake import BisectionRequest, normalise
from service.json_answers import JsonAnswer, encode_json
from service.parts import Parts, parts_of
from service.problem_responses import document
from service.problems import Problem
from service.shapes import BisectionPage, BisectionView, summarise

router = APIRouter(prefix="/v1/bisections", tags=["bisections"])

_ID = re.compile(r"[0-9a-f]{16}")
ACCEPTED_HEADERS = {
    "headers": {
        "Location": {"description": "URL of the bisection.", "schema": {"type": "string", "format": "uri"}}
    }
}

NamePattern = Annotated[str, StringConstraints(max_length=64, pattern=r"^[a-z0-9._-]+$")]
SearchText = Annotated[str, StringConstraints(min_length=1, max_length=200)]
IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=128,
        pattern=r"^[!-~]+$",
        description="Sent again with the same body, it gives the bisection made at first.",
    ),
]
UsesParts = Annotated[Parts, Depends(parts_of)]


def existing_bisection(
    bisection_id: Annotated[str, Path(description="As POST /v1/bisections gave it.")], parts: UsesParts
) -> BisectionRow:
    """A dependency: the bisection of the path. Raises Problem if there is none.

    An endpoint names its caller before it: strangers learn nothing of what exists.
    """
    # The id is checked here, not by the route: a malformed one is as unknown as any other.
    if _ID.fullmatch(bisection_id):
        try:
            row = parts.bisections.get(bisection_id)
        except KeyError:
            row = None
        if row is not None and row.kind is Kind.BISECTION:
            return row
        removed = removal_words(parts.database, bisection_id)
        if removed:
            raise Problem(problems.NOT_FOUND, f"There is no bisection {bisection_id!r} any more. {removed}")
    raise Problem(problems.NOT_FOUND, f"There is no bisection {bisection_id[:40]!r}.")


Existing = Annotated[BisectionRow, Depends(existing_bisection)]


@router.post(
    "",
    status_code=202,
    operation_id="createBisection",
    summary="Start a bisection",
    response_model=BisectionView,
    responses={
        202: {"description": "Stored; a worker resolves the refs next.", **ACCEPTED_HEADERS},
        **document(
            problems.MALFORMED_BODY,
            problems.UNAUTHENTICATED,
            problems.FORBIDDEN,
            problems.IDEMPOTENCY_CONFLICT,
            problems.INVALID_REQUEST,
            problems.NOT_REGISTERED,
            problems.BAD_CATALOGUE,
        ),
    },
)
def create_bisection(
    caller: Writer,
    wanted: BisectionRequest,
    parts: UsesParts,
    tasks: BackgroundTasks,
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> BisectionView:
    """Store a request. What only git knows is looked up by a worker afterwards.

    A request whose refs cannot be used ends with the finding `rejected`, whose
    `why` names the repair. With `preview`, a plan is made and waits for its confirmation.
    """
    request, profile = normalise(wanted, parts.catalogue)
    return accepted(store(request, profile, caller, parts, idempotency_key), parts, tasks, response)


def store(
    request: Mapping[str, Any], profile: Profile, caller: Caller, parts: Parts, idempotency_key: str | None
) -> BisectionRow:
    """The bisection of a normalised request, new or made with the same key before. Raises Problem."""
    try:
        row, _ = parts.bisections.create(
            request=request,
            profile=profile.model_dump(mode="json"),
            source=f"token:{caller.name}",
            # Each token has its own keys: nobody can collide with, or guess, another's.
            idempotency_key=f"{caller.id}:{idempotency_key}" if idempotency_key else None,
        )
    except IdempotencyConflict:
        raise Problem(
            problems.IDEMPOTENCY_CONFLICT, f"The key {idempotency_key!r} stands for another request."
        ) from None
    return row


def accepted(row: BisectionRow, parts: Parts, tasks: BackgroundTasks, response: Response) -> BisectionView:
    """The answer to what changed a bisection; a worker is woken to carry it out."""
    # After the answer: a broker that is away must not make the caller wait.
    tasks.add_task(parts.queue.advance, row.id)
    shown = view_now(row, parts)
    response.headers["Location"] = shown.links.self
    return shown


@router.get(
    "",
    operation_id="listBisections",
    summary="List bisections",
    response_model=BisectionPage,
    responses=document(problems.UNAUTHENTICATED, problems.FORBIDDEN, problems.INVALID_REQUEST),
)
def list_bisections(
    _caller: Reader,
    parts: UsesParts,
    status: Annotated[
        list[Status] | None, Query(description="Only those that stand here; may be given several times.")
    ] = None,
    repository: Annotated[NamePattern | None, Query(description="Only those of this repository.")] = None,
    profile: Annotated[NamePattern | None, Query(description="Only those of this profile.")] = None,
    source: Annotated[
        SearchText | None, Query(description="Only those whose source begins so, such as `token:`.")
    ] = None,
    ancestor: Annotated[
        str | None,
        Query(pattern=r"^[0-9a-f]{16}$", description="Only those that were made of this bisection."),
    ] = None,
    text: Annotated[
        SearchText | None,
        Query(description="Only those with this in the request, the source or the finding, in any case."),
    ] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    cursor: Annotated[str | None, Query(max_length=120, description="`next` of the page before.")] = None,
) -> Response:
    """The newest first. Pages stay right while bisections are added."""
    wanted = Filter(
        statuses=status or (),
        repository=repository,
        profile=profile,
        source=source,
        ancestor=ancestor,
        text=text,
    )
    rows = parts.summaries.page(limit=limit + 1, before=read_cursor(cursor), wanted=wanted)
    shown, more = rows[:limit], len(rows) > limit
    page = BisectionPage(
        items=[summarise(row, parts.settings) for row in shown],
        next=write_cursor(shown[-1].created_at, shown[-1].id) if more else None,
    )
    # The framework would validate and copy every item of the page once more.
    return JsonAnswer(page.model_dump(mode="json"))


@router.get(
    "/{bisection_id}",
    operation_id="getBisection",
    summary="Read one bisection",
    response_model=BisectionView,
    responses={
        200: {
            "description": "The bisection as it stands now.",
            "headers": {"ETag": {"description": "Send it as If-None-Match.", "schema": {"type": "string"}}},
        },
        304: {"description": "It is as it was when that ETag was given."},
        **document(problems.UNAUTHENTICATED, problems.FORBIDDEN, problems.NOT_FOUND),
    },
)
def get_bisection(
    _caller: Reader,
    row: Existing,
    parts: UsesParts,
    if_none_match: Annotated[str | None, Header(description="ETag of the copy that you have.")] = None,
) -> Response:
    """Status, plan, hints, trials so far and finding. Cheap to ask again with If-None-Match."""
    body = encode_json(view_now(row, parts).model_dump(mode="json"))
    etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {"ETag": etag, "Cache-Control": "private, no-cache"}
    known = {tag.strip().removeprefix("W/") for tag in (if_none_match or "").split(",")}
    if etag in known or "*" in known:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type="application/json", headers=headers)


@router.post(
    "/{bisection_id}/confirm",
    status_code=202,
    operation_id="confirmBisection",
    summary="Start what was previewed",
    response_model=BisectionView,
    responses={
        202: {"description": "Trials are run now.", **ACCEPTED_HEADERS},
        **document(
            problems.UNAUTHENTICATED,
            problems.FORBIDDEN,
            problems.NOT_FOUND,
            problems.WRONG_STATE,
        ),
    },
)
def confirm_bisection(
    caller: Writer, row: Existing, parts: UsesParts, tasks: BackgroundTasks, response: Response
) -> BisectionView:
    """Only a bisection with the status `planned` waits for this.

    One that needs more GPU hours than its profile allows is `held` then, until somebody approves it.
    """
    if not parts.bisections.confirm(row.id, hold=_needs_approval(row), by=token_of(caller.name)):
        standing = parts.bisections.get(row.id).status
        raise Problem(
            problems.WRONG_STATE,
            f"Bisection {row.id} is {standing.value}, and only a planned one can be confirmed.",
            repair="Wait for the plan."
            if standing is Status.RESOLVING
            else "Nothing is to be done; for another run, create a new bisection.",
        )
    return accepted(parts.bisections.get(row.id), parts, tasks, response)


def _needs_approval(row: BisectionRow) -> bool:
    limit = Profile.model_validate(row.profile).limits.gpu_hours_without_approval
    budget = (row.request.get("budget") or {}).get("gpu_hours")
    return expected_above(limit, row.plan or {}, budget) is not None


@router.post(
    "/{bisection_id}/cancel",
    status_code=202,
    operation_id="cancelBisection",
    summary="Stop a bisection",
    response_model=BisectionView,
    responses={
        202: {"description": "A worker stops the trials and reports what is known.", **ACCEPTED_HEADERS},
        **document(
            problems.UNAUTHENTICATED,
            problems.FORBIDDEN,
            problems.NOT_FOUND,
            problems.WRONG_STATE,
        ),
    },
)
def cancel_bisection(
    caller: Writer, row: Existing, parts: UsesParts, tasks: BackgroundTasks, response: Response
) -> BisectionView:
    """Asking twice is no error. What was measured so far is reported."""
    if not parts.bisections.request_cancel(row.id, by=token_of(caller.name)):
        standing = parts.bisections.get(row.id).status
        raise Problem(
            problems.WRONG_STATE,
            f"Bisection {row.id} is {standing.value}: its search has ended.",
            repair="Nothing is to be done; read its report.",
        )
    return accepted(parts.bisections.get(row.id), parts, tasks, response)
