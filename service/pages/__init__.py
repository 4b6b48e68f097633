"""Pages for people, made on the server: they show and call what the REST interface does, and nothing else.

Everything can be read and done without JavaScript. With it, htmx (one file of our own, see
service/static) fetches the parts of a page that change; no other script runs anywhere.

Who may write from a page, and how another site is kept from doing it in somebody's name:

- The cookie holds the person's token. It is HttpOnly, and SameSite=strict: a browser adds it to no request
  that another site caused. Under /v1 it only reads; programs bring the header `Authorization`.
- Nothing is changed by GET. A POST to a page, signing in included, must carry an `Origin` that is this
  service's own (`sessions.from_our_own_page`): that stops a sibling of the same site, which SameSite lets
  through, and a browser that does not know SameSite. One that sends no Origin is refused. Pages therefore
  say `Referrer-Policy: same-origin`, as `no-referrer` would make the Origin of their own forms `null`.
- A page calls the function of the REST endpoint, and only for a token with that endpoint's scope: read shows,
  write starts and decides, approve lets GPU hours through. Buttons that a token may not press are not shown.
- The content security policy takes styles and scripts from this service's files only: nothing inline, no
  eval, no frame, forms to ourselves. What commits, jobs and callers wrote is escaped; their files are served
  sandboxed.
"""

from __future__ import annotations

from fastapi import APIRouter, Response

from service.pages import (
    comparisons,
    decisions,
    explanations,
    lists,
    pools,
    progress,
    reports,
    requests,
    sessions,
    statics,
)
from service.pages.sessions import LoginNeeded, to_login
from service.pages.templates import make_templates

__all__ = ["LoginNeeded", "make_templates", "router", "to_login"]

router = APIRouter(include_in_schema=False, default_response_class=Response)
for _part in (
    lists, requests, comparisons, pools, progress, reports, decisions, explanations, sessions, statics
):  # fmt: skip
    router.include_router(_part.router)
