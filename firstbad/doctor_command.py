"""`firstbad doctor`: is this host, and a profile on it, fit for trials? Ask, print, exit."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Annotated

import typer
from redis import Redis
from rich.console import Console

from bisection.adapters.catalogue import Catalogue, CatalogueError, Profile
from bisection.quantities import counted
from firstbad.bootstrap import open_catalogue, open_database
from firstbad.embedded import find_running
from firstbad.settings import Settings, read_settings
from workers.container_checks import check_containers
from workers.host_checks import Check, Health, check_clock, check_host, guarded
from workers.isolation_checks import check_isolations
from workers.profile_checks import check_profile

_SIGNS = {Health.WELL: "[green]ok  [/]", Health.DOUBTFUL: "[yellow]hmm [/]", Health.BROKEN: "[red]bad [/]"}
out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(name="doctor")(doctor_command)


def doctor_command(
    profile: Annotated[
        list[str] | None,
        typer.Option(help="Also prepare a trial of this profile: fetch, export, environment, launch."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check this worker host, and profiles on it, and say how to mend what is not well.

    Exits with 1 if something is broken. Without --profile nothing is fetched or built.
    """
    settings = read_settings()
    catalogue = open_catalogue(settings)
    found: list[dict[str, str]] = []
    broken = False
    for section, check in _all_checks(settings, catalogue, profile or []):
        broken |= check.health is Health.BROKEN
        found.append({"section": section, **check.to_json()})
        if not as_json:
            _print(section if len(found) == 1 or found[-2]["section"] != section else "", check)
    if as_json:
        sys.stdout.write(json.dumps({"well": not broken, "checks": found}, indent=2) + "\n")
    raise SystemExit(1 if broken else 0)


def _all_checks(settings: Settings, catalogue: Catalogue, names: list[str]) -> Iterator[tuple[str, Check]]:
    known: list[Profile] = []

    def read_catalogue() -> Check:
        known.extend(catalogue.profiles())
        count = len(catalogue.repositories())
        return Check(
            name="catalogue",
            health=Health.WELL,
            found=f"{counted(len(known), 'profile')}, {count} "
            f"{'repository' if count == 1 else 'repositories'} in {catalogue.folder}",
        )

    yield "installation", guarded("catalogue", read_catalogue)
    yield "installation", guarded("database", lambda: _database(settings))
    yield "installation", guarded("broker", lambda: _broker(settings))
    checks = (*check_host(settings.home, known), *check_containers(known), *check_isolations(known))
    for check in checks:
        yield "host", check
    for name in names:
        try:
            profile = catalogue.profile(name)
        except CatalogueError as error:
            check = Check(name="profile", health=Health.BROKEN, found=str(error), mend="Correct the file.")
            yield f"profile {name}", check
            continue
        for check in check_profile(profile, catalogue, settings.home, _progress):
            yield f"profile {name}", check


def _database(settings: Settings) -> Check:
    database = open_database(settings)
    shown = settings.database_url.render_as_string(hide_password=True)
    database.close()
    return Check(name="database", health=Health.WELL, found=shown)


def _broker(settings: Settings) -> Check:
    if settings.bundles_broker:
        running = find_running(settings)
        found = "bundled; it is up" if running else "bundled; `firstbad up` starts it"
        return Check(name="broker", health=Health.WELL, found=found)
    with Redis.from_url(settings.broker_url, socket_timeout=5, socket_connect_timeout=5) as broker:
        seconds, microseconds = broker.time()
    return check_clock("the broker", seconds + microseconds / 1e6)


def _progress(text: str) -> None:
    err.print(f"     {text}", style="dim", markup=False)


def _print(section: str, check: Check) -> None:
    if section:
        out.print(f"\n{section}", style="bold", markup=False)
    out.print(f"  {_SIGNS[check.health]}", end="")
    out.print(f"{check.name}: {check.found}", markup=False, soft_wrap=True)
    if check.mend:
        out.print(f"       {check.mend}", markup=False, soft_wrap=True)
