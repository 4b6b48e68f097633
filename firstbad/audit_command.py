"""`firstbad audit`: who did what. Ask, print, exit."""

from __future__ import annotations

from typing import Annotated

import typer

from bisection.rendering.escaping import visible
from firstbad.asking import Json, open_client, out, print_json


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(name="audit")(audit_command)


def audit_command(
    by: Annotated[str | None, typer.Option(help="Only whose acts, like token:ada.")] = None,
    action: Annotated[str | None, typer.Option(help="Only of this kind, like approved.")] = None,
    subject: Annotated[str | None, typer.Option(help="Only what was done to this bisection.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many, the newest first.")] = 50,
    as_json: Json = False,
) -> None:
    """Tell who started, approved, changed, took back, deleted and released what, the newest first."""
    with open_client() as client:
        rows = client.acts(by=by, action=action, subject=subject, limit=limit)
    if as_json:
        print_json(rows)
        return
    for row in rows:
        head = f"{row['at'][:19]}  {visible(row['by'])}  {row['action']}  {visible(row['subject'])}"
        told = ", ".join(f"{name} {value}" for name, value in row["told"].items() if value not in (None, ""))
        out.print(f"{head}  {visible(told)}".rstrip(), markup=False, soft_wrap=True)
