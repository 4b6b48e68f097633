"""A small client of the service, which the command line uses. It needs httpx and nothing of the server.

Errors::

    ApiProblem           the service answered that something is wrong; says how to mend it
    httpx.TransportError the service was not reached
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Self, cast, overload
from urllib.parse import quote

import httpx

Json = dict[str, Any]
Rows = list[Json]
End = str | Mapping[str, str]  #: a ref, or a ref of the repository and of what it pins

#: Longer than the server's pause between two signs of life on a quiet event stream.
_QUIET_SECONDS = 45.0
#: A request that came too soon is sent again so often, each time after the pause that the server asks for.
_PATIENCE, _LONGEST_PAUSE_SECONDS = 3, 30.0


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

    def list(
        self,
        *,
        status: str | Sequence[str] | None = None,
        repository: str | None = None,
        profile: str | None = None,
        source: str | None = None,
        ancestor: str | None = None,
        text: str | None = None,
        limit: int = 100,
    ) -> Rows:
        """The newest first, at most ``limit`` of them."""
        wanted = {
            "status": status, "repository": repository, "profile": profile, "source": source,
            "ancestor": ancestor, "text": text,
        }  # fmt: skip
        return self._pages("/v1/bisections", wanted, limit)

    def retry(
        self,
        bisection_id: str,
        *,
        anew: bool = False,
        preview: bool = False,
        idempotency_key: str | None = None,
    ) -> Json:
        """The same question again; ``anew`` takes over nothing that was measured."""
        body = {"anew": anew, "preview": preview}
        return self._change(bisection_id, "retry", body, idempotency_key)

    def extend(
        self,
        bisection_id: str,
        *,
        good: End | None = None,
        bad: End | None = None,
        preview: bool = False,
        idempotency_key: str | None = None,
    ) -> Json:
        """An older good end, a newer bad end, or both; every measurement is kept."""
        ends = {name: end for name, end in (("good", good), ("bad", bad)) if end is not None}
        return self._change(bisection_id, "extend", {**ends, "preview": preview}, idempotency_key)

    def replay(
        self, bisection_id: str, criterion: Mapping[str, Any], *, confidence: float | None = None
    ) -> Json:
        """What its measurements say under another criterion. Nothing is stored and nothing is run."""
        return self._change(bisection_id, "replay", _replayed(criterion, confidence))

    def confirm_replay(
        self,
        bisection_id: str,
        criterion: Mapping[str, Any],
        *,
        confidence: float | None = None,
        idempotency_key: str | None = None,
    ) -> Json:
        """A new bisection of that, which runs only what is missing."""
        body = _replayed(criterion, confidence)
        return self._change(bisection_id, "replay/confirm", body, idempotency_key)

    def approve(self, bisection_id: str, *, reason: str = "") -> Json:
        """Allow the GPU hours of a held bisection; needs the scope approve, as `refuse` does."""
        return self._change(bisection_id, "approve", {"reason": reason})

    def refuse(self, bisection_id: str, *, reason: str) -> Json:
        return self._change(bisection_id, "refuse", {"reason": reason})

    def retract_result(self, bisection_id: str, *, reason: str) -> Json:
        """Take the result of an ended bisection back."""
        return self._change(bisection_id, "retract", {"reason": reason})

    def confirm(self, bisection_id: str) -> Json:
        return self._json("POST", f"{_path(bisection_id)}/confirm")

    def cancel(self, bisection_id: str) -> Json:
        return self._json("POST", f"{_path(bisection_id)}/cancel")

    def prove(self, bisection_id: str, count: int) -> Json:
        """Have the best remedies tried at the culprit."""
        return self._json("POST", f"{_path(bisection_id)}/remedies/prove", json={"count": count})

    def create_sweep(self, request: Mapping[str, Any], *, idempotency_key: str | None = None) -> Json:
        """Start a sweep; the body is that of POST /v1/sweeps."""
        headers = {"Idempotency-Key": idempotency_key} if idempotency_key else {}
        return self._json("POST", "/v1/sweeps", json=dict(request), headers=headers)

    def sweep(self, sweep_id: str) -> Json:
        return self._json("GET", _sweep_path(sweep_id))

    def sweeps(self, *, limit: int = 50) -> Rows:
        """The newest first."""
        return cast(Rows, self._json("GET", "/v1/sweeps", params={"limit": limit})["items"])

    def cancel_sweep(self, sweep_id: str) -> Json:
        return self._json("POST", f"{_sweep_path(sweep_id)}/cancel")

    def sweep_report(self, sweep_id: str, format: Literal["markdown", "html"]) -> str:
        return self._send("GET", f"{_sweep_path(sweep_id)}/report", params={"format": format}).text

    def delete(self, bisection_id: str) -> Json:
        """Delete one that has ended; what was removed, and what remains."""
        return self._json("DELETE", _path(bisection_id))

    def announcements(self, bisection_id: str) -> Rows:
        """Where the result was told."""
        return cast(Rows, self._json("GET", f"{_path(bisection_id)}/announcements")["items"])

    def retry_announcements(self, bisection_id: str) -> Rows:
        return cast(Rows, self._json("POST", f"{_path(bisection_id)}/announcements/retry")["items"])

    def deliveries(
        self, *, status: str | None = None, repository: str | None = None, limit: int = 50
    ) -> Rows:
        """What CIs reported, the newest first, at most ``limit`` of it."""
        return self._pages("/v1/deliveries", {"status": status, "repository": repository}, limit)

    def delivery(self, delivery_id: str) -> Json:
        return self._json("GET", f"/v1/deliveries/{quote(delivery_id, safe='')}")

    def release(self, delivery_id: str) -> Json:
        """Let through what a limit held back; try again what failed."""
        return self._json("POST", f"/v1/deliveries/{quote(delivery_id, safe='')}/release")

    def catch_up(self, repository: str) -> Json:
        """Ask GitHub for runs whose delivery was missed; gives the delivery that tells what was found."""
        return self._json("POST", f"/v1/repositories/{quote(repository, safe='')}/catch-up")

    def acts(
        self, *, by: str | None = None, action: str | None = None, subject: str | None = None, limit: int = 50
    ) -> Rows:
        """The audit log, the newest first, at most ``limit`` of it."""
        return self._pages("/v1/audit", {"by": by, "action": action, "subject": subject}, limit)

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

    def measurements(
        self,
        *,
        key: str | None = None,
        worker: str | None = None,
        commit: str | None = None,
        outcome: str | None = None,
        profile: str | None = None,
        retracted: bool | None = None,
        limit: int = 100,
    ) -> Rows:
        """What was measured, for whoever may take it over; the newest first, at most ``limit`` of them."""
        wanted = {
            "key": key, "worker": worker, "commit": commit, "outcome": outcome, "profile": profile,
            "retracted": retracted,
        }  # fmt: skip
        return self._pages("/v1/measurements", wanted, limit)

    def estimate(self, request: Mapping[str, Any]) -> Json:
        """Ask the memory model; the body is that of POST /v1/estimates."""
        return self._json("POST", "/v1/estimates", json=dict(request))

    def profile(self, name: str) -> Json:
        return self._json("GET", f"/v1/profiles/{quote(name, safe='')}")

    def repository(self, name: str) -> Json:
        return self._json("GET", f"/v1/repositories/{quote(name, safe='')}")

    def pools(self) -> Rows:
        """Each queue with its workers, and how many trials run and wait."""
        return cast(Rows, self._json("GET", "/v1/pools")["items"])

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
        """The bisection once it has ended, or waits for people: for a confirmation or an approval.

        Raises TimeoutError.
        """
        deadline = time.monotonic() + timeout_seconds if timeout_seconds is not None else None
        while True:
            row = self.get(bisection_id)
            if row["status"] in ("ended", "planned", "held"):
                return row
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"bisection {bisection_id} is still {row['status']}")
            time.sleep(poll_seconds)

    def _change(
        self, bisection_id: str, what: str, body: Mapping[str, Any], idempotency_key: str | None = None
    ) -> Json:
        headers = {"Idempotency-Key": idempotency_key} if idempotency_key else {}
        return self._json("POST", f"{_path(bisection_id)}/{what}", json=dict(body), headers=headers)

    def _pages(self, path: str, wanted: Mapping[str, Any], limit: int) -> Rows:
        """Rows of a list, page after page, at most ``limit`` of them."""
        query = {name: value for name, value in wanted.items() if value is not None}
        found: Rows = []
        while len(found) < limit:
            page = self._json("GET", path, params={**query, "limit": min(limit - len(found), 1000)})
            found += page["items"]
            if page["next"] is None:
                break
            query["cursor"] = page["next"]
        return found

    def _json(self, method: str, path: str, **arguments: Any) -> Json:
        return cast(Json, self._send(method, path, **arguments).json())

    def _send(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        response = self._http.request(method, path, **arguments)
        for _ in range(_PATIENCE):
            if response.status_code != httpx.codes.TOO_MANY_REQUESTS:
                break
            time.sleep(min(float(response.headers.get("retry-after", 1)), _LONGEST_PAUSE_SECONDS))
            response = self._http.request(method, path, **arguments)
        if not response.is_success:
            raise ApiProblem.of(response)
        return response


def _replayed(criterion: Mapping[str, Any], confidence: float | None) -> Json:
    return {"criterion": dict(criterion), **({"confidence": confidence} if confidence is not None else {})}


def _path(bisection_id: str) -> str:
    return f"/v1/bisections/{quote(bisection_id, safe='')}"


def _sweep_path(sweep_id: str) -> str:
    return f"/v1/sweeps/{quote(sweep_id, safe='')}"


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
