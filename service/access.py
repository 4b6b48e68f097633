"""Who is calling: a bearer token, or for reading in a browser the cookie that holds it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from bisection.adapters.storage.tokens import Caller, Scope, Tokens
from service import problems
from service.parts import Parts, parts_of
from service.problems import Problem

COOKIE = "firstbad_token"

_bearer = HTTPBearer(
    auto_error=False,
    scheme_name="bearerToken",
    description="A token with the scope read, write, approve or admin; `firstbad up` says where one is.",
)


def presented_token(request: Request, credentials: HTTPAuthorizationCredentials | None) -> str | None:
    """The header's token; the cookie's only where nothing can be changed by it."""
    if credentials is not None:
        return credentials.credentials
    if request.method in ("GET", "HEAD"):
        return request.cookies.get(COOKIE)
    return None


def require(scope: Scope) -> Callable[..., Caller]:
    """A dependency: the caller, if their token has the scope. Raises Problem otherwise."""

    def caller(
        request: Request,
        parts: Annotated[Parts, Depends(parts_of)],
        credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
    ) -> Caller:
        token = presented_token(request, credentials)
        if not token:
            raise Problem(
                problems.UNAUTHENTICATED,
                "No token came with the request.",
                headers={"WWW-Authenticate": 'Bearer realm="firstbad"'},
            )
        found = Tokens(parts.database).caller(token)
        if found is None:
            raise Problem(
                problems.UNAUTHENTICATED,
                "The token is unknown, expired or revoked.",
                headers={"WWW-Authenticate": 'Bearer realm="firstbad", error="invalid_token"'},
            )
        return admit(found, scope, parts)

    return caller


def admit(found: Caller, scope: Scope, parts: Parts) -> Caller:
    """The caller, if their token has the scope and does not ask too often. Raises Problem otherwise."""
    wait = parts.buckets.wait_seconds(found.id)
    if wait:
        raise Problem(
            problems.TOO_MANY_REQUESTS,
            f"Token {found.name!r} has made more than {parts.settings.requests_per_second:g} requests a "
            "second for a while.",
            headers={"Retry-After": str(math.ceil(wait))},
        )
    if not found.may(scope):
        raise Problem(
            problems.FORBIDDEN,
            f"Token {found.name!r} has the scopes {', '.join(sorted(found.scopes)) or 'none'}, "
            f"and this needs {scope.value!r}.",
            headers={
                "WWW-Authenticate": f'Bearer realm="firstbad", error="insufficient_scope", '
                f'scope="{scope.value}"'
            },
        )
    return found


Reader = Annotated[Caller, Depends(require(Scope.READ))]
Approver = Annotated[Caller, Depends(require(Scope.APPROVE))]
Writer = Annotated[Caller, Depends(require(Scope.WRITE))]
