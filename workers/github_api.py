"""GitHub's REST API: how a worker signs in, asks, and is answered. What is asked for lives elsewhere.

Requests go to the configured API alone. The one redirect that is followed is a log's, and only to a
configured host, without the token. Answers are read up to a limit. Tokens stand in no error and no log.

Errors::

    GitHubError
    +- GitHubAway      no answer, a fault of theirs, or a limit: it may pass; says in how many seconds
    +- GitHubRefused   an answer that repeating does not change; says what to mend
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import jwt

from bisection.adapters.nightlies import GitHubAccess, GitHubApp

_TIMEOUT_SECONDS = 15.0
_LARGEST_ANSWER_BYTES = 16 * 2**20
#: More of a log is not read; the end of it, which tells the failure, is kept.
_LARGEST_LOG_BYTES = 256 * 2**20
_KEPT_LOG_BYTES = 2 * 2**20
_AWAY_SECONDS = 30.0
#: GitHub refuses more than ten minutes; the second is for clocks that go ahead.
_JWT_SECONDS, _CLOCK_SECONDS = 540, 60
_MOST_PAGES = 10
PAGE = 100


class GitHubError(Exception):
    """GitHub's API did not do what it was asked."""


class GitHubAway(GitHubError):
    """It may pass: ask again in ``seconds``."""

    def __init__(self, message: str, seconds: float = _AWAY_SECONDS) -> None:
        super().__init__(message)
        self.seconds = seconds


class GitHubRefused(GitHubError):
    """Repeating changes nothing; ``repair`` says what does."""

    def __init__(self, message: str, repair: str, status: int = 0) -> None:
        super().__init__(message)
        self.repair = repair
        self.status = status


class GitHubApi:
    """One repository's API. Use it in a `with` block."""

    def __init__(self, access: GitHubAccess) -> None:
        self.access = access
        self._http = httpx.Client(verify=_certificates(), timeout=_TIMEOUT_SECONDS, follow_redirects=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._http.close()

    def get(self, path: str, **query: Any) -> Any:
        """The JSON at a path below the repository, e.g. `/actions/runs`."""
        return self._json("GET", self._url(path), params=query)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        return self._json("POST", self._url(path), json=dict(body))

    def patch(self, path: str, body: Mapping[str, Any]) -> Any:
        return self._json("PATCH", self._url(path), json=dict(body))

    def pages(self, path: str, key: str = "", **query: Any) -> Iterator[Mapping[str, Any]]:
        """The rows of up to ten pages of a hundred; ``key`` is where they stand in the answer."""
        for page in range(1, _MOST_PAGES + 1):
            answer = self.get(path, per_page=PAGE, page=page, **query)
            rows = answer[key] if key else answer
            yield from rows
            if len(rows) < PAGE:
                return

    def download(self, path: str) -> bytes:
        """A log: its last 2 to 4 MiB. Of a zip archive, what fits into 256 MiB."""
        answer = self._stream(self._url(path), self._headers)
        if isinstance(answer, bytes):
            return answer
        if not self.access.may_fetch_log_from(answer):
            host = httpx.URL(answer).host
            raise GitHubRefused(
                f"the log is kept at {host}, which is not among github.log_hosts",
                f"if {host} is right, add it to github.log_hosts in the repository's file",
            )
        # Without our token: the address itself is the permission.
        followed = self._stream(answer, {})
        if isinstance(followed, bytes):
            return followed
        raise GitHubRefused("the log's address redirects once more", "look at github.log_hosts")

    def _url(self, path: str) -> str:
        return f"{self.access.api}/repos/{self.access.repository}{path}"

    @cached_property
    def _headers(self) -> dict[str, str]:
        return {
            "Accept": "application/vnd.github+json",
            "X-GitHub-Api-Version": "2022-11-28",
            "User-Agent": "firstbad",
            "Authorization": f"Bearer {self._token()}",
        }

    def _token(self) -> str:
        if self.access.app is None:
            return _secret(self.access.token_file or "", "github.token_file")
        url = f"{self.access.api}/app/installations/{self.access.app.installation}/access_tokens"
        headers = {
            "Accept": "application/vnd.github+json",
            "Authorization": f"Bearer {_app_token(self.access.app)}",
        }
        return str(self._json("POST", url, headers=headers)["token"])

    def _json(self, method: str, url: str, headers: Mapping[str, str] | None = None, **arguments: Any) -> Any:
        try:
            with self._http.stream(
                method, url, headers=self._headers if headers is None else headers, **arguments
            ) as response:
                body = _bounded(response, _LARGEST_ANSWER_BYTES)
        except httpx.HTTPError as error:
            raise GitHubAway(f"{self.access.api} does not answer: {type(error).__name__}") from None
        _check(response, body)
        try:
            return httpx.Response(200, content=body).json()
        except ValueError:
            raise GitHubAway(f"{self.access.api} did not answer in JSON") from None

    def _stream(self, url: str, headers: Mapping[str, str]) -> bytes | str:
        """The end of a file, or where it is instead."""
        try:
            with self._http.stream("GET", url, headers=headers) as response:
                if response.is_redirect:
                    return str(response.next_request.url) if response.next_request else ""
                if response.is_error:
                    _check(response, _bounded(response, _LARGEST_ANSWER_BYTES))
                return _tail(response)
        except httpx.HTTPError as error:
            raise GitHubAway(f"{httpx.URL(url).host} does not answer: {type(error).__name__}") from None


@cache
def _certificates() -> ssl.SSLContext:
    """Read once: reading takes longer than a request."""
    return httpx.create_ssl_context()


def _app_token(app: GitHubApp) -> str:
    now = int(time.time())
    claims = {"iat": now - _CLOCK_SECONDS, "exp": now + _JWT_SECONDS, "iss": app.id}
    key = _secret(app.private_key_file, "github.app.private_key_file")
    try:
        return jwt.encode(claims, key, algorithm="RS256")
    except (ValueError, TypeError, jwt.PyJWTError):
        raise GitHubRefused(
            "github.app.private_key_file holds no RSA private key",
            "put the PEM file there that GitHub gave when the App's key was made",
        ) from None


def _secret(path: str, field: str) -> str:
    try:
        text = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise GitHubRefused(
            f"{field} cannot be read: {getattr(error, 'strerror', None) or 'it is no text'}",
            "put the secret there, readable by the worker's user",
        ) from None
    if not text:
        raise GitHubRefused(f"{field} is empty", "put the secret there")
    return text


def _bounded(response: httpx.Response, most: int) -> bytes:
    body = bytearray()
    for chunk in response.iter_bytes():
        body += chunk
        if len(body) > most:
            raise GitHubRefused(
                f"an answer of {response.url.host} is larger than {most:,} bytes", "ask GitHub, please"
            )
    return bytes(body)


def _tail(response: httpx.Response) -> bytes:
    kept, read = bytearray(), 0
    for chunk in response.iter_bytes():
        kept += chunk
        read += len(chunk)
        if read > _LARGEST_LOG_BYTES:
            break
        if len(kept) > 2 * _KEPT_LOG_BYTES and not kept.startswith(b"PK\x03\x04"):
            del kept[:-_KEPT_LOG_BYTES]
    return bytes(kept)


def _check(response: httpx.Response, body: bytes) -> None:
    """Raises for whatever is no success."""
    if response.is_success:
        return
    status, headers = response.status_code, response.headers
    try:
        said = str(httpx.Response(200, content=body).json().get("message", ""))[:200].rstrip(".")
    except (ValueError, AttributeError):
        said = ""
    where = f"{response.request.method} {response.url.path}"
    limited = status == 429 or (
        status == 403 and (headers.get("x-ratelimit-remaining") == "0" or "retry-after" in headers)
    )
    if status >= 500 or limited:
        raise GitHubAway(f"{where}: {status} {said}".strip(), _wait_seconds(headers))
    raise GitHubRefused(f"{where}: {status} {said}".strip(), _repair(status), status)


def _wait_seconds(headers: httpx.Headers) -> float:
    after, reset = headers.get("retry-after", ""), headers.get("x-ratelimit-reset", "")
    if after.isdigit():
        return min(3600.0, float(after))
    if headers.get("x-ratelimit-remaining") == "0" and reset.isdigit():
        return min(3600.0, max(1.0, float(reset) - time.time()))
    return _AWAY_SECONDS


def _repair(status: int) -> str:
    return {
        401: "the token or key of `github` is not valid any more: make a new one",
        403: "the token or App of `github` lacks a permission: docs/how-to/github.md lists them",
        404: "check github.repository, and that the token or App of `github` may see it",
        410: "GitHub keeps it no longer",
    }.get(status, "see what GitHub says, and docs/how-to/github.md")
