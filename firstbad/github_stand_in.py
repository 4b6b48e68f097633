"""A stand-in of GitHub's REST API, to rehearse nightlies and announcements without GitHub.

It knows one repository, told by a file, and the few paths that firstbad uses, with GitHub's shapes, pages,
redirects and refusals. What is posted is kept in memory and shown at `/`. It checks tokens as GitHub does;
it is no proof of what GitHub does.
"""

from __future__ import annotations

import html
import itertools
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jwt
import yaml
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse

Row = dict[str, Any]
_SHOWN = "docs/how-to/github.md shows such a file"


@dataclass(kw_only=True)
class Fault:
    """An answer that goes wrong, so many times. With ``after`` the work is done, and the answer is lost."""

    method: str
    path: str  #: a part of it
    status: int = 502
    times: int = 1
    after: bool = False
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(kw_only=True)
class GitHubWorld:
    """What the stand-in knows. Runs have `jobs`, each with a `log`; pulls have `commits`."""

    repository: str
    token: str  #: a personal token that is accepted
    runs: list[Row] = field(default_factory=list)
    pulls: list[Row] = field(default_factory=list)
    branches: dict[str, list[str]] = field(default_factory=dict)  #: hashes, oldest first
    app_id: str = ""
    app_public_key: str = ""  #: PEM; installation tokens are given to whoever signs with the other half
    #: What was written.
    check_runs: list[Row] = field(default_factory=list)
    comments: list[Row] = field(default_factory=list)
    issues: list[Row] = field(default_factory=list)
    requests: list[tuple[str, str]] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    installation_tokens: set[str] = field(default_factory=set)
    _ids: itertools.count[int] = field(default_factory=lambda: itertools.count(1001))

    @classmethod
    def read(cls, path: Path) -> GitHubWorld:
        """Raises ValueError, saying what to mend, for a file that does not tell a world."""
        try:
            row = yaml.safe_load(path.read_text(encoding="utf-8"))
            world = cls(**row)
            for run in world.runs:
                run.setdefault("run_attempt", 1)
                for key in ("id", "name", "head_branch", "head_sha", "conclusion", "jobs"):
                    run[key]
        except (yaml.YAMLError, TypeError) as error:
            raise ValueError(f"{path}: {error}; docs/how-to/github.md shows such a file") from None
        except KeyError as error:
            raise ValueError(
                f"{path}: a run lacks {error}; docs/how-to/github.md shows such a file"
            ) from None
        return world

    def next_id(self) -> int:
        return next(self._ids)

    def fault(self, method: str, path: str, *, after: bool) -> Fault | None:
        for one in self.faults:
            if one.times and one.method == method and one.path in path and one.after is after:
                one.times -= 1
                return one
        return None


def create_stand_in(world: GitHubWorld) -> FastAPI:
    """The ASGI application that serves a world."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    _serve_access(app, world)
    _serve_runs(app, world)
    _serve_places(app, world)

    @app.get("/", response_class=HTMLResponse)
    def written() -> str:
        blocks = [
            f"<h2>{kind} {row.get('number') or row['id']}</h2><pre>{html.escape(_text(row))}</pre>"
            for kind, rows in (
                ("check run", world.check_runs),
                ("comment", world.comments),
                ("issue", world.issues),
            )
            for row in rows
        ]
        return f"<title>GitHub's stand-in</title><h1>What was written</h1>{''.join(blocks) or '<p>Nothing.'}"

    return app


def _text(row: Row) -> str:
    output = row.get("output") or {}
    return str(row.get("body") or f"{output.get('title')}\n\n{output.get('summary')}")


def _serve_access(app: FastAPI, world: GitHubWorld) -> None:
    @app.middleware("http")
    async def guard(request: Request, proceed: Callable[[Request], Awaitable[Response]]) -> Response:
        path = request.url.path
        world.requests.append((request.method, path))
        before = world.fault(request.method, path, after=False)
        if before:
            return _broken(before)
        if path.startswith("/repos/"):
            refusal = _refusal(request, world)
            if refusal:
                return refusal
        answer = await proceed(request)
        lost = world.fault(request.method, path, after=True)
        return _broken(lost) if lost else answer

    @app.post("/app/installations/{_installation}/access_tokens", status_code=201)
    def installation_token(_installation: int, request: Request) -> Row:
        signed = request.headers.get("authorization", "").removeprefix("Bearer ")
        try:
            claims = jwt.decode(
                signed, world.app_public_key, algorithms=["RS256"], options={"require": ["exp", "iat", "iss"]}
            )
        except (jwt.PyJWTError, ValueError):
            raise HTTPException(401, "A JSON web token could not be decoded") from None
        if claims["iss"] != world.app_id or claims["exp"] - time.time() > 600:
            raise HTTPException(401, "'Expiration time' claim ('exp') is too far in the future")
        token = f"ghs_{world.next_id()}"
        world.installation_tokens.add(token)
        return {"token": token, "expires_at": datetime.now(UTC).isoformat()}

    @app.exception_handler(HTTPException)
    def on_error(_request: Request, error: HTTPException) -> Response:
        return JSONResponse({"message": error.detail}, status_code=error.status_code)


def _broken(fault: Fault) -> Response:
    return JSONResponse({"message": "out of order"}, status_code=fault.status, headers=fault.headers)


def _refusal(request: Request, world: GitHubWorld) -> Response | None:
    token = request.headers.get("authorization", "").removeprefix("Bearer ")
    if token not in {world.token, *world.installation_tokens}:
        return JSONResponse({"message": "Bad credentials"}, status_code=401)
    if not request.url.path.startswith(f"/repos/{world.repository}/"):
        return JSONResponse({"message": "Not Found"}, status_code=404)
    writes_check = request.method != "GET" and "/check-runs" in request.url.path
    if writes_check and token == world.token:
        return JSONResponse({"message": "You must authenticate via a GitHub App."}, status_code=403)
    return None


def _page(rows: list[Row], request: Request) -> list[Row]:
    query = request.query_params
    size, page = min(100, int(query.get("per_page", "30"))), int(query.get("page", "1"))
    return rows[(page - 1) * size : page * size]


def _found(row: Row | None) -> Row:
    if row is None:
        raise HTTPException(404, "Not Found")
    return row


def _serve_runs(app: FastAPI, world: GitHubWorld) -> None:
    base = f"/repos/{world.repository}"

    def run_row(run: Row) -> Row:
        head = run.get("head_repository", world.repository)
        return {
            "status": "completed",
            "event": "schedule",
            "html_url": f"https://github.example/{world.repository}/actions/runs/{run['id']}",
            **{key: value for key, value in run.items() if key != "jobs"},
            "head_repository": {"full_name": head} if head else None,
        }

    def job_row(run: Row, job: Row) -> Row:
        return {
            "run_id": run["id"],
            "run_attempt": run["run_attempt"],
            "workflow_name": run["name"],
            "head_branch": run["head_branch"],
            "head_sha": run["head_sha"],
            "status": "completed",
            "html_url": f"https://github.example/{world.repository}/actions/runs/{run['id']}/job/{job['id']}",
            **{key: value for key, value in job.items() if key != "log"},
        }

    def all_jobs() -> list[tuple[Row, Row]]:
        return [(run, job) for run in world.runs for job in run["jobs"]]

    @app.get(base + "/actions/runs")
    def runs(request: Request) -> Row:
        branch, since = request.query_params.get("branch"), request.query_params.get("created", "")
        rows = [
            run_row(run)
            for run in sorted(world.runs, key=lambda run: -int(run["id"]))
            if run["head_branch"] == branch and run.get("created_at", "9") >= since.removeprefix(">=")
        ]
        return {"total_count": len(rows), "workflow_runs": _page(rows, request)}

    @app.get(base + "/actions/runs/{run_id}")
    def run(run_id: int) -> Row:
        newest = [one for one in world.runs if one["id"] == run_id]
        return run_row(_found(max(newest, key=lambda one: int(one["run_attempt"]), default=None)))

    @app.get(base + "/actions/runs/{run_id}/attempts/{attempt}/jobs")
    def jobs(run_id: int, attempt: int, request: Request) -> Row:
        key = (run_id, attempt)
        found = next((one for one in world.runs if (one["id"], one["run_attempt"]) == key), None)
        rows = [job_row(_found(found), job) for job in _found(found)["jobs"]]
        return {"total_count": len(rows), "jobs": _page(rows, request)}

    @app.get(base + "/actions/jobs/{job_id}")
    def job(job_id: int) -> Row:
        found = next((pair for pair in all_jobs() if pair[1]["id"] == job_id), None)
        return job_row(*found) if found else _found(None)

    @app.get(base + "/actions/jobs/{job_id}/logs")
    def log(job_id: int, request: Request) -> Response:
        _found(next((one for _, one in all_jobs() if one["id"] == job_id), None))
        return RedirectResponse(f"{request.base_url}_logs/{job_id}?signature=short-lived", status_code=302)

    @app.get("/_logs/{job_id}")
    def log_text(job_id: int, request: Request) -> Response:
        if "authorization" in request.headers:  # as the real storage does: a second permission is an error
            raise HTTPException(400, "only one auth mechanism is allowed")
        found = next((one for _, one in all_jobs() if one["id"] == job_id), None)
        log = _found(found).get("log", "")
        return Response(log if isinstance(log, bytes) else str(log).encode(), media_type="text/plain")

    @app.get(base + "/compare/{spread:path}")
    def compare(spread: str) -> Row:
        branch, _, commit = spread.partition("...")
        line = world.branches.get(branch, [])
        if commit not in line:
            return {"status": "diverged"}
        return {"status": "identical" if commit == line[-1] else "behind"}


def _serve_places(app: FastAPI, world: GitHubWorld) -> None:
    base = f"/repos/{world.repository}"

    def stamp(row: Row) -> Row:
        return {"id": world.next_id(), "created_at": datetime.now(UTC).isoformat(), **row}

    @app.get(base + "/commits/{sha}/check-runs")
    def check_runs(sha: str, request: Request) -> Row:
        rows = [row for row in world.check_runs if row["head_sha"] == sha]
        return {"total_count": len(rows), "check_runs": _page(rows, request)}

    @app.post(base + "/check-runs", status_code=201)
    async def make_check_run(request: Request) -> Row:
        world.check_runs.append(stamp(await request.json()))
        return world.check_runs[-1]

    @app.patch(base + "/check-runs/{check_id}")
    async def change_check_run(check_id: int, request: Request) -> Row:
        row = _found(next((one for one in world.check_runs if one["id"] == check_id), None))
        row.update(await request.json())
        return row

    @app.get(base + "/commits/{sha}/pulls")
    def pulls(sha: str, request: Request) -> list[Row]:
        rows = [
            {
                "number": pull["number"],
                "merged_at": pull.get("merged_at"),
                "base": {"repo": {"full_name": world.repository}},
            }
            for pull in world.pulls
            if sha in pull["commits"]
        ]
        return _page(rows, request)

    @app.get(base + "/issues")
    def issues(request: Request) -> list[Row]:
        return _page(world.issues, request)

    @app.post(base + "/issues", status_code=201)
    async def make_issue(request: Request) -> Row:
        world.issues.append(stamp({"number": world.next_id(), **await request.json()}))
        return world.issues[-1]

    @app.patch(base + "/issues/{number}")
    async def change_issue(number: int, request: Request) -> Row:
        row = _found(next((one for one in world.issues if one["number"] == number), None))
        row.update(await request.json())
        return row

    @app.get(base + "/issues/{number}/comments")
    def comments(number: int, request: Request) -> list[Row]:
        return _page([row for row in world.comments if row["number"] == number], request)

    @app.post(base + "/issues/{number}/comments", status_code=201)
    async def make_comment(number: int, request: Request) -> Row:
        body = (await request.json())["body"]
        if len(body) > 65_536:
            raise HTTPException(422, "Validation Failed: body is too long")
        world.comments.append(stamp({"number": number, "body": body}))
        return world.comments[-1]

    @app.patch(base + "/issues/comments/{comment_id}")
    async def change_comment(comment_id: int, request: Request) -> Row:
        row = _found(next((one for one in world.comments if one["id"] == comment_id), None))
        row.update(await request.json())
        return row
