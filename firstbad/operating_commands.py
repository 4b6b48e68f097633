"""Commands for whoever runs an installation: backup, restore, and whether a worker lives."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Annotated

import typer

from firstbad.asking import fail, out
from firstbad.settings import read_settings


def register(app: typer.Typer) -> None:
    app.command()(backup)
    app.command()(restore)
    app.command()(alive)


def backup(file: Annotated[Path, typer.Argument(help="Where the copy goes; it must not exist.")]) -> None:
    """Copy the SQLite database while it is in use."""
    from firstbad.database_files import back_up

    size = back_up(read_settings(), file)
    out.print(f"{file}: {size / 2**20:.1f} MiB", markup=False, soft_wrap=True)


def restore(file: Annotated[Path, typer.Argument(help="What `firstbad backup` made.")]) -> None:
    """Put a copy of the SQLite database back. Stop `firstbad up` first; the next one goes on from it."""
    from firstbad.database_files import put_back

    aside = put_back(read_settings(), file)
    out.print(f"the database is that of {file}", markup=False, soft_wrap=True)
    if aside:
        out.print(f"the one before is kept: {aside}", markup=False, soft_wrap=True)


def alive(name: Annotated[str, typer.Option(help="The worker's --name, on this host.")]) -> None:
    """Exit with 0 if the worker was seen within the last half minute: a health check for a container."""
    from bisection.adapters.storage.database import Database
    from bisection.adapters.storage.roster import Roster

    database = Database(read_settings().database_url)
    full = f"{name}@{socket.gethostname()}"
    if all(row.name != full for row in Roster(database).alive()):
        fail(f"worker {full} was not seen for half a minute")
