"""A bisection as it runs, in the terminal: a live table, or a line an event where there is none."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import httpx
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from bisection.quantities import counted
from bisection.rendering.escaping import terminal_safe
from bisection.rendering.progress_words import answer_words, cost_words
from service.client import Client

_LOOK_SECONDS = 1.0
#: A server that restarts is away for seconds; one that is gone for so long is not coming back.
_PATIENCE_SECONDS = 90.0

_COLOURS = {"good": "green", "bad": "red", "skip": "yellow", "retry": "yellow"}


class ServerGone(RuntimeError):
    """The server no longer answers; start `firstbad up` again, nothing is lost."""


def patiently(call: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What the call gives, though the server may be away for a while. Raises ServerGone."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            return call()
        except httpx.TransportError as error:
            if time.monotonic() > deadline:
                raise ServerGone(
                    f"the server has not answered for {_PATIENCE_SECONDS:.0f} s ({error}); "
                    "start `firstbad up` again, nothing is lost"
                ) from error
            time.sleep(_LOOK_SECONDS)


def watch(client: Client, bisection_id: str, console: Console) -> dict[str, Any]:
    """Show the bisection until it has ended, or waits for its confirmation; returns it."""

    def look() -> dict[str, Any]:
        return client.get(bisection_id)

    if not console.is_terminal:
        return _report_lines(look, console)
    with Live(console=console, refresh_per_second=4) as live:
        while True:
            bisection = patiently(look)
            live.update(_picture(bisection))
            if bisection["status"] in ("ended", "planned"):
                return bisection
            time.sleep(_LOOK_SECONDS)


def _report_lines(look: Callable[[], dict[str, Any]], console: Console) -> dict[str, Any]:
    said: set[str] = set()

    def say(text: str) -> None:
        if text not in said:
            said.add(text)
            console.print(Text(text), soft_wrap=True)

    while True:
        bisection = patiently(look)
        say(_headline(bisection))
        for hint in bisection["hints"]:
            say(terminal_safe(hint))
        for line in _so_far(bisection):
            say(terminal_safe(line))
        for trial in bisection["trials"]:
            head = f"trial {trial['ordinal'] + 1} {trial['commit'][:10]} ({trial['purpose']})"
            if trial["progress"]:
                say(terminal_safe(f"{head}: {trial['progress']}"))
            if trial["verdict"]:
                say(
                    terminal_safe(
                        f"{head}: {trial['verdict']} - {trial['verdict_why']} [{trial['seconds']:.0f} s]"
                    )
                )
        if bisection["status"] in ("ended", "planned"):
            return bisection
        time.sleep(_LOOK_SECONDS)


def _headline(bisection: Mapping[str, Any]) -> str:
    plan = bisection.get("plan") or {}
    size = ""
    if plan:
        size = f", {counted(plan['commits'], 'commit')} in {counted(plan['states'], 'state')}"
    return f"bisection {bisection['id']}: {bisection['status']}{size}"


def _so_far(bisection: Mapping[str, Any]) -> list[str]:
    """The answer so far and its cost, while the search goes on."""
    told = bisection.get("answer_so_far")
    if told is None or bisection["status"] != "running":
        return []
    return [answer_words(told), f"{cost_words(told)}."]


def _picture(bisection: Mapping[str, Any]) -> RenderableType:
    table = Table(box=None, pad_edge=False)
    for name in ("#", "commit", "purpose", "verdict", "what happened", "s"):
        table.add_column(name, justify="right" if name in "#s" else "left", overflow="ellipsis")
    for trial in bisection["trials"]:
        verdict = trial["verdict"] or trial["status"]
        text = trial["verdict_why"] or trial["progress"] or trial["why"]
        table.add_row(
            str(trial["ordinal"] + 1),
            trial["commit"][:10],
            trial["purpose"],
            Text(verdict, style=_COLOURS.get(verdict, "dim")),
            Text(terminal_safe(text), no_wrap=True),
            f"{trial['seconds']:.0f}" if trial["seconds"] else "",
        )
    hints = [Text(terminal_safe(hint), style="yellow") for hint in bisection["hints"]]
    so_far = [Text(terminal_safe(line)) for line in _so_far(bisection)]
    return Group(Text(_headline(bisection), style="bold"), *hints, table, *so_far)
