"""`firstbad profiles`: those that ship, as files to copy, and whether a profile is fit for honest trials."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import typer
from rich.console import Console

from bisection.adapters.catalogue import NotRegistered
from bisection.adapters.profiles import Profile
from firstbad.bootstrap import open_catalogue
from firstbad.settings import read_settings
from firstbad.shipped_profiles import as_yaml, names, shipped
from workers.launch_rules import broken_rules

out = Console(highlight=False)
profiles = typer.Typer(no_args_is_help=True, help="Profiles that ship with firstbad: to copy and change.")


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.add_typer(profiles, name="profiles")


@profiles.command(name="list")
def list_command() -> None:
    """What ships: a model's name alone trains on local images and texts, a suffix names other data."""
    for name in names():
        out.print(f"{name:45} {shipped(name).gpus:3} GPUs", markup=False)
    out.print("None of them was run on a GPU. `firstbad profiles show NAME` prints one to copy.")


@profiles.command()
def show(name: str) -> None:
    """Print a shipped profile as a file of the catalogue."""
    sys.stdout.write(as_yaml(shipped(name)))


@profiles.command()
def check(name: str) -> None:
    """Say what keeps a registered profile, or a shipped one, from honest trials on this host.

    Nothing is fetched or started; `firstbad doctor --profile NAME` does that.
    """
    try:
        profile = open_catalogue(read_settings()).profile(name)
    except NotRegistered:
        profile = shipped(name)
    found = [*broken_rules(profile), *_missing(profile)]
    for line in found:
        out.print(line, markup=False, soft_wrap=True)
    if found:
        raise SystemExit(1)
    out.print(f"{name}: {len(profile.launch)} launch adapters, every rule is kept", markup=False)


def _missing(profile: Profile) -> Iterator[str]:
    data = {"data.path": profile.data.path} if profile.data.path else {}
    for field, place in {**{f"places.{name}": path for name, path in profile.places.items()}, **data}.items():
        if not Path(place).exists():
            yield f"{field}: {place} is not on this host: correct it in the profile, or put it there"
