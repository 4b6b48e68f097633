"""The buttons of a bisection's page: each calls what REST calls, and leads to the bisection that it moved."""

from __future__ import annotations

from fastapi import APIRouter, BackgroundTasks, Response
from fastapi.responses import RedirectResponse

from service import bisections, decisions, derived, proofs
from service.bisections import Existing, UsesParts
from service.decisions import Approval, Reasoned
from service.derived import ExtensionRequest, RetryRequest
from service.pages.forms import Fields, model_of
from service.pages.sessions import Approves, OwnPage, Writes
from service.proofs import ProofRequest
from service.shapes import BisectionView

router = APIRouter(prefix="/bisections/{bisection_id}", dependencies=[OwnPage])


def led_to(shown: BisectionView) -> Response:
    return RedirectResponse(f"/bisections/{shown.id}", status_code=303)


@router.post("/confirm")
def confirm(caller: Writes, row: Existing, parts: UsesParts, tasks: BackgroundTasks) -> Response:
    return led_to(bisections.confirm_bisection(caller, row, parts, tasks, Response()))


@router.post("/cancel")
def cancel(caller: Writes, row: Existing, parts: UsesParts, tasks: BackgroundTasks) -> Response:
    return led_to(bisections.cancel_bisection(caller, row, parts, tasks, Response()))


@router.post("/approve")
def approve(
    caller: Approves, row: Existing, fields: Fields, parts: UsesParts, tasks: BackgroundTasks
) -> Response:
    wanted = model_of(Approval, {"reason": fields.get("reason", "")})
    return led_to(decisions.approve_bisection(caller, row, wanted, parts, tasks, Response()))


@router.post("/refuse")
def refuse(
    caller: Approves, row: Existing, fields: Fields, parts: UsesParts, tasks: BackgroundTasks
) -> Response:
    wanted = model_of(Reasoned, {"reason": fields.get("reason", "")})
    return led_to(decisions.refuse_bisection(caller, row, wanted, parts, tasks, Response()))


@router.post("/retract")
def retract(
    caller: Writes, row: Existing, fields: Fields, parts: UsesParts, tasks: BackgroundTasks
) -> Response:
    wanted = model_of(Reasoned, {"reason": fields.get("reason", "")})
    return led_to(decisions.retract_bisection(caller, row, wanted, parts, tasks, Response()))


@router.post("/retry")
def retry(
    caller: Writes, row: Existing, fields: Fields, parts: UsesParts, tasks: BackgroundTasks
) -> Response:
    wanted = model_of(RetryRequest, {"anew": "anew" in fields, "preview": "preview" in fields})
    return led_to(derived.retry_bisection(caller, row, wanted, parts, tasks, Response()))


@router.post("/extend")
def extend(
    caller: Writes, row: Existing, fields: Fields, parts: UsesParts, tasks: BackgroundTasks
) -> Response:
    ends = {name: fields[name] for name in ("good", "bad") if fields.get(name)}
    wanted = model_of(ExtensionRequest, {**ends, "preview": "preview" in fields})
    return led_to(derived.extend_bisection(caller, row, wanted, parts, tasks, Response()))


@router.post("/prove")
def prove(
    caller: Writes, row: Existing, fields: Fields, parts: UsesParts, tasks: BackgroundTasks
) -> Response:
    count = fields.get("count", "")
    wanted = model_of(ProofRequest, {"count": int(count) if count.isascii() and count.isdigit() else count})
    return led_to(proofs.prove_remedies(caller, wanted, row, parts, tasks))
