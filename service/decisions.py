"""REST: what people decide about a bisection: its GPU hours, and whether its result stands."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, BackgroundTasks, Response
from pydantic import BeforeValidator, ConfigDict, Field

from bisection.adapters.storage.bisections import BisectionRow
from bisection.adapters.storage.decisions import Decisions
from service import problems
from service.access import Approver, Writer
from service.bisections import ACCEPTED_HEADERS, Existing, UsesParts, accepted
from service.intake import Shape, plain_text
from service.parts import Parts
from service.problem_responses import document
from service.problems import Problem
from service.shapes import BisectionView

router = APIRouter(prefix="/v1/bisections/{bisection_id}", tags=["decisions"])

_REFUSALS = document(
    problems.MALFORMED_BODY,
    problems.UNAUTHENTICATED,
    problems.FORBIDDEN,
    problems.NOT_FOUND,
    problems.WRONG_STATE,
    problems.INVALID_REQUEST,
)
_Reason = Annotated[str, BeforeValidator(plain_text)]


def _responses(accepted: str) -> dict[int | str, dict[str, Any]]:
    return {202: {"description": accepted, **ACCEPTED_HEADERS}, **_REFUSALS}


class Approval(Shape):
    """Why the GPU hours are worth it; may be left out."""

    model_config = ConfigDict(
        title="ApprovalRequest", json_schema_extra={"examples": [{"reason": "The release waits for it."}, {}]}
    )

    reason: Annotated[_Reason, Field(max_length=500)] = ""


class Reasoned(Shape):
    """A decision that needs a reason, which the report repeats."""

    model_config = ConfigDict(
        title="Reason",
        json_schema_extra={"examples": [{"reason": "Both trials of the parent ran on a throttled node."}]},
    )

    reason: Annotated[_Reason, Field(min_length=1, max_length=500)]


@router.post(
    "/approve",
    status_code=202,
    operation_id="approveBisection",
    summary="Allow the GPU hours",
    response_model=BisectionView,
    responses=_responses("It goes on."),
)
def approve_bisection(
    caller: Approver,
    row: Existing,
    wanted: Approval,
    parts: UsesParts,
    tasks: BackgroundTasks,
    response: Response,
) -> BisectionView:
    """Only a bisection with the status `held` waits for this. Who approved, when and why is in its report."""
    if not Decisions(parts.bisections).approve(row.id, by=caller.name, reason=wanted.reason):
        raise _not_held(row, parts)
    return accepted(parts.bisections.get(row.id), parts, tasks, response)


@router.post(
    "/refuse",
    status_code=202,
    operation_id="refuseBisection",
    summary="Refuse the GPU hours",
    response_model=BisectionView,
    responses=_responses("A worker ends it with what is known."),
)
def refuse_bisection(
    caller: Approver,
    row: Existing,
    wanted: Reasoned,
    parts: UsesParts,
    tasks: BackgroundTasks,
    response: Response,
) -> BisectionView:
    """Only a bisection with the status `held` can be refused; it ends with the answer so far."""
    if not Decisions(parts.bisections).refuse(row.id, by=caller.name, reason=wanted.reason):
        raise _not_held(row, parts)
    return accepted(parts.bisections.get(row.id), parts, tasks, response)


@router.post(
    "/retract",
    status_code=202,
    operation_id="retractBisection",
    summary="Take a result back",
    response_model=BisectionView,
    responses=_responses("The report says so, and what was posted of it is edited."),
)
def retract_bisection(
    caller: Writer,
    row: Existing,
    wanted: Reasoned,
    parts: UsesParts,
    tasks: BackgroundTasks,
    response: Response,
) -> BisectionView:
    """For an answer that proved wrong. Nothing is deleted; the measurements stand, and can be retracted apart
    from it (`POST /v1/measurements/retract`)."""
    if row.retraction is not None:
        raise Problem(
            problems.WRONG_STATE,
            f"The result of bisection {row.id} was retracted before, by {row.retraction['by']}.",
            repair="Nothing is to be done.",
        )
    decisions = Decisions(parts.bisections)
    if not decisions.retract(row.id, by=caller.name, reason=wanted.reason, report=row.report):
        raise Problem(
            problems.WRONG_STATE,
            f"Bisection {row.id} is {row.status.value}, and only the result of one that has ended can be "
            "retracted.",
            repair="Cancel it, if it shall not go on.",
        )
    return accepted(parts.bisections.get(row.id), parts, tasks, response)


def _not_held(row: BisectionRow, parts: Parts) -> Problem:
    standing = parts.bisections.get(row.id).status
    return Problem(
        problems.WRONG_STATE,
        f"Bisection {row.id} is {standing.value}, and only a held one waits for approval.",
        repair="Nothing is to be done.",
    )
