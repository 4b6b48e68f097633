"""Going on from a bisection: retry, extend, replay; and what people decide: approve, refuse, retract."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from bisection.quantities import counted
from bisection.rendering.escaping import terminal_safe
from firstbad.asking import (
    EXIT_USAGE,
    BisectionId,
    Json,
    err,
    exit_of,
    fail,
    open_client,
    out,
    print_json,
    say,
)
from firstbad.configuration_files import parse_capacity

_Preview = Annotated[bool, typer.Option(help="Plan only; `firstbad confirm` starts it.")]
_Wait = Annotated[bool, typer.Option(help="Watch it to its end.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    for command in (retry, extend, replay, approve, refuse, retract_result):
        app.command()(command)


def retry(
    bisection: BisectionId,
    anew: Annotated[bool, typer.Option("--anew", help="Measure everything anew.")] = False,
    preview: _Preview = False,
    wait: _Wait = True,
    as_json: Json = False,
) -> None:
    """Ask an ended bisection's question again; only what was lost or could not be judged is measured anew."""
    with open_client() as client:
        _follow(client, client.retry(bisection, anew=anew, preview=preview), wait, as_json)


def extend(
    bisection: BisectionId,
    good: Annotated[str | None, typer.Option(help="A commit before the good end so far.")] = None,
    bad: Annotated[str | None, typer.Option(help="A commit after the bad end so far.")] = None,
    preview: _Preview = False,
    wait: _Wait = True,
    as_json: Json = False,
) -> None:
    """Look through a longer range; every measurement is kept."""
    if good is None and bad is None:
        fail("name the end that moves: --good an older commit, or --bad a newer one", EXIT_USAGE)
    with open_client() as client:
        _follow(client, client.extend(bisection, good=good, bad=bad, preview=preview), wait, as_json)


def replay(
    bisection: BisectionId,
    threshold: Annotated[
        str | None, typer.Option(help="Of the peak (72GiB), or useful tokens a second (1500).")
    ] = None,
    capacity: Annotated[str | None, typer.Option(help="Of one device, such as 80GiB.")] = None,
    signature: Annotated[str | None, typer.Option(help="Of the failure that is looked for.")] = None,
    kind: Annotated[
        str | None,
        typer.Option(help="out_of_memory, peak_memory, throughput or crash.", show_default="as before"),
    ] = None,
    confidence: Annotated[float | None, typer.Option(help="Posterior at which a commit is named.")] = None,
    start: Annotated[bool, typer.Option("--start", help="Make a bisection of it.")] = False,
    wait: _Wait = True,
    as_json: Json = False,
) -> None:
    """Judge the measurements of an ended bisection by another criterion. Without --start nothing is run."""
    with open_client() as client:
        before = client.get(bisection)["request"]["criterion"]
        criterion = _criterion(before, kind, threshold, capacity, signature)
        if start:
            made = client.confirm_replay(bisection, criterion, confidence=confidence)
            _follow(client, made, wait, as_json)
            return
        told = client.replay(bisection, criterion, confidence=confidence)
    if as_json:
        print_json(told)
        return
    for line in _replay_lines(told):
        out.print(terminal_safe(line), markup=False, soft_wrap=True)


def approve(
    bisection: BisectionId,
    reason: Annotated[str, typer.Option(help="The report repeats it.")] = "",
    as_json: Json = False,
) -> None:
    """Allow the GPU hours of a held bisection; the token needs the scope approve."""
    with open_client() as client:
        row = client.approve(bisection, reason=reason)
    say(row, f"approved; follow it with: firstbad watch {bisection}", as_json)


def refuse(
    bisection: BisectionId,
    reason: Annotated[str, typer.Option(help="The report repeats it.")],
    as_json: Json = False,
) -> None:
    """Refuse the GPU hours of a held bisection: it ends with what is known."""
    with open_client() as client:
        row = client.refuse(bisection, reason=reason)
    say(row, f"bisection {bisection} will end with its best answer so far", as_json)


def retract_result(
    bisection: BisectionId,
    reason: Annotated[str, typer.Option(help="The report begins with it.")],
    as_json: Json = False,
) -> None:
    """Take the result of an ended bisection back: its report says so, and what was posted is edited."""
    with open_client() as client:
        row = client.retract_result(bisection, reason=reason)
    say(row, f"the result of bisection {bisection} is retracted", as_json)


def _follow(client: Any, made: Mapping[str, Any], wait: bool, as_json: bool) -> None:
    """Watch a new bisection as `firstbad submit` does."""
    from bisection.rendering.terminal import render_text
    from bisection.report import CulpritReport
    from firstbad.watching import watch

    row = watch(client, made["id"], err if as_json else out) if wait else made
    if as_json:
        print_json(row)
    elif row["status"] == "ended":
        report = CulpritReport.from_json(client.report(row["id"]))
        out.print(render_text(report), markup=False, soft_wrap=True)
    else:
        out.print(f"bisection {row['id']} is {row['status']}", markup=False)
    raise SystemExit(exit_of((row.get("finding") or {}).get("kind")))


def _criterion(
    before: Mapping[str, Any],
    kind: str | None,
    threshold: str | None,
    capacity: str | None,
    signature: str | None,
) -> dict[str, Any]:
    """The criterion so far with what was given put in; of another kind, only what was given."""
    wanted: dict[str, Any] = dict(before) if kind in (None, before["kind"]) else {"kind": kind}
    if threshold is not None:
        is_size = wanted["kind"] == "peak_memory"
        try:
            wanted["threshold"] = float(parse_capacity(threshold)) if is_size else float(threshold)
        except ValueError as error:
            fail(f"--threshold {threshold}: {error}", EXIT_USAGE)
    if capacity is not None:
        wanted["capacity_bytes"] = parse_capacity(capacity)
    if signature is not None:
        wanted["signature"] = signature
    if wanted == dict(before):
        fail("say what changes: --threshold, --capacity, --signature or --kind", EXIT_USAGE)
    return wanted


def _replay_lines(told: Mapping[str, Any]) -> list[str]:
    finding, wanted = told["finding"], told["wanted"]
    lines = []
    if finding is not None:
        commits = ", ".join(commit[:10] for commit in finding["commits"])
        name = {"found": "first bad commit", "set": "one of"}.get(finding["kind"])
        head = f"{name}: {commits}. " if name and commits else ""
        lines.append(f"{head}{finding['why']}")
    else:
        lines.append(f"No answer yet. {told['answer_so_far']['why']}")
        lines.append(f"{counted(len(wanted), 'trial')} would be started next:")
        lines += [f"  {trial['commit'][:10]} {trial['subject']} ({trial['purpose']})" for trial in wanted]
        remaining = told["answer_so_far"]["remaining"]
        if remaining is not None:
            hours = f", {remaining['gpu_hours']:.1f} GPU hours" if remaining["gpu_hours"] else ""
            lines.append(f"about {counted(round(remaining['trials']), 'trial')} in all{hours}")
    lines.append(f"It rests on {counted(told['measurements'], 'measurement')}, and cost no run.")
    lines += [
        f"  trial {one['ordinal'] + 1} {one['commit'][:10]}: {one['before']} -> {one['after']}, {one['why']}"
        for one in told["changed"]
    ]
    if told["left_behind"]:
        lines.append(f"{counted(len(told['left_behind']), 'trial')} would be measured anew.")
    lines.append("make a bisection of it with: --start")
    return lines
