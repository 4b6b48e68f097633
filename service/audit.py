"""REST: who did what. Read by whoever has the scope for it alone; nothing here can be changed."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, ConfigDict, Field

from bisection.adapters.storage.audit import AuditLog
from bisection.adapters.storage.tokens import Caller, Scope
from service import problems
from service.access import require
from service.bisections import UsesParts
from service.problem_responses import document

router = APIRouter(prefix="/v1/audit", tags=["audit"])

Auditor = Annotated[Caller, Depends(require(Scope.AUDIT))]
_Word = Annotated[str, Query(min_length=1, max_length=300)]
_LARGEST_ID = 2**63 - 1


class ActView(BaseModel):
    """One act of a person, a CI or a policy."""

    model_config = ConfigDict(title="Act")

    id: int
    at: str
    by: str = Field(description="`token:NAME`, `github:...`, `ci:...`, `policy` or `operator`.")
    action: str = Field(description="started, approved, cancel_requested, deleted, and so on.")
    subject: str = Field(description="What it was done to: mostly a bisection's id.")
    told: dict[str, Any] = Field(description="The reason that was given, or how much it was.")


class ActPage(BaseModel):
    """A page of the log, the newest first."""

    items: list[ActView]
    next: int | None = Field(description="Pass it as 'cursor' for the next page; null: this is the last.")


@router.get(
    "",
    operation_id="listActs",
    summary="Read the audit log",
    response_model=ActPage,
    responses=document(problems.UNAUTHENTICATED, problems.FORBIDDEN, problems.INVALID_REQUEST),
)
def list_acts(
    _caller: Auditor,
    parts: UsesParts,
    by: Annotated[_Word | None, Query(description="Only whose acts.")] = None,
    action: Annotated[_Word | None, Query(description="Only of this kind.")] = None,
    subject: Annotated[_Word | None, Query(description="Only what was done to this.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    cursor: Annotated[
        int | None, Query(ge=1, le=_LARGEST_ID, description="`next` of the page before.")
    ] = None,
) -> ActPage:
    """Who started, approved, changed, took back, deleted and released what. Needs the scope `audit`."""
    acts = AuditLog(parts.database).page(
        limit=limit + 1, before=cursor, by=by or "", action=action or "", subject=subject or ""
    )
    shown, more = acts[:limit], len(acts) > limit
    return ActPage(
        items=[ActView(**{**act.__dict__, "told": dict(act.told)}) for act in shown],
        next=shown[-1].id if more else None,
    )
