"""REST: have the remedies of a report tried where they would be needed."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, BackgroundTasks
from pydantic import BaseModel, ConfigDict, Field

from bisection.adapters.storage.audit import token_of
from bisection.adapters.storage.bisections import Status
from bisection.adapters.storage.proofs import Proofs
from bisection.finding import FindingKind
from service import problems
from service.access import Writer
from service.bisections import Existing, UsesParts
from service.hints import view_now
from service.intake import MOST_PROOFS
from service.problem_responses import document
from service.problems import Problem
from service.shapes import BisectionView

router = APIRouter(prefix="/v1/bisections/{bisection_id}/remedies", tags=["bisections"])


class ProofRequest(BaseModel):
    """How many of the best remedies are tried."""

    model_config = ConfigDict(extra="forbid", frozen=True, json_schema_extra={"examples": [{"count": 2}]})

    count: Annotated[int, Field(strict=True, ge=1, le=MOST_PROOFS)] = 2


@router.post(
    "/prove",
    status_code=202,
    operation_id="proveRemedies",
    summary="Try the best remedies",
    response_model=BisectionView,
    responses={
        202: {"description": "They are tried at the culprit; a report with the proofs follows."},
        **document(
            problems.MALFORMED_BODY,
            problems.UNAUTHENTICATED,
            problems.FORBIDDEN,
            problems.NOT_FOUND,
            problems.WRONG_STATE,
            problems.INVALID_REQUEST,
        ),
    },
)
def prove_remedies(
    caller: Writer, wanted: ProofRequest, row: Existing, parts: UsesParts, tasks: BackgroundTasks
) -> BisectionView:
    """One trial each, of the job as it was asked about with the remedy's keys changed on top.

    A bisection that has ended is opened again for it: its answer stands, and so does its report until the new
    one is written. What was tried before is not tried again.
    """
    if row.retraction is not None:
        raise Problem(
            problems.WRONG_STATE,
            f"The result of bisection {row.id} was taken back.",
            repair="Ask anew: POST /v1/bisections/{id}/retry.",
        )
    report = row.report or {}
    if row.status is Status.ENDED:
        kind = (row.finding or {}).get("kind")
        if kind not in (FindingKind.FOUND, FindingKind.SET):
            raise Problem(
                problems.WRONG_STATE,
                f"Bisection {row.id} blames no commit: there is nothing to mend.",
                repair="Nothing is to be done.",
            )
        if not any(remedy["legal"] for remedy in report.get("remedies", ())):
            raise Problem(
                problems.WRONG_STATE,
                f"The report of bisection {row.id} proposes no remedy that this job allows.",
                repair="Read in its notes why; a remedy needs a capacity, and both configurations recorded.",
            )
    if not Proofs(parts.bisections).ask(row.id, wanted.count, by=token_of(caller.name)):
        standing = parts.bisections.get(row.id).status
        raise Problem(
            problems.WRONG_STATE,
            f"Bisection {row.id} is {standing.value}: its report is just being made.",
            repair="Ask again once it has ended.",
        )
    tasks.add_task(parts.queue.advance, row.id)
    return view_now(parts.bisections.get(row.id), parts)
