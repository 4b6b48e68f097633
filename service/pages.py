"""Pages for people, made on the server: the list, one bisection, its report, and the problems.

No script runs on any of them. Whoever has a token signs in once; the cookie that
then holds it only ever reads.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, cast
from urllib.parse import parse_qs

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import FileResponse, RedirectResponse
from fastapi.templating import Jinja2Templates

from bisection.adapters.storage.bisections import BisectionRow, Status
from bisection.adapters.storage.tokens import Caller, Scope, Tokens
from bisection.rendering.escaping import visible
from bisection.rendering.html import render_html
from bisection.rendering.progress_words import answer_words, cost_words, suspect_words
from bisection.rendering.sweep_html import render_sweep_html
from bisection.rendering.wording import commit_words
from bisection.specification import end_words
from service import problems
from service.access import COOKIE, presented_token
from service.bisections import Existing, UsesParts
from service.hints import view_now
from service.parts import Parts, body_of
from service.problems import Problem
from service.reports import REPORT_POLICY, finished_report
from service.shapes import summarise
from service.sweeps import Existing as ExistingSweep
from service.sweeps import report_of

FOLDER = Path(__file__).parent / "templates"
router = APIRouter(include_in_schema=False, default_response_class=Response)

_OWN_PAGE = re.compile(r"/((reports|sweeps)/[0-9a-f]{16})?")
_LISTED = 100
_MOST_FIELDS = 10


def make_templates() -> Jinja2Templates:
    """Autoescape is on for .html, and `visible` shows characters that would hide or reorder text:
    what is shown was written by commits, training jobs and callers."""
    templates = Jinja2Templates(directory=FOLDER)
    templates.env.filters["visible"] = visible
    templates.env.filters["end_words"] = end_words
    return templates


class LoginNeeded(Exception):
    """A person opened a page without being signed in; they are sent to the form."""


def reader(request: Request, parts: UsesParts) -> Caller:
    """A dependency: who reads, by cookie."""
    token = presented_token(request, None)
    caller = Tokens(parts.database).caller(token) if token else None
    if caller is None or not caller.may(Scope.READ):
        raise LoginNeeded
    return caller


SignedIn = Annotated[Caller, Depends(reader)]


def to_login(request: Request, _error: Exception) -> Response:
    """The answer to LoginNeeded."""
    return RedirectResponse(f"/login?next={request.url.path}", status_code=303)


def _page(request: Request, name: str, *, status: int = 200, **context: object) -> Response:
    templates = cast(Jinja2Templates, request.app.state.templates)
    return templates.TemplateResponse(request, name, context, status_code=status)


def _own_page(path: str) -> str:
    """Where to go after signing in: one of our pages, never a foreign site."""
    return path if _OWN_PAGE.fullmatch(path) else "/"


@router.get("/")
def show_bisections(request: Request, caller: SignedIn, parts: UsesParts) -> Response:
    rows = parts.summaries.page(limit=_LISTED)
    items = [summarise(row, parts.settings) for row in rows]
    return _page(request, "bisections.html", items=items, caller=caller, listed=_LISTED)


@router.get("/reports/{bisection_id}")
def show_report(request: Request, caller: SignedIn, row: Existing, parts: UsesParts) -> Response:
    """The report; before there is one, how far the bisection got."""
    try:
        report = finished_report(row, parts)
    except Problem:
        return _show_progress(request, caller, row, parts)
    headers = {"Content-Security-Policy": REPORT_POLICY}
    return Response(render_html(report), media_type="text/html; charset=utf-8", headers=headers)


def _show_progress(request: Request, caller: Caller, row: BisectionRow, parts: Parts) -> Response:
    shown = view_now(row, parts)
    told = shown.answer_so_far.model_dump() if shown.answer_so_far and row.status is Status.RUNNING else None
    return _page(
        request, "bisection.html", bisection=shown, caller=caller, so_far=_so_far(row, told) if told else None
    )


def _so_far(row: BisectionRow, told: Mapping[str, Any]) -> dict[str, Any]:
    spec = row.specification
    steps = spec.levels[told["level"]].range.commits if spec else ()
    return {
        "answer": answer_words(told),
        "cost": cost_words(told),
        "suspects": suspect_words(told, {step.hash: commit_words(step) for step in steps}),
    }


@router.get("/sweeps/{sweep_id}")
def show_sweep(caller: SignedIn, row: ExistingSweep, parts: UsesParts) -> Response:
    """Its report, of what is known so far while it runs."""
    headers = {"Content-Security-Policy": REPORT_POLICY}
    page = render_sweep_html(report_of(row, parts))
    return Response(page, media_type="text/html; charset=utf-8", headers=headers)


@router.get("/login")
def show_login(request: Request, next: str = "/") -> Response:
    return _page(request, "login.html", next=_own_page(next), refused=False)


@router.post("/login")
def log_in(request: Request, body: Annotated[bytes, Depends(body_of)], parts: UsesParts) -> Response:
    """Sets the cookie for a token that may read."""
    try:
        form = parse_qs(body.decode("utf-8", "replace"), max_num_fields=_MOST_FIELDS)
    except ValueError:
        raise Problem(
            problems.INVALID_REQUEST,
            f"The form has more than {_MOST_FIELDS} fields.",
            repair="Send the fields 'token' and 'next' only.",
        ) from None
    token = form.get("token", [""])[0].strip()
    target = _own_page(form.get("next", ["/"])[0])
    caller = Tokens(parts.database).caller(token)
    if caller is None or not caller.may(Scope.READ):
        return _page(request, "login.html", status=401, next=target, refused=True)
    response = RedirectResponse(target, status_code=303)
    response.set_cookie(
        COOKIE, token, httponly=True, samesite="strict", secure=parts.settings.is_https, path="/"
    )
    return response


@router.post("/logout")
def log_out(parts: UsesParts) -> Response:
    response = RedirectResponse("/login", status_code=303)
    response.delete_cookie(COOKIE, httponly=True, samesite="strict", secure=parts.settings.is_https, path="/")
    return response


@router.get("/errors/{name}")
def show_problem_kind(request: Request, name: str) -> Response:
    """What a problem's `type` points to."""
    kind = problems.KINDS.get(name)
    if kind is None:
        raise Problem(
            problems.NOT_FOUND,
            f"No problem of the service is called {name[:60]!r}.",
            repair="What a finding names is explained in docs/errors.",
        )
    return _page(request, "problem_kind.html", kind=kind)


@router.get("/static/firstbad.css")
def show_style() -> Response:
    return FileResponse(
        FOLDER / "firstbad.css",
        media_type="text/css; charset=utf-8",
        headers={"Cache-Control": "public, max-age=3600"},
    )
