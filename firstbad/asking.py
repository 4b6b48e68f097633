"""What commands that ask a server share: the consoles, how they fail, the client, KEY=VALUE words."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from firstbad.configuration_files import parse_settings
from firstbad.settings import read_settings

BisectionId = Annotated[str, typer.Argument(metavar="BISECTION", help="Its id; `firstbad list` shows them.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)

#: docs/reference/command-line.md has the table; 130 is a Ctrl-C.
EXIT_WRONG, EXIT_USAGE, EXIT_UNREACHABLE, EXIT_NO_COMMIT, EXIT_STOPPED = 1, 2, 3, 4, 5


def exit_of(finding: str | None) -> int:
    """What a bisection's end means to a script: 0 where a commit was found, or nothing has ended yet."""
    return {"rejected": EXIT_USAGE, "set": EXIT_NO_COMMIT, "none": EXIT_NO_COMMIT}.get(finding or "", 0)


def fail(text: str, code: int = EXIT_WRONG) -> NoReturn:
    err.print(f"firstbad: {text}", style="red", markup=False, soft_wrap=True)
    raise SystemExit(code)


@contextmanager
def open_client() -> Iterator[Any]:
    """The server of FIRSTBAD_URL and FIRSTBAD_TOKEN, or the one that is up on this machine."""
    from firstbad.embedded import find_running
    from service.client import Client

    url, token = os.environ.get("FIRSTBAD_URL"), os.environ.get("FIRSTBAD_TOKEN", "")
    if not url:
        running = find_running(read_settings())
        if running is None:
            fail(
                "no server is up on this machine; start one with `firstbad up`, "
                "or name another with FIRSTBAD_URL and FIRSTBAD_TOKEN",
                EXIT_UNREACHABLE,
            )
        url, token = running.url, running.token
    with Client(url, token) as client:
        yield client


def print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def say(row: Any, words: str, as_json: bool) -> None:
    """What a command has done: the answer as JSON, or a line about it."""
    if as_json:
        print_json(row)
    else:
        out.print(words, markup=False)


def key_values(pairs: list[str]) -> dict[str, Any]:
    """KEY=VALUE words; ends with the usage's exit code for one that is none."""
    try:
        return parse_settings(pairs)
    except ValueError as error:
        fail(str(error), EXIT_USAGE)
