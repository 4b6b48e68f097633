"""The `firstbad` command: parse, call, print."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import Annotated

import httpx
import typer
from sqlalchemy.exc import SQLAlchemyError

from firstbad import (
    __version__,
    audit_command,
    bisection_commands,
    doctor_command,
    dry_run_command,
    memory_commands,
    nightly_commands,
    operating_commands,
    profiles_command,
    request_commands,
    sweep_command,
    token_commands,
)
from firstbad.asking import (
    EXIT_UNREACHABLE,
    EXIT_USAGE,
    Json,
    err,
    fail,
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
request_commands.register(app)
token_commands.register(app)
audit_command.register(app)
sweep_command.register(app)
doctor_command.register(app)
dry_run_command.register(app)
profiles_command.register(app)
operating_commands.register(app)

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
