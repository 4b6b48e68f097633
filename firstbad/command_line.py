"""The `firstbad` command: parse, call, print."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import Annotated, Any

import httpx
import typer
from rich.table import Table
from sqlalchemy.exc import SQLAlchemyError

from firstbad import (
    __version__,
    audit_command,
    bisection_commands,
    doctor_command,
    memory_commands,
    nightly_commands,
    operating_commands,
    profiles_command,
    sweep_command,
)
from firstbad.asking import (
    EXIT_UNREACHABLE,
    EXIT_USAGE,
    err,
    fail,
    key_values,
    open_client,
    out,
    print_json,
)
from firstbad.here import run_command
from firstbad.settings import Settings, read_settings
from service.client import ApiProblem

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Finds the first bad commit of a mixture-of-experts vision-language training regression.",
)
app.command(context_settings={"allow_interspersed_args": False})(run_command.run)
memory_commands.register(app)
bisection_commands.register(app)
nightly_commands.register(app)
audit_command.register(app)
sweep_command.register(app)
doctor_command.register(app)
profiles_command.register(app)
operating_commands.register(app)

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Workers = Annotated[int, typer.Option(min=1, max=16, help="Trials that run at once on this machine.")]

#: The training environment of one demo trial needs about 1.5 GiB, and one core.
DEFAULT_WORKERS = min(2, os.cpu_count() or 1)

#: Plants a changed value of the configuration, so that the first report shows every part.
DEFAULT_SEED = 6


def main() -> None:
    """Entry point: faults that people can mend are said in a sentence, without a traceback."""
    try:
        app()
    except ApiProblem as problem:
        fail(str(problem), EXIT_USAGE)
    except httpx.TransportError as error:
        fail(f"the server does not answer: {error}", EXIT_UNREACHABLE)
    except SQLAlchemyError as error:
        fail(f"the database cannot be used: {getattr(error, 'orig', None) or error}")
    except OSError as error:
        fail(f"{error.strerror or error}: {error.filename}" if error.filename else str(error))
    except (ValueError, RuntimeError) as error:
        fail(str(error))


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        out.print(f"firstbad {__version__}")
        raise typer.Exit


@app.command()
def up(workers: Workers = DEFAULT_WORKERS) -> None:
    """Run everything on this machine: API, broker and workers. Ctrl-C stops all of it and loses nothing."""
    from firstbad.embedded import AlreadyRunning, Embedded, find_running

    settings = read_settings()
    try:
        with Embedded(settings, workers, lambda text: err.print(text, markup=False)) as server:
            _say_where(f"firstbad is up at {server.url}", settings)
            out.print("Ctrl-C stops it.")
            sys.stdout.flush()
            server.watch()
            out.print("stopping: workers hand back their trials")
    except AlreadyRunning as error:
        running = find_running(settings)
        if running is None:
            fail(str(error))
        _say_where(f"already up at {running.url}, as long as process {running.pid} lives", settings)


def _say_where(first: str, settings: Settings) -> None:
    for line in (
        first,
        f"token:     {settings.token_file}",
        f"catalogue: {settings.catalogue}",
        f"logs:      {settings.home / 'logs'}",
    ):
        out.print(line, markup=False, soft_wrap=True)


@app.command()
def api(
    host: Annotated[str, typer.Option(help="Address to listen on; the port is FIRSTBAD_PORT.")] = "127.0.0.1",
    listener: Annotated[int | None, typer.Option(hidden=True)] = None,
    follow: Annotated[int, typer.Option(hidden=True)] = 0,
) -> None:
    """The API alone, where broker and workers run elsewhere."""
    import socket

    import uvicorn

    from firstbad.bootstrap import make_api
    from firstbad.embedded import follow_parent, listen
    from firstbad.logs import configure_logs

    if follow:
        follow_parent(follow)
    settings = read_settings()
    configure_logs(as_json=settings.logs_json)
    inherited = (
        listen(replace(settings, port_is_fixed=True), host)
        if listener is None
        else socket.socket(fileno=listener)
    )
    settings = replace(settings, port=inherited.getsockname()[1])
    configuration = uvicorn.Config(
        make_api(settings), log_level="warning", log_config=None, timeout_graceful_shutdown=3
    )
    uvicorn.Server(configuration).run(sockets=[inherited])


@app.command()
def worker(
    queue: Annotated[str, typer.Option(help="The queue to serve: `control`, or a pool's.")],
    name: Annotated[str, typer.Option(help="Unique among this host's workers.")] = "worker",
    follow: Annotated[int, typer.Option(hidden=True)] = 0,
) -> None:
    """One worker process for one queue, e.g. on a GPU host."""
    from bisection.adapters.queue import make_celery
    from firstbad.bootstrap import worker_context
    from firstbad.embedded import follow_parent
    from firstbad.logs import configure_logs
    from workers.application import run_worker

    if follow:
        follow_parent(follow)
    settings = read_settings()
    configure_logs(as_json=settings.logs_json)
    application = make_celery(settings.broker_url, settings.broker_ca)
    run_worker(application, worker_context(settings, queue, name))


@app.command()
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
    """Ask for a bisection of good..bad. Exits with 2 if the request was rejected."""
    from firstbad.watching import watch as watch_bisection

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
            bisection = watch_bisection(client, bisection["id"], err if as_json else out)
        if as_json:
            print_json(bisection)
        elif bisection["status"] == "ended":
            _print_report(client, bisection["id"], "text")
        elif bisection["status"] == "planned":
            out.print(_plan_text(bisection), markup=False, soft_wrap=True)
        else:
            out.print(f"bisection {bisection['id']} is {bisection['status']}", markup=False)
    if (bisection.get("finding") or {}).get("kind") == "rejected":
        raise SystemExit(EXIT_USAGE)


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


@app.command()
def watch(bisection: str) -> None:
    """Follow a bisection live."""
    from firstbad.watching import watch as watch_bisection

    with open_client() as client:
        row = watch_bisection(client, bisection, out)
        if row["status"] == "ended":
            _print_report(client, bisection, "text")


@app.command()
def report(
    bisection: str,
    format: Annotated[str, typer.Option(help="text, markdown, html or json.")] = "text",
) -> None:
    """Print a bisection's report."""
    if format not in ("text", "markdown", "html", "json"):
        fail(f"there is no report format {format!r}; choose text, markdown, html or json", EXIT_USAGE)
    with open_client() as client:
        _print_report(client, bisection, format)


def _print_report(client: Any, bisection: str, format: str) -> None:
    from bisection.rendering.terminal import render_text
    from bisection.report import CulpritReport

    if format == "text":
        document = CulpritReport.from_json(client.report(bisection, "json"))
        out.print(render_text(document), markup=False, soft_wrap=True)
    elif format == "json":
        print_json(client.report(bisection, "json"))
    else:
        sys.stdout.write(client.report(bisection, format))


@app.command()
def prove(
    bisection: str,
    top: Annotated[int, typer.Option(min=1, max=8, help="How many of the best remedies.")] = 2,
) -> None:
    """Try the best remedies of a report at its culprit, and print the report with the proofs."""
    from firstbad.watching import watch as watch_bisection

    with open_client() as client:
        client.prove(bisection, top)
        watch_bisection(client, bisection, out)
        _print_report(client, bisection, "text")


@app.command(name="list")
def list_bisections(as_json: Json = False) -> None:
    """The bisections of the server, newest first."""
    with open_client() as client:
        rows = client.list()
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


@app.command()
def confirm(bisection: str) -> None:
    """Start a bisection that was only planned."""
    with open_client() as client:
        client.confirm(bisection)
    out.print(f"started; follow it with: firstbad watch {bisection}", markup=False)


@app.command()
def cancel(bisection: str) -> None:
    """End a bisection with the best answer so far."""
    with open_client() as client:
        client.cancel(bisection)
    out.print(f"bisection {bisection} will end with its best answer so far", markup=False)


@app.command()
def delete(bisection: str, as_json: Json = False) -> None:
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


@app.command()
def retract(
    worker: Annotated[str | None, typer.Option(help="All that this worker measured.")] = None,
    key: Annotated[str | None, typer.Option(help="All of one state: the reuse_key of a trial.")] = None,
) -> None:
    """Never take faulty measurements over into other bisections."""
    from bisection.quantities import counted

    if worker is None and key is None:
        fail("name what is faulty: --worker NAME or --key KEY", EXIT_USAGE)
    with open_client() as client:
        count = client.retract(worker=worker, key=key)
    out.print(f"{counted(count, 'measurement')} will not be taken over any more", markup=False)


@app.command()
def demo(
    scenario: Annotated[
        str, typer.Option(help="experts, vision, projector, decoder, pin or none.")
    ] = "experts",
    seed: Annotated[int, typer.Option(help="What is planted, where, and how big.")] = DEFAULT_SEED,
    workers: Workers = DEFAULT_WORKERS,
    as_json: Json = False,
) -> None:
    """Plant a regression in a real training repository, and let firstbad find it."""
    from firstbad.demonstration import demonstrate

    result = demonstrate(read_settings(), scenario, seed, workers, err if as_json else out)
    if as_json:
        print_json(result.to_json())
    if result.problems:
        fail("the demo's answer is wrong: " + "; ".join(result.problems))
