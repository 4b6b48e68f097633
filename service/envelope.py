"""What every answer wears, whoever made it: safe headers, and a problem where the framework sends bare text.

It wraps the whole application, the framework's own error answers included.
"""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service import problems
from service.problem_responses import MEDIA_TYPE, encode
from service.problems import Problem
from service.settings import ServiceSettings

PAGE_POLICY = (
    "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)

#: Headers that no answer may lack. An endpoint that needs another value sets its own.
_DEFAULTS = (
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Content-Security-Policy", PAGE_POLICY),
    ("Cache-Control", "no-store"),
)


class Envelope:
    """ASGI middleware; the outermost."""

    def __init__(self, app: ASGIApp, settings: ServiceSettings) -> None:
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        replacement: bytes | None = None

        async def send_wrapped(message: Message) -> None:
            nonlocal replacement
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _DEFAULTS:
                    headers.setdefault(name, value)
                # The framework's limit on bodies answers below every handler, in plain text.
                if message["status"] == 413 and headers.get("content-type") != MEDIA_TYPE:
                    replacement = self._too_large(scope["path"])
                    headers["Content-Type"] = MEDIA_TYPE
                    headers["Content-Length"] = str(len(replacement))
            elif message["type"] == "http.response.body" and replacement is not None:
                message = {**message, "body": replacement, "more_body": False}
            await send(message)

        await self._app(scope, receive, send_wrapped)

    def _too_large(self, path: str) -> bytes:
        kind = problems.BODY_TOO_LARGE
        problem = Problem(kind, kind.cause)
        return encode(problem.body(base_url=self._settings.public_url, instance=path))
