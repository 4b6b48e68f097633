"""The list of bisections: filtered, the newest first, a page at a time."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response

from bisection.adapters.storage.bisections import Status
from bisection.adapters.storage.summaries import Filter
from service.bisections import UsesParts
from service.cursors import read_cursor, write_cursor
from service.pages.sessions import SignedIn
from service.pages.templates import page
from service.shapes import summarise

router = APIRouter()

_LISTED = 50
_Word = Annotated[str, Query(max_length=200)]


@router.get("/")
def show_bisections(
    request: Request,
    caller: SignedIn,
    parts: UsesParts,
    status: _Word = "",
    profile: _Word = "",
    text: _Word = "",
    cursor: Annotated[str, Query(max_length=120)] = "",
) -> Response:
    """An empty field of the form filters nothing."""
    asked = {"status": status.strip(), "profile": profile.strip(), "text": text.strip()}
    known = next((one for one in Status if one.value == asked["status"]), None)
    wanted = Filter(
        statuses=(known,) if known else (), profile=asked["profile"] or None, text=asked["text"] or None
    )
    rows = parts.summaries.page(limit=_LISTED + 1, before=read_cursor(cursor or None), wanted=wanted)
    shown = rows[:_LISTED]
    kept = {name: value for name, value in asked.items() if value}
    older = {**kept, "cursor": write_cursor(shown[-1].created_at, shown[-1].id)} if rows[_LISTED:] else None
    return page(
        request,
        "bisections.html",
        caller=caller,
        items=[summarise(row, parts.settings) for row in shown],
        asked=asked,
        statuses=list(Status),
        first=not cursor,
        newest=f"/?{urlencode(kept)}",
        older=f"/?{urlencode(older)}" if older else None,
    )
