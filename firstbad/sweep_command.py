"""`firstbad sweep`: one commit of a profile under several configurations, watched live."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from bisection.rendering.escaping import terminal_safe
from bisection.rendering.sweep_terminal import render_sweep_text
from bisection.rendering.sweep_words import point_words
from bisection.sweep_report import SweepReport
from firstbad.asking import EXIT_USAGE, EXIT_WRONG, Json, err, fail, key_values, open_client, out, print_json
from firstbad.configuration_files import parse_capacity
from firstbad.watching import patiently

_LOOK_SECONDS = 1.0
_FORMATS = ("text", "markdown", "html", "json")


def register(app: typer.Typer) -> None:
    app.command()(sweep)


def sweep(
    profile: Annotated[str | None, typer.Option(help="A profile of the server's catalogue.")] = None,
    at: Annotated[str | None, typer.Option(help="A branch, a tag or a commit hash.")] = None,
    micro_batch: Annotated[str, typer.Option(help="Sizes, such as 1,2,4.")] = "",
    recompute: Annotated[str, typer.Option(help="Of none, selective and full.")] = "",
    graph_scope: Annotated[
        str, typer.Option(help="CUDA graphs: none, or parts of layers joined by +, narrow ones first.")
    ] = "",
    dispatcher: Annotated[str, typer.Option(help="Of allgather, alltoall and flex.")] = "",
    ep: Annotated[str, typer.Option("--ep", help="Expert-parallel sizes.")] = "",
    etp: Annotated[str, typer.Option("--etp", help="Expert-tensor-parallel sizes.")] = "",
    override: Annotated[
        list[str] | None, typer.Option("--set", help="KEY=VALUE of the configuration, at every point.")
    ] = None,
    capacity: Annotated[
        str | None, typer.Option(help="Of one device, such as 80GiB; the profile's where not given.")
    ] = None,
    show: Annotated[str | None, typer.Option(help="Print the report of this sweep instead.")] = None,
    cancel: Annotated[
        str | None, typer.Option(help="Stop this sweep instead; what was measured is kept.")
    ] = None,
    format: Annotated[str, typer.Option(help="text, markdown, html or json.")] = "text",
    wait: Annotated[bool, typer.Option(help="Watch it to its end.")] = True,
    as_json: Json = False,
) -> None:
    """Try one commit under several configurations: useful tokens a second against peak memory.

    Every combination of the values is a point. Exits with 1 if no point could be compared.
    """
    format = "json" if as_json else format
    if format not in _FORMATS:
        fail(f"there is no report format {format!r}; choose {', '.join(_FORMATS)}", EXIT_USAGE)
    with open_client() as client:
        if cancel is not None:
            client.cancel_sweep(cancel)
            out.print(f"sweep {cancel} will end with what was measured so far", markup=False)
            return
        if show is None:
            if profile is None or at is None:
                fail("name what to sweep: --profile NAME and --at REF", EXIT_USAGE)
            sizes = {"micro_batch": micro_batch, "expert_parallel": ep, "expert_tensor_parallel": etp}
            words = {"recompute": recompute, "graph_scope": graph_scope, "dispatcher": dispatcher}
            axes: dict[str, list[Any]] = {name: _numbers(name, text) for name, text in sizes.items()}
            axes |= {name: _split(text) for name, text in words.items()}
            row = client.create_sweep(
                {
                    "profile": profile,
                    "at": at,
                    "axes": {name: values for name, values in axes.items() if values},
                    "overrides": key_values(override or []),
                    "capacity_bytes": parse_capacity(capacity) if capacity else None,
                }
            )
            if wait:
                row = _watch(client, row["id"], out if format == "text" else err)
        else:
            row = client.sweep(show)
        _print(client, row, format)
    if row["status"] == "ended" and row["report"]["best"] is None:
        raise SystemExit(EXIT_WRONG)


def _split(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _numbers(name: str, text: str) -> list[int]:
    try:
        return [int(word) for word in _split(text)]
    except ValueError:
        fail(f"{name.replace('_', ' ')} takes whole numbers, such as 1,2,4; not {text!r}", EXIT_USAGE)


def _print(client: Any, row: dict[str, Any], format: str) -> None:
    if format == "json":
        print_json(row)
    elif format == "text":
        out.print(render_sweep_text(SweepReport.from_json(row["report"])), markup=False, soft_wrap=True)
        if row["status"] != "ended":
            out.print(f"sweep {row['id']} is {row['status']}; its page: {row['links']['page']}", markup=False)
    else:
        typer.echo(client.sweep_report(row["id"], format), nl=False)


def _watch(client: Any, sweep_id: str, console: Console) -> dict[str, Any]:
    """Show it until it has ended; returns it."""

    def look() -> dict[str, Any]:
        row: dict[str, Any] = client.sweep(sweep_id)
        return row

    if not console.is_terminal:
        return _say_lines(look, console)
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        while True:
            row = patiently(look)
            live.update(_picture(row))
            if row["status"] == "ended":
                return row
            time.sleep(_LOOK_SECONDS)


def _picture(row: dict[str, Any]) -> RenderableType:
    lines = [*row["hints"], *row["progress"]]
    told = [Text(terminal_safe(line), style="yellow") for line in lines]
    head = Text(f"sweep {row['id']}: {row['status']}", style="bold")
    return Group(head, *told, Text(render_sweep_text(SweepReport.from_json(row["report"]))))


def _say_lines(look: Any, console: Console) -> dict[str, Any]:
    said: set[str] = set()

    def say(text: str) -> None:
        if text not in said:
            said.add(text)
            console.print(Text(terminal_safe(text)), soft_wrap=True)

    while True:
        row = patiently(look)
        say(f"sweep {row['id']}: {row['status']}")
        for line in (*row["hints"], *row["progress"]):
            say(line)
        for words in point_words(SweepReport.from_json(row["report"])):
            figures = ", ".join(filter(None, [words.rate and f"{words.rate} useful tokens/s", words.peak]))
            told = "; ".join(filter(None, [words.standing, figures, words.said]))
            if words.standing not in ("waits", "runs") and not words.standing.startswith("place"):
                say(f"point {words.number} {words.name}: {told}")
            elif words.rate:
                say(f"point {words.number} {words.name}: {figures}")
        if row["status"] == "ended":
            return row
        time.sleep(_LOOK_SECONDS)
