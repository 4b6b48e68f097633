"""What CIs reported and what was told of results, on the command line; and a GitHub to rehearse with."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from bisection.rendering.escaping import visible
from firstbad.asking import EXIT_USAGE, EXIT_WRONG, Json, fail, open_client, out, print_json, say
from firstbad.watching import patiently

_LOOK_SECONDS = 1.0


def register(app: typer.Typer) -> None:
    app.command()(deliveries)
    app.command()(release)
    app.command(name="catch-up")(catch_up)
    app.command()(announcements)
    app.command(name="github-stand-in")(github_stand_in)


def deliveries(
    delivery: Annotated[str | None, typer.Argument(help="One of them, in full.")] = None,
    status: Annotated[str | None, typer.Option(help="received, settled, held or failed.")] = None,
    repository: Annotated[str | None, typer.Option(help="Of this repository alone.")] = None,
    as_json: Json = False,
) -> None:
    """What CIs reported, the newest first, and what came of it."""
    with open_client() as client:
        if delivery is not None:
            _show(client.delivery(delivery), as_json)
            return
        rows = client.deliveries(status=status, repository=repository)
    if as_json:
        print_json(rows)
        return
    for row in rows:
        head = f"{row['id']}  {row['received_at'][:16]}  {row['event']}  {row['repository'] or ''}"
        out.print(f"{head}  {row['status']}", markup=False, soft_wrap=True)
        out.print(f"    {visible(row['why'])}", markup=False, soft_wrap=True)


def release(delivery: str, as_json: Json = False) -> None:
    """Let through a delivery that a limit of the day holds, or try one again that failed."""
    with open_client() as client:
        row = client.release(delivery)
    say(row, f"released; see what comes of it with: firstbad deliveries {delivery}", as_json)


def catch_up(
    repository: Annotated[str, typer.Argument(help="A registered repository with `webhook` and `github`.")],
    as_json: Json = False,
) -> None:
    """Ask GitHub for the runs whose delivery was missed. Exits with 1 if that failed."""
    with open_client() as client:
        row = client.catch_up(repository)
        while row["status"] == "received":
            time.sleep(_LOOK_SECONDS)
            row = patiently(partial(_one, client, row["id"]))
    _show(row, as_json)
    if row["status"] == "failed":
        raise SystemExit(EXIT_WRONG)


def _one(client: Any, delivery: str) -> dict[str, Any]:
    return dict(client.delivery(delivery))


def _show(row: Any, as_json: bool) -> None:
    if as_json:
        print_json(row)
        return
    out.print(f"{row['id']} is {row['status']}: {visible(row['why'])}", markup=False, soft_wrap=True)
    for one in row["outcomes"]:
        job = visible(one["job"]) or "the run"
        line = f"  {job}: {one['decision']}, {visible(one['why'])}"
        out.print(f"{line} {visible(one['repair'])}".rstrip(), markup=False, soft_wrap=True)
        if one["bisection"]:
            out.print(f"    {one['bisection']}", markup=False, soft_wrap=True)


def announcements(
    bisection: str,
    again: Annotated[bool, typer.Option("--retry", help="Tell it where that failed.")] = False,
    as_json: Json = False,
) -> None:
    """Where a result was told, and why not elsewhere."""
    with open_client() as client:
        rows = client.retry_announcements(bisection) if again else client.announcements(bisection)
    if as_json:
        print_json(rows)
        return
    for row in rows:
        out.print(f"{row['channel']}: {row['status']}, {visible(row['why'])}", markup=False, soft_wrap=True)
    if not rows:
        out.print("nothing is told of it: the repository's file asks for nothing", markup=False)


def github_stand_in(
    world: Annotated[Path, typer.Argument(help="A YAML file that tells runs, jobs and logs.")],
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8322,
) -> None:
    """Serve a stand-in of GitHub's API on loopback, to rehearse with; what was written is shown at /."""
    import uvicorn

    from firstbad.github_stand_in import GitHubWorld, create_stand_in

    try:
        told = GitHubWorld.read(world)
    except (ValueError, OSError) as error:
        fail(str(error), EXIT_USAGE)
    out.print(f"GitHub's stand-in for {told.repository} at http://127.0.0.1:{port}", markup=False)
    uvicorn.run(create_stand_in(told), host="127.0.0.1", port=port, log_level="warning")
