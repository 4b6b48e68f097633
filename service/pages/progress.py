"""One bisection as it stands, kept up to date while it runs; and each of its trials with its log."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from bisection.adapters.storage.bisections import BisectionRow, Status
from bisection.adapters.storage.tokens import Caller, Scope
from bisection.quantities import counted
from bisection.rendering.progress_words import answer_words, cost_words, suspect_words
from bisection.rendering.wording import commit_words
from service import problems
from service.bisections import Existing, UsesParts
from service.evidence import READABLE, list_trials
from service.expiry import removal_words
from service.hints import view_now
from service.json_answers import encode_json
from service.pages.sessions import SignedIn
from service.pages.templates import page
from service.parts import Parts
from service.problems import Problem
from service.shapes import BisectionView

router = APIRouter(prefix="/bisections/{bisection_id}")

#: Of a log's end: more than a screen or two is read in the file itself.
TAIL_BYTES, TAIL_LINES = 64 * 1024, 300


@router.get("")
def show_bisection(request: Request, caller: SignedIn, row: Existing, parts: UsesParts) -> Response:
    return progress_page(request, caller, row, parts)


def progress_page(request: Request, caller: Caller, row: BisectionRow, parts: Parts) -> Response:
    """The whole page, of what is known now."""
    shown = view_now(row, parts)
    return page(request, "bisection.html", live=True, caller=caller, **_standing(caller, row, shown, parts))


@router.get("/live")
def show_bisection_now(
    request: Request,
    caller: SignedIn,
    row: Existing,
    parts: UsesParts,
    seen: Annotated[str, Query(max_length=64)] = "",
    standing: Annotated[str, Query(max_length=64)] = "",
) -> Response:
    """The parts of the page that changed; 204 where none did, so that nothing moves under a reader.

    The decisions come anew only where others are possible now: somebody may be typing a reason.
    """
    shown = view_now(row, parts)
    if seen == _digest(shown):
        return Response(status_code=204)
    known = _standing(caller, row, shown, parts)
    return page(
        request,
        "bisection_update.html",
        live=True,
        caller=caller,
        **known,
        decisions_changed=standing != known["standing"],
    )


def _digest(shown: BisectionView) -> str:
    return hashlib.sha256(encode_json(shown.model_dump(mode="json"))).hexdigest()[:32]


def _standing(caller: Caller, row: BisectionRow, shown: BisectionView, parts: Parts) -> dict[str, Any]:
    trials = parts.trials.of(row.id)
    told = shown.answer_so_far.model_dump() if shown.answer_so_far and row.status is Status.RUNNING else None
    so_far = _so_far(row, told) if told else None
    ended = row.status is Status.ENDED
    return {
        "bisection": shown,
        "digest": _digest(shown),
        "standing": f"{row.status.value}-{row.cancel_requested:d}-{row.retraction is not None:d}",
        "so_far": so_far,
        "said": _said(shown, so_far),
        "pictures": () if ended and row.report else parts.pictures.of(row, trials),
        "logs": _logs(row, parts),
        "may_write": caller.may(Scope.WRITE),
        "may_approve": caller.may(Scope.APPROVE),
        "gone": removal_words(parts.database, row.id),
    }


def _so_far(row: BisectionRow, told: Mapping[str, Any]) -> dict[str, Any]:
    spec = row.specification
    steps = spec.levels[told["level"]].range.commits if spec else ()
    return {
        "answer": answer_words(told),
        "cost": cost_words(told),
        "suspects": suspect_words(told, {step.hash: commit_words(step) for step in steps}),
    }


def _said(shown: BisectionView, so_far: Mapping[str, Any] | None) -> str:
    """What a screen reader says when something changed."""
    done = sum(trial.sequence is not None for trial in shown.trials)
    running = sum(trial.status.value == "running" for trial in shown.trials)
    if shown.finding is not None and shown.status is Status.ENDED:
        return f"It has ended after {counted(done, 'trial')}. Finding: {shown.finding.kind.value}."
    words = f"It is {shown.status.value}: {counted(done, 'trial')} done, {running} running."
    return f"{words} {so_far['answer']} {so_far['cost']}." if so_far else words


def _logs(row: BisectionRow, parts: Parts) -> dict[str, bool]:
    """By trial, whether it left a text to read."""
    return {
        trial: any(name.endswith(READABLE) for name in names)
        for trial, names in parts.artifacts.names(row.id).items()
    }


@router.get("/trials/{trial_id}")
def show_trial(
    request: Request, caller: SignedIn, row: Existing, trial_id: str, parts: UsesParts
) -> Response:
    """What it was for, what came of it, the end of each of its logs, and the files that it left."""
    found = next((one for one in list_trials(caller, row, parts).items if one.id == trial_id), None)
    if found is None:
        raise Problem(
            problems.NOT_FOUND,
            f"Bisection {row.id} has no trial {trial_id[:40]!r}.",
            repair="Choose one on the page of the bisection.",
        )
    base = f"/v1/bisections/{row.id}/trials/{trial_id}/artifacts/"
    texts = [name for name in found.artifacts if name.endswith((".log", ".txt"))]
    tails = [(name, *_tail(parts.artifacts.content(trial_id, name) or b"")) for name in texts]
    return page(
        request,
        "trial.html",
        caller=caller,
        bisection_id=row.id,
        trial=found,
        files=[(name, base + name) for name in found.artifacts],
        tails=[(name, base + name, text, cut) for name, text, cut in tails],
        gone=removal_words(parts.database, row.id),
    )


def _tail(content: bytes) -> tuple[str, bool]:
    """The end of a log, from the start of a line; and whether something lies before it."""
    text = content[-TAIL_BYTES:].decode("utf-8", "replace")
    if len(content) > TAIL_BYTES:
        text = text.partition("\n")[2] or text
    lines = text.splitlines()
    cut = len(content) > TAIL_BYTES or len(lines) > TAIL_LINES
    return "\n".join(lines[-TAIL_LINES:]), cut
