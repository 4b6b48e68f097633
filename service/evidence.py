"""REST: the trials of a bisection, their artifacts, and its events as they happen."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Annotated, Any

import anyio
from anyio import to_thread
from fastapi import APIRouter, Header, Path, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent

from bisection.adapters.storage.bisections import Status
from service import problems
from service.access import Reader
from service.bisections import Existing, UsesParts
from service.expiry import removal_words
from service.problem_responses import document
from service.problems import Problem
from service.shapes import TrialList, evidence, known_beside

router = APIRouter(prefix="/v1/bisections/{bisection_id}", tags=["evidence"])

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
#: Ends of names of files that are text.
READABLE = (".txt", ".log", ".json", ".diff", ".patch", ".yaml")
_UNKNOWN = document(problems.UNAUTHENTICATED, problems.FORBIDDEN, problems.NOT_FOUND)


@router.get(
    "/trials",
    operation_id="listTrials",
    summary="Read the evidence",
    response_model=TrialList,
    responses=_UNKNOWN,
)
def list_trials(_caller: Reader, row: Existing, parts: UsesParts) -> TrialList:
    """Every trial with its whole measurement, in the order of creation."""
    names, trials = parts.artifacts.names(row.id), parts.trials.of(row.id)
    known = known_beside(row, trials)
    return TrialList(
        items=[evidence(row, trial, names.get(trial.id, ()), parts.settings, known) for trial in trials]
    )


@router.get(
    "/trials/{trial_id}/artifacts/{name}",
    operation_id="getArtifact",
    summary="Read what a trial left",
    response_class=Response,
    responses={
        200: {
            "description": "Text as text/plain; everything else to be saved.",
            "content": {
                "text/plain": {"schema": {"type": "string"}},
                "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
            },
        },
        **_UNKNOWN,
    },
)
def get_artifact(
    _caller: Reader,
    row: Existing,
    trial_id: Annotated[str, Path(description="`id` of a trial.")],
    name: Annotated[str, Path(description="A name in the trial's `artifacts`.")],
    parts: UsesParts,
) -> Response:
    """Written by the code under test: never shown as anything but plain text."""
    known = parts.artifacts.names(row.id).get(trial_id, ())
    content = parts.artifacts.content(trial_id, name) if name in known and _NAME.fullmatch(name) else None
    if content is None:
        removed = removal_words(parts.database, row.id)
        raise Problem(
            problems.NOT_FOUND,
            removed or f"Trial {trial_id[:40]!r} of bisection {row.id} left no {name[:100]!r}.",
            repair=f"Use a name in its 'artifacts': {', '.join(known) or 'there are none'}.",
        )
    headers = {"Content-Security-Policy": "sandbox; default-src 'none'; frame-ancestors 'none'"}
    if name.endswith(READABLE):
        return Response(content, media_type="text/plain; charset=utf-8", headers=headers)
    headers["Content-Disposition"] = f'attachment; filename="{name}"'
    return Response(content, media_type="application/octet-stream", headers=headers)


@router.get(
    "/events",
    operation_id="watchBisection",
    summary="Watch a bisection",
    response_class=EventSourceResponse,
    responses={
        200: {
            "description": "Server-sent events; the last one is `ended`.",
            "content": {
                "text/event-stream": {
                    "example": "event: trial_ended\n"
                    'data: {"at": "2026-11-30T12:00:00.000000+00:00", "payload": {"ordinal": 3}}\n'
                    "id: 42\n\n"
                }
            },
        },
        **document(
            problems.UNAUTHENTICATED, problems.FORBIDDEN, problems.NOT_FOUND, problems.INVALID_REQUEST
        ),
    },
)
async def watch_bisection(
    _caller: Reader,
    row: Existing,
    parts: UsesParts,
    last_event_id: Annotated[
        int, Header(ge=0, lt=2**63, description="Go on after this event; without it, from the first.")
    ] = 0,
) -> AsyncIterator[ServerSentEvent]:
    """All that happened, then all that happens, until the bisection has ended."""

    def read(after: int) -> tuple[list[dict[str, Any]], bool]:
        # Read first whether it has ended: the events that are read next are then complete.
        ended = parts.bisections.get(row.id).status is Status.ENDED
        events = parts.bisections.events(row.id, after)
        rows = [
            {"id": event.id, "kind": event.kind, "data": {"at": event.at, "payload": dict(event.payload)}}
            for event in events
        ]
        return rows, ended and not rows

    while True:
        # In a thread: the storage is synchronous, and hundreds may watch at once.
        events, complete = await to_thread.run_sync(read, last_event_id)
        for event in events:
            last_event_id = event["id"]
            yield ServerSentEvent(id=str(last_event_id), event=event["kind"], data=event["data"])
        if complete:
            return
        if not events:
            await anyio.sleep(parts.settings.event_poll_seconds)
