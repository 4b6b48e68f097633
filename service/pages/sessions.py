"""Who looks at a page, and whether a form was sent by one of ours. The package says why so."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import RedirectResponse

from bisection.adapters.storage.tokens import Caller, Scope, Tokens
from service import problems
from service.access import COOKIE, admit
from service.bisections import UsesParts
from service.pages.forms import Fields
from service.pages.templates import page
from service.problems import Problem

router = APIRouter()

_OWN_PAGE = re.compile(
    r"/((reports|sweeps|bisections)/[0-9a-f]{16}(/trials/[0-9a-f]{1,40})?|new|compare|workers)?"
)


class LoginNeeded(Exception):
    """A person opened a page without being signed in; they are sent to the form."""


def signed_in(scope: Scope) -> Callable[..., Caller]:
    """A dependency: who looks, by cookie, if their token has the scope. Raises LoginNeeded and Problem."""

    def caller(request: Request, parts: UsesParts) -> Caller:
        token = request.cookies.get(COOKIE)
        found = Tokens(parts.database).caller(token) if token else None
        if found is None or not found.may(Scope.READ):
            raise LoginNeeded
        return admit(found, scope, parts)

    return caller


SignedIn = Annotated[Caller, Depends(signed_in(Scope.READ))]
Writes = Annotated[Caller, Depends(signed_in(Scope.WRITE))]
Approves = Annotated[Caller, Depends(signed_in(Scope.APPROVE))]


def from_our_own_page(request: Request, parts: UsesParts) -> None:
    """A dependency of everything that a form may change. Raises Problem for a form of another site."""
    origin = request.headers.get("origin", "")
    ours = {urlsplit(parts.settings.public_url).netloc, request.headers.get("host", "")}
    sent_by = urlsplit(origin)
    if sent_by.scheme not in ("http", "https") or sent_by.netloc not in ours:
        raise Problem(
            problems.FORBIDDEN,
            "The form was not sent by a page of this service"
            + (f" but by {origin[:80]!r}." if origin else "."),
            repair="Open the page here and send it from there; programs use the REST interface with a token.",
        )


OwnPage = Depends(from_our_own_page)


def to_login(request: Request, _error: Exception) -> Response:
    """The answer to LoginNeeded. What htmx asked for is no place to come back to: the whole page goes."""
    if "hx-request" in request.headers:
        return Response(status_code=204, headers={"HX-Refresh": "true"})
    return RedirectResponse(f"/login?next={request.url.path}", status_code=303)


def _own_page(path: str) -> str:
    """Where to go after signing in: one of our pages, never a foreign site."""
    return path if _OWN_PAGE.fullmatch(path) else "/"


@router.get("/login")
def show_login(request: Request, next: str = "/") -> Response:
    return page(request, "login.html", next=_own_page(next), refused=False)


@router.post("/login", dependencies=[OwnPage])
def log_in(request: Request, fields: Fields, parts: UsesParts) -> Response:
    """Sets the cookie for a token that may read."""
    token = fields.get("token", "")
    target = _own_page(fields.get("next", "/"))
    caller = Tokens(parts.database).caller(token)
    if caller is None or not caller.may(Scope.READ):
        return page(request, "login.html", status=401, next=target, refused=True)
    response = RedirectResponse(target, status_code=303)
    response.set_cookie(
        COOKIE, token, httponly=True, samesite="strict", secure=parts.settings.is_https, path="/"
    )
    return response


@router.post("/logout", dependencies=[OwnPage])
def log_out(parts: UsesParts) -> Response:
    response = RedirectResponse("/login", status_code=303)
    response.delete_cookie(COOKIE, httponly=True, samesite="strict", secure=parts.settings.is_https, path="/")
    return response
