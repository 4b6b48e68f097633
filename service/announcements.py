"""REST: where a result was told, and tell it again where that failed."""

from __future__ import annotations

from fastapi import APIRouter, BackgroundTasks
from pydantic import BaseModel, Field

from bisection.adapters.storage.announcements import Announcements, AnnouncementStatus, Channel
from service import problems
from service.access import Reader, Writer
from service.bisections import Existing, UsesParts
from service.parts import Parts
from service.problem_responses import document

router = APIRouter(prefix="/v1/bisections", tags=["webhooks"])


class AnnouncementView(BaseModel):
    """One result at one place."""

    model_config = {"title": "Announcement"}

    id: str
    channel: Channel
    status: AnnouncementStatus
    retracted: bool = Field(description="Whether what stands there is the retraction.")
    tries: int = Field(description="That failed since it was last said.")
    why: str = Field(description="Where it was said, or why it was not, with the repair.")


class AnnouncementList(BaseModel):
    """Empty where nothing is to be told."""

    items: list[AnnouncementView]


@router.get(
    "/{bisection_id}/announcements",
    operation_id="listAnnouncements",
    summary="List where the result was told",
    response_model=AnnouncementList,
    responses=document(problems.UNAUTHENTICATED, problems.FORBIDDEN, problems.NOT_FOUND),
)
def list_announcements(_caller: Reader, row: Existing, parts: UsesParts) -> AnnouncementList:
    """At GitHub and to the outgoing webhook, as the repository's file asks."""
    return _list(row.id, parts)


@router.post(
    "/{bisection_id}/announcements/retry",
    status_code=202,
    operation_id="retryAnnouncements",
    summary="Tell a result where that failed",
    response_model=AnnouncementList,
    responses=document(problems.UNAUTHENTICATED, problems.FORBIDDEN, problems.NOT_FOUND),
)
def retry_announcements(
    _caller: Writer, row: Existing, parts: UsesParts, tasks: BackgroundTasks
) -> AnnouncementList:
    """What failed is tried again; what was said is not said twice."""
    for announcement_id in Announcements(parts.database).retry(row.id):
        tasks.add_task(parts.queue.announce, announcement_id)
    return _list(row.id, parts)


def _list(bisection_id: str, parts: Parts) -> AnnouncementList:
    return AnnouncementList(
        items=[
            AnnouncementView(
                id=one.id,
                channel=one.channel,
                status=one.status,
                retracted=one.retracted,
                tries=one.tries,
                why=one.why,
            )
            for one in Announcements(parts.database).of(bisection_id)
        ]
    )
