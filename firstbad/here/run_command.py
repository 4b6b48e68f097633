"""`firstbad run -- COMMAND`: the first bad commit of this repository, on this machine, by this process."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, NoReturn

import structlog
import typer
from rich.console import Console

from bisection.adapters.catalogue import Catalogue
from bisection.adapters.git_process import GitError, MirrorError, run_git
from bisection.adapters.queue import CONTROL
from bisection.adapters.storage.bisections import BisectionRow, Bisections, Status
from bisection.adapters.storage.database import Database
from bisection.adapters.storage.summaries import Filter, Summaries
from bisection.rendering.html import render_html
from bisection.rendering.markdown import render_markdown
from bisection.rendering.terminal import render_text
from bisection.report import CulpritReport
from firstbad.asking import EXIT_STOPPED, EXIT_USAGE, err, exit_of, fail, out, print_json
from firstbad.here.checkout import Checkout, NoRepository
from firstbad.here.engine import Engine, LocalHints, StoppedByCommand, session
from firstbad.here.question import Question, write_catalogue
from firstbad.settings import here_folder
from firstbad.watching import follow
from service.hints import view_now
from service.parts import Parts
from service.settings import ServiceSettings
from workers.context import WorkerContext
from workers.resolution import open_mirror

_LOOK_SECONDS = 0.2


def run(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND...", help="After --, with its arguments.")],
    good: Annotated[
        str | None, typer.Option(help="A commit known to be good.", show_default="of `git bisect start`")
    ] = None,
    bad: Annotated[
        str | None,
        typer.Option(help="A commit known to be bad.", show_default="of `git bisect start`, or HEAD"),
    ] = None,
    crash: Annotated[
        bool, typer.Option("--crash", help="Look for the bad end's failure; skip where it fails otherwise.")
    ] = False,
    signature: Annotated[str, typer.Option(help="Look for this failure, as a report names it.")] = "",
    metric: Annotated[
        str | None, typer.Option(help="Judge a number: what the last match of this pattern caught.")
    ] = None,
    value_file: Annotated[
        str | None, typer.Option(help="Judge a number: what COMMAND writes into this file.")
    ] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Beyond it a number is bad.", show_default="halfway between the ends")
    ] = None,
    lower_is_worse: Annotated[
        bool, typer.Option("--lower-is-worse/--higher-is-worse", help="Which numbers are bad.")
    ] = False,
    path: Annotated[
        list[str] | None, typer.Option(help="Only changes below it matter; may be given several times.")
    ] = None,
    trials: Annotated[int, typer.Option(min=2, max=10_000, help="Runs of COMMAND, at most.")] = 60,
    parallel: Annotated[int, typer.Option(min=1, max=64, help="Runs at once.")] = 1,
    confidence: Annotated[float, typer.Option(help="Belief at which a commit is named.")] = 0.99,
    time_limit: Annotated[float, typer.Option(min=0.1, help="Seconds that one run may take.")] = 3600.0,
    anew: Annotated[bool, typer.Option("--anew", help="Measure again what was measured before.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    markdown: Annotated[Path | None, typer.Option(help="Write the report there, for a comment.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write the report there, for a browser.")] = None,
) -> None:
    """Find the first bad commit of the repository you stand in, as `git bisect run` does, without a server.

    COMMAND ends with 0 where a commit is good, 125 where it cannot be tested, 1 to 127 where it is bad; 128
    and above stop the search. Each run has a fresh export of its commit: your own files stay as they are.
    Ctrl-C loses nothing; the same command goes on.
    """
    try:
        checkout = Checkout.at(Path.cwd())
        question = Question(
            command=tuple(_outside_files(command, checkout)),
            folder=checkout.inside,
            good=checkout.commit(good or _started(checkout, "good") or _no_good_end()),
            bad=checkout.commit(bad or _started(checkout, "bad") or "HEAD"),
            tell_apart=crash or bool(signature),
            signature=signature,
            metric=metric,
            value_file=value_file,
            threshold=threshold,
            lower_is_worse=lower_is_worse,
            paths=tuple(_from_top(one, checkout) for one in path or ()),
            trials=trials,
            confidence=confidence,
            trial_seconds=time_limit,
        )
        _check(question)
    except (MirrorError, NoRepository) as error:
        fail(str(error), EXIT_USAGE)
    console = err if as_json else out
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    home = here_folder(checkout.key)
    with _alone(home, checkout), session(home):
        report = _search(question, checkout, home, parallel, anew, console)
    if markdown:
        markdown.write_text(render_markdown(report), encoding="utf-8")
    if html:
        html.write_text(render_html(report), encoding="utf-8")
    if as_json:
        print_json(report.to_json())
    else:
        out.print(render_text(report), markup=False, soft_wrap=True)
    raise SystemExit(exit_of(report.finding.kind.value))


def _search(
    question: Question, checkout: Checkout, home: Path, parallel: int, anew: bool, console: Console
) -> CulpritReport:
    catalogue = Catalogue(home / "catalogue")
    profile = question.profile(checkout, home)
    write_catalogue(catalogue.folder, checkout, profile)
    database = Database(f"sqlite:///{home / 'ledger.sqlite'}")
    database.migrate()
    hints = LocalHints()
    context = WorkerContext(
        name="here", queue=CONTROL, database=database, hints=hints, catalogue=catalogue, root=home
    )
    known = _asked_before(database, question)
    if known is None or (anew and known.status is Status.ENDED):
        for commit in (question.good, question.bad):  # of no branch, perhaps
            open_mirror(context, profile).require(commit)
        known, _ = Bisections(database).create(
            request=question.request(checkout, parallel=parallel, reuse=not anew),
            profile=profile.model_dump(mode="json"),
            source=f"run:{question.digest}",
        )
        console.print(f"the ledger is in {home}; Ctrl-C loses nothing", markup=False, soft_wrap=True)
    elif known.status is Status.ENDED:
        console.print("this was asked before; --anew measures it again", markup=False, soft_wrap=True)
    else:
        told = sum(trial.measurement is not None for trial in context.trials.of(known.id))
        console.print(f"going on after {told} trials", markup=False, soft_wrap=True)
    if known.status is not Status.ENDED:
        _follow(context, hints, known.id, parallel, console)
    row = context.bisections.get(known.id)
    assert row.report is not None  # only what has ended is left
    database.close()
    return CulpritReport.from_json(row.report)


def _follow(
    context: WorkerContext, hints: LocalHints, bisection_id: str, parallel: int, console: Console
) -> None:
    parts = Parts(
        database=context.database, queue=hints, catalogue=context.catalogue, settings=ServiceSettings()
    )
    try:
        with Engine(context, hints, bisection_id, parallel) as engine:

            def look() -> dict[str, Any]:
                engine.check()
                return view_now(parts.bisections.get(bisection_id), parts).model_dump(mode="json")

            follow(look, console, _LOOK_SECONDS)
    except StoppedByCommand as stop:
        fail(f"{stop}. What was measured is kept: the same command goes on", EXIT_STOPPED)
    except KeyboardInterrupt:
        fail("stopped. What was measured is kept: the same command goes on", 130)


def _asked_before(database: Database, question: Question) -> BisectionRow | None:
    """The newest bisection of this very question."""
    wanted = Filter(source=f"run:{question.digest}")
    found = Summaries(database).page(limit=1, wanted=wanted)
    return Bisections(database).get(found[0].id) if found else None


@contextmanager
def _alone(home: Path, checkout: Checkout) -> Iterator[None]:
    """One search a repository at a time: two would take each other's trials' time."""
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(home / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fail(f"another `firstbad run` works on {checkout.top}; wait for it, or stop it")
        yield
    finally:
        os.close(descriptor)


def _no_good_end() -> NoReturn:
    fail("name a commit that was good: --good REF", EXIT_USAGE)


def _started(checkout: Checkout, end: str) -> str | None:
    """An end that `git bisect start` was told in this repository, where it was told one."""
    pattern = "refs/bisect/bad" if end == "bad" else "refs/bisect/good-*"
    with suppress(GitError):
        names = run_git(checkout.git, "for-each-ref", "--format=%(refname)", pattern).decode().split()
        if len(names) == 1:
            return names[0]
    return None


def _outside_files(command: list[str], checkout: Checkout) -> list[str]:
    """The words, with whole paths for files that are here but not in git: no export holds them."""
    words = []
    for number, word in enumerate(command):
        file = Path.cwd() / word
        # A first word without a slash is a program of PATH.
        if word and (number or "/" in word) and file.is_file():
            whole = file.resolve()
            below = whole.is_relative_to(checkout.top)
            if not below or not checkout.holds("HEAD", whole.relative_to(checkout.top).as_posix()):
                word = str(whole)
        words.append(word)
    return words


def _from_top(path: str, checkout: Checkout) -> str:
    whole = (Path.cwd() / path).resolve()
    if not whole.is_relative_to(checkout.top):
        fail(f"--path {path}: it is outside of {checkout.top}", EXIT_USAGE)
    return whole.relative_to(checkout.top).as_posix()


def _check(question: Question) -> None:
    """What options together cannot mean; ends with the usage's exit code."""
    numbers = question.metric is not None or question.value_file is not None
    if question.good == question.bad:
        fail(f"good and bad are the same commit, {question.good[:10]}", EXIT_USAGE)
    if question.metric is not None and question.value_file is not None:
        fail("give --metric or --value-file, not both", EXIT_USAGE)
    if numbers and question.tell_apart:
        fail("a number is judged, or a failure: leave out --crash and --signature", EXIT_USAGE)
    if not numbers and (question.threshold is not None or question.lower_is_worse):
        fail("--threshold and --lower-is-worse need a number: --metric PATTERN or --value-file", EXIT_USAGE)
    if not 0.5 < question.confidence < 1:
        fail("--confidence must lie between 0.5 and 1", EXIT_USAGE)
    if question.metric is not None:
        try:
            re.compile(question.metric)
        except re.error as error:
            fail(f"--metric {question.metric!r} is no pattern: {error}", EXIT_USAGE)
    named = Path(question.value_file or "")
    if named.is_absolute() or ".." in named.parts:
        fail("--value-file is a path below the folder that COMMAND runs in", EXIT_USAGE)
