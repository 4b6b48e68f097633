"""A small client of the service, which the command line uses. It needs httpx and nothing of the server.

Errors::

    ApiProblem           the service answered that something is wrong; says how to mend it
    httpx.TransportError the service was not reached
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Self, cast, overload
from urllib.parse import quote

import httpx

Json = dict[str, Any]
Rows = list[Json]

#: Longer than the server's pause between two signs of life on a quiet event stream.
_QUIET_SECONDS = 45.0


class ApiProblem(Exception):
    """The service answered with a problem. Its text says what is wrong and how to mend it."""

    def __init__(
        self, *, status: int, title: str, detail: str, repair: str, type: str, errors: tuple[Json, ...] = ()
    ) -> None:
        super().__init__(f"{title}: {detail}")
        self.status = status
        self.title = title
        self.detail = detail
        self.repair = repair
        self.type = type  #: URL of the page about this kind of problem
        self.errors = errors  #: {field, message, repair} of each field at fault

    @classmethod
    def of(cls, response: httpx.Response) -> ApiProblem:
        """Also where what answered is not our service, e.g. a proxy on the way."""
        try:
            row = response.json()
            return cls(
                status=response.status_code,
                title=row["title"],
                detail=row["detail"],
                repair=row["repair"],
                type=row["type"],
                errors=tuple(row["errors"]),
            )
        except (ValueError, KeyError, TypeError):
            return cls(
                status=response.status_code,
                title=f"HTTP {response.status_code}",
                detail=f"{response.url.host} did not answer as firstbad does. Check the URL of the server.",
                repair="Check the URL of the server.",
                type="about:blank",
            )


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened to a bisection; ``id`` grows."""

    id: int
    kind: str
    at: str
    payload: Mapping[str, Any] = field(default_factory=dict)


class Client:
    """One service and one token. Use it in a `with` block, or call `close`."""

    def __init__(self, url: str, token: str, *, timeout_seconds: float = 30.0) -> None:
        self._http = httpx.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=timeout_seconds,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def create(self, request: Mapping[str, Any], *, idempotency_key: str | None = None) -> Json:
        """Start a bisection; the body is that of POST /v1/bisections."""
        headers = {"Idempotency-Key": idempotency_key} if idempotency_key else {}
        return self._json("POST", "/v1/bisections", json=dict(request), headers=headers)

    def get(self, bisection_id: str) -> Json:
        return self._json("GET", _path(bisection_id))

    def list(self, *, status: str | None = None, profile: str | None = None, limit: int = 100) -> Rows:
        """The newest first, at most ``limit`` of them."""
        found: Rows = []
        cursor: str | None = None
        while len(found) < limit:
            query = {
                "limit": min(limit - len(found), 200),
                "status": status,
                "profile": profile,
                "cursor": cursor,
            }
            page = self._json(
                "GET", "/v1/bisections", params={k: v for k, v in query.items() if v is not None}
            )
            found += page["items"]
            cursor = page["next"]
            if cursor is None:
                break
        return found

    def confirm(self, bisection_id: str) -> Json:
        return self._json("POST", f"{_path(bisection_id)}/confirm")

    def cancel(self, bisection_id: str) -> Json:
        return self._json("POST", f"{_path(bisection_id)}/cancel")

    def trials(self, bisection_id: str) -> Rows:
        """All trials with their measurements and artifacts."""
        return cast(Rows, self._json("GET", f"{_path(bisection_id)}/trials")["items"])

    def artifact(self, bisection_id: str, trial_id: str, name: str) -> bytes:
        path = f"{_path(bisection_id)}/trials/{quote(trial_id, safe='')}/artifacts/{quote(name, safe='')}"
        return self._send("GET", path).content

    @overload
    def report(self, bisection_id: str, format: Literal["json"] = "json") -> Json: ...
    @overload
    def report(self, bisection_id: str, format: Literal["markdown", "html"]) -> str: ...
    def report(self, bisection_id: str, format: str = "json") -> Json | str:
        """Raises ApiProblem with status 409 while there is none."""
        response = self._send("GET", f"{_path(bisection_id)}/report", params={"format": format})
        return cast(Json, response.json()) if format == "json" else response.text

    def retract(self, *, worker: str | None = None, key: str | None = None) -> int:
        """Measurements of a worker, or of the state with a trial's `reuse_key`, are never taken over."""
        wanted = {name: value for name, value in (("worker", worker), ("key", key)) if value is not None}
        return int(self._json("POST", "/v1/measurements/retract", json=wanted)["retracted"])

    def profiles(self) -> Rows:
        return cast(Rows, self._json("GET", "/v1/profiles")["items"])

    def repositories(self) -> Rows:
        return cast(Rows, self._json("GET", "/v1/repositories")["items"])

    def workers(self) -> Rows:
        return cast(Rows, self._json("GET", "/v1/workers")["items"])

    def events(self, bisection_id: str, *, after: int = 0) -> Iterator[Event]:
        """What happened after that event and what happens until the end. Raises when the stream breaks;
        go on with ``after`` set to the last id."""
        headers = {"Last-Event-ID": str(after), "Accept": "text/event-stream"}
        timeout = httpx.Timeout(self._http.timeout.connect, read=_QUIET_SECONDS)
        with self._http.stream(
            "GET", f"{_path(bisection_id)}/events", headers=headers, timeout=timeout
        ) as response:
            if response.is_error:
                response.read()
                raise ApiProblem.of(response)
            yield from _parse_events(response.iter_lines())

    def wait(
        self, bisection_id: str, *, timeout_seconds: float | None = None, poll_seconds: float = 1.0
    ) -> Json:
        """The bisection once it has ended, or waits for its confirmation. Raises TimeoutError."""
        deadline = time.monotonic() + timeout_seconds if timeout_seconds is not None else None
        while True:
            row = self.get(bisection_id)
            if row["status"] in ("ended", "planned"):
                return row
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"bisection {bisection_id} is still {row['status']}")
            time.sleep(poll_seconds)

    def _json(self, method: str, path: str, **arguments: Any) -> Json:
        return cast(Json, self._send(method, path, **arguments).json())

    def _send(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        response = self._http.request(method, path, **arguments)
        if not response.is_success:
            raise ApiProblem.of(response)
        return response


def _path(bisection_id: str) -> str:
    return f"/v1/bisections/{quote(bisection_id, safe='')}"


def _parse_events(lines: Iterator[str]) -> Iterator[Event]:
    """Server-sent events as this service writes them: one line of JSON data each."""
    fields: dict[str, str] = {}
    for line in lines:
        if line.startswith(":"):
            continue
        if line:
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
            continue
        if "data" in fields:
            data = json.loads(fields["data"])
            yield Event(id=int(fields["id"]), kind=fields["event"], at=data["at"], payload=data["payload"])
        fields = {}
