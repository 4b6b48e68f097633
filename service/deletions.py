"""REST: deleting a bisection, and what was removed of one."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import BaseModel, ConfigDict, Field

from bisection.adapters.storage.removals import Removal, Removals, Removed, StillRunning
from bisection.quantities import counted
from service import problems
from service.access import Reader, Writer
from service.bisections import Existing, UsesParts, existing_bisection
from service.problem_responses import document
from service.problems import Problem

router = APIRouter(prefix="/v1/bisections/{bisection_id}", tags=["bisections"])


class RemovalView(BaseModel):
    """Something that was removed of a bisection."""

    model_config = ConfigDict(title="Removal")

    at: str
    what: Removed
    by: str = Field(description="Who asked for it, or `policy`.")
    counts: dict[str, int] = Field(description="How many trials, artifacts and bytes it was.")


class Deletion(RemovalView):
    """A deletion, and what it leaves."""

    remains: list[str] = Field(description="What is still kept, and why.")


class RemovalList(BaseModel):
    """In the order in which they happened."""

    items: list[RemovalView]


@router.delete(
    "",
    operation_id="deleteBisection",
    summary="Delete a bisection",
    response_model=Deletion,
    responses=document(
        problems.UNAUTHENTICATED, problems.FORBIDDEN, problems.NOT_FOUND, problems.WRONG_STATE
    ),
)
def delete_bisection(caller: Writer, row: Existing, parts: UsesParts) -> Deletion:
    """Its request, trials, measurements, files, events and report. Only one that has ended."""
    try:
        removal = Removals(parts.database).delete(row.id, f"token:{caller.name}")
    except StillRunning:
        raise Problem(
            problems.WRONG_STATE,
            f"Bisection {row.id} is {row.status.value}, and only an ended one can be deleted.",
            repair=f"Cancel it with POST /v1/bisections/{row.id}/cancel, and delete it when it has ended.",
        ) from None
    except KeyError:
        raise Problem(problems.NOT_FOUND, f"Bisection {row.id} was deleted just now.") from None
    return Deletion(**_shown(removal).model_dump(), remains=_remains(removal))


@router.get(
    "/removals",
    operation_id="listRemovals",
    summary="Read what was removed",
    response_model=RemovalList,
    responses=document(problems.UNAUTHENTICATED, problems.FORBIDDEN, problems.NOT_FOUND),
)
def list_removals(
    _caller: Reader,
    bisection_id: Annotated[str, Path(description="Of a bisection, also of one that was deleted.")],
    parts: UsesParts,
) -> RemovalList:
    """Logs and files whose time was over, and the bisection itself. Empty where all is there."""
    found = Removals(parts.database).of(bisection_id)
    if not found:
        existing_bisection(bisection_id, parts)  # none of that name is another answer than none removed
    return RemovalList(items=[_shown(removal) for removal in found])


def _shown(removal: Removal) -> RemovalView:
    return RemovalView(at=removal.at, what=removal.what, by=removal.by, counts=dict(removal.counts))


def _remains(removal: Removal) -> list[str]:
    remains = ["the record of this deletion: its time, who asked for it, and how much it was"]
    elsewhere = removal.counts["taken_over_elsewhere"]
    if elsewhere:
        remains.append(
            f"{counted(elsewhere, 'measurement')} that other bisections took over from it, with their files: "
            "they go with those bisections"
        )
    return [
        *remains,
        "the record of the delivery that started it, if a webhook did",
        "on the workers' hosts: whole logs that were withheld, until their own time is over",
    ]
