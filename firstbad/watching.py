"""A bisection as it runs, in the terminal: a live picture, or a line an event where there is none."""

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
from bisection.rendering.progress_words import answer_words, cost_words, suspect_words
from service.client import Client

_LOOK_SECONDS = 1.0
#: A server that restarts is away for seconds; one that is gone for so long is not coming back.
_PATIENCE_SECONDS = 90.0

_COLOURS = {"good": "green", "bad": "red", "skip": "yellow", "retry": "yellow"}
_SIGNS = {"good": "+", "bad": "x", "skip": "?", "retry": "?"}
#: Of the trials, the last so many are shown: a picture that is higher than the terminal cannot move.
_MOST_ROWS = 15
_MOST_SUSPECTS = 3

Look = Callable[[], dict[str, Any]]


class ServerGone(RuntimeError):
    """The server no longer answers; start `firstbad up` again, nothing is lost."""


def patiently(call: Look) -> dict[str, Any]:
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
    return follow(lambda: patiently(lambda: client.get(bisection_id)), console)


def follow(look: Look, console: Console, pause_seconds: float = _LOOK_SECONDS) -> dict[str, Any]:
    """The same for whatever tells how a bisection stands, in the API's shape."""
    if not console.is_terminal:
        return _report_lines(look, console, pause_seconds)
    with Live(console=console, refresh_per_second=4) as live:
        while True:
            bisection = look()
            live.update(picture(bisection, console.width))
            if bisection["status"] in ("ended", "planned"):
                return bisection
            time.sleep(pause_seconds)


def _report_lines(look: Look, console: Console, pause_seconds: float) -> dict[str, Any]:
    said: set[str] = set()

    def say(text: str) -> None:
        if text not in said:
            said.add(text)
            console.print(Text(text), soft_wrap=True)

    while True:
        bisection = look()
        say(_headline(bisection))
        for hint in bisection["hints"]:
            say(terminal_safe(hint))
        for line in _so_far(bisection):
            say(terminal_safe(line))
        for trial in bisection["trials"]:
            head = f"trial {trial['ordinal'] + 1} {state_words(trial)} ({trial['purpose']})"
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
        time.sleep(pause_seconds)


def state_words(trial: Mapping[str, Any]) -> str:
    """What a trial checks out: its commit, and inside of it the pins and packages that differ."""
    inner = [f"{path.rpartition('/')[2]}@{commit[:10]}" for path, commit in trial["pins"].items()]
    inner += [f"{name}=={version}" for name, version in trial["packages"].items()]
    return " ".join([trial["commit"][:10], *inner])


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


def _suspects(bisection: Mapping[str, Any]) -> list[str]:
    told = bisection.get("answer_so_far")
    if told is None or bisection["status"] != "running":
        return []
    names = {
        trial["commit"]: f"{trial['commit'][:10]} {trial['subject']}"
        for trial in bisection["trials"]
        if not trial["pins"] and not trial["packages"]
    }
    return [f"{share:>6} {name}" for share, name in suspect_words(told, names)[:_MOST_SUSPECTS]]


def strip(bisection: Mapping[str, Any], width: int) -> Text:
    """The range from good to bad, a column a commit or a few: what the last trial of each said."""
    steps = int((bisection.get("plan") or {}).get("commits", 0))
    placed = [trial for trial in bisection["trials"] if trial.get("position") is not None]
    if steps < 1 or not placed:
        return Text("")
    room = max(2, min(width - 12, steps + 1))
    signs: dict[int, tuple[str, str]] = {}
    for trial in placed:
        column = round(trial["position"] * (room - 1) / max(1, steps))
        verdict = trial["verdict"] or ("" if trial["status"] in ("queued", "cancelled") else "running")
        if verdict:
            signs[min(column, room - 1)] = (_SIGNS.get(verdict, "▸"), _COLOURS.get(verdict, "bold"))
    line = Text("good ")
    for column in range(room):
        line.append(*signs.get(column, ("·", "dim")))
    return line.append(" bad")


def picture(bisection: Mapping[str, Any], width: int) -> RenderableType:
    """One moment: the range, the trials, who is suspected, what it cost and what is to come."""
    table = Table(box=None, pad_edge=False)
    for name in ("#", "commit", "purpose", "verdict", "what happened", "s"):
        table.add_column(name, justify="right" if name in "#s" else "left", overflow="ellipsis")
    for trial in bisection["trials"][-_MOST_ROWS:]:
        verdict = trial["verdict"] or trial["status"]
        text = trial["verdict_why"] or trial["progress"] or trial["why"]
        table.add_row(
            str(trial["ordinal"] + 1),
            Text(terminal_safe(state_words(trial))),
            trial["purpose"],
            Text(verdict, style=_COLOURS.get(verdict, "dim")),
            Text(terminal_safe(text), no_wrap=True),
            f"{trial['seconds']:.0f}" if trial["seconds"] else "",
        )
    hints = [Text(terminal_safe(hint), style="yellow") for hint in bisection["hints"]]
    suspects = [Text(terminal_safe(line), style="red") for line in _suspects(bisection)]
    so_far = [Text(terminal_safe(line)) for line in _so_far(bisection)]
    earlier = len(bisection["trials"]) - _MOST_ROWS
    more = [Text(f"{counted(earlier, 'earlier trial')} above", style="dim")] if earlier > 0 else []
    head = Text(_headline(bisection), style="bold")
    return Group(head, strip(bisection, width), *hints, *more, table, *suspects, *so_far)
