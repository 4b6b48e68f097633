"""Asking a server for bisections: submit, watch, report, list, and what one does with a bisection."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from rich.table import Table

from firstbad import watching
from firstbad.asking import (
    EXIT_USAGE,
    BisectionId,
    Json,
    err,
    exit_of,
    fail,
    key_values,
    open_client,
    out,
    print_json,
    say,
)

_FORMATS = ("text", "markdown", "html", "json", "mail")


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    for command in (submit, watch, report, prove, confirm, cancel, delete, retract):
        app.command()(command)
    app.command(name="list")(list_bisections)


def submit(
    profile: Annotated[str, typer.Option(help="A profile of the server's catalogue.")],
    good: Annotated[str, typer.Option(help="The last commit known to be good.")],
    bad: Annotated[str, typer.Option(help="A commit that shows the regression.")],
    override: Annotated[
        list[str] | None, typer.Option("--set", help="KEY=VALUE of the training configuration.")
    ] = None,
    preview: Annotated[bool, typer.Option(help="Plan only; `firstbad confirm` starts it.")] = False,
    reuse: Annotated[bool, typer.Option(help="Take over what other bisections measured.")] = True,
    widen: Annotated[bool, typer.Option(help="Where the good end fails too, go back further.")] = False,
    prove: Annotated[int, typer.Option(min=0, max=8, help="Try so many remedies at the culprit.")] = 0,
    wait: Annotated[bool, typer.Option(help="Watch it to its end.")] = True,
    as_json: Json = False,
) -> None:
    """Ask for a bisection of good..bad."""
    request = {
        "profile": profile,
        "good": good,
        "bad": bad,
        "overrides": key_values(override or []),
        "preview": preview,
        "reuse": reuse,
        "widen": widen,
        "prove": prove,
    }
    with open_client() as client:
        bisection = client.create(request)
        if wait:
            bisection = watching.watch(client, bisection["id"], err if as_json else out)
        if as_json:
            print_json(bisection)
        elif bisection["status"] == "ended":
            _print_report(client, bisection["id"], "text")
        elif bisection["status"] == "planned":
            out.print(_plan_text(bisection), markup=False, soft_wrap=True)
        else:
            out.print(f"bisection {bisection['id']} is {bisection['status']}", markup=False)
    raise SystemExit(exit_of((bisection.get("finding") or {}).get("kind")))


def _plan_text(bisection: Any) -> str:
    from bisection.quantities import counted

    plan = bisection["plan"]
    lines = [
        f"{counted(plan['commits'], 'commit')} in {counted(plan['states'], 'state')} that can differ "
        f"in the repro, in {counted(plan['environments'], 'environment')}",
        f"about {counted(round(plan['trials']), 'trial')} on {counted(plan['workers'], 'worker')}",
    ]
    if plan["seconds"] is not None:
        lines.append(
            f"about {counted(round(plan['seconds'] / 60), 'minute')}, {plan['gpu_hours']:.1f} GPU hours"
        )
    else:
        lines.append("how long is not known: no trial of this profile was run yet")
    lines.append(f"start it with: firstbad confirm {bisection['id']}")
    return "\n".join(lines)


def watch(bisection: BisectionId, as_json: Json = False) -> None:
    """Follow a bisection live, then print its report."""
    with open_client() as client:
        row = watching.watch(client, bisection, err if as_json else out)
        if as_json:
            print_json(row)
        elif row["status"] == "ended":
            _print_report(client, bisection, "text")
    raise SystemExit(exit_of((row.get("finding") or {}).get("kind")))


def report(
    bisection: BisectionId,
    format: Annotated[str, typer.Option(help=f"{', '.join(_FORMATS)}.")] = "text",
    as_json: Json = False,
) -> None:
    """Print a bisection's report."""
    format = "json" if as_json else format
    if format not in _FORMATS:
        fail(f"there is no report format {format!r}; choose one of {', '.join(_FORMATS)}", EXIT_USAGE)
    with open_client() as client:
        _print_report(client, bisection, format)


def _print_report(client: Any, bisection: str, format: str) -> None:
    from bisection.rendering.mail import render_mail
    from bisection.rendering.terminal import render_text
    from bisection.report import CulpritReport

    if format in ("text", "mail"):
        document = CulpritReport.from_json(client.report(bisection, "json"))
        if format == "mail":
            sys.stdout.buffer.write(render_mail(document))
        else:
            out.print(render_text(document), markup=False, soft_wrap=True)
    elif format == "json":
        print_json(client.report(bisection, "json"))
    else:
        sys.stdout.write(client.report(bisection, format))


def prove(
    bisection: BisectionId,
    top: Annotated[int, typer.Option(min=1, max=8, help="How many of the best remedies.")] = 2,
    as_json: Json = False,
) -> None:
    """Try the best remedies of a report at its culprit, and print the report with the proofs."""
    with open_client() as client:
        client.prove(bisection, top)
        watching.watch(client, bisection, err if as_json else out)
        _print_report(client, bisection, "json" if as_json else "text")


def list_bisections(
    status: Annotated[
        list[str] | None, typer.Option(help="Only those that stand here, such as running; several times.")
    ] = None,
    repository: Annotated[str | None, typer.Option(help="Only those of this repository.")] = None,
    profile: Annotated[str | None, typer.Option(help="Only those of this profile.")] = None,
    source: Annotated[str | None, typer.Option(help="Only those whose source begins so: github:")] = None,
    text: Annotated[str | None, typer.Option(help="Only those with this in request or finding.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many.")] = 100,
    as_json: Json = False,
) -> None:
    """The bisections of the server, newest first."""
    with open_client() as client:
        rows = client.list(
            status=status, repository=repository, profile=profile, source=source, text=text, limit=limit
        )
    if as_json:
        print_json(rows)
        return
    table = Table(box=None, pad_edge=False)
    for name in ("id", "created", "profile", "status", "finding"):
        table.add_column(name)
    for row in rows:
        finding = (row.get("finding") or {}).get("kind", "")
        table.add_row(row["id"], row["created_at"][:19], row["request"]["profile"], row["status"], finding)
    out.print(table)


def confirm(bisection: BisectionId, as_json: Json = False) -> None:
    """Start a bisection that was only planned."""
    with open_client() as client:
        row = client.confirm(bisection)
    say(row, f"started; follow it with: firstbad watch {bisection}", as_json)


def cancel(bisection: BisectionId, as_json: Json = False) -> None:
    """End a bisection with the best answer so far."""
    with open_client() as client:
        row = client.cancel(bisection)
    say(row, f"bisection {bisection} will end with its best answer so far", as_json)


def delete(bisection: BisectionId, as_json: Json = False) -> None:
    """Delete an ended bisection: request, trials, measurements, files and report."""
    from bisection.quantities import counted

    with open_client() as client:
        deleted = client.delete(bisection)
    if as_json:
        print_json(deleted)
        return
    counts = deleted["counts"]
    what = f"{counted(counts['trials'], 'trial')} and {counted(counts['artifacts'], 'file')}"
    out.print(f"bisection {bisection} is deleted, with {what}. What remains:", markup=False)
    for line in deleted["remains"]:
        out.print(f"- {line}", markup=False, soft_wrap=True)


def retract(
    worker: Annotated[str | None, typer.Option(help="All that this worker measured.")] = None,
    key: Annotated[str | None, typer.Option(help="All of one state: the reuse_key of a trial.")] = None,
    as_json: Json = False,
) -> None:
    """Never take faulty measurements over into other bisections."""
    from bisection.quantities import counted

    if worker is None and key is None:
        fail("name what is faulty: --worker NAME or --key KEY", EXIT_USAGE)
    with open_client() as client:
        count = client.retract(worker=worker, key=key)
    if as_json:
        print_json({"retracted": count})
        return
    out.print(f"{counted(count, 'measurement')} will not be taken over any more", markup=False)
