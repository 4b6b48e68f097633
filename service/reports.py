"""REST: the report of a bisection, in the format that the caller reads."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import Annotated

from fastapi import APIRouter, Header, Query, Response

from bisection.adapters.storage.bisections import BisectionRow
from bisection.rendering.html import content_security_policy, render_html
from bisection.rendering.markdown import render_markdown
from bisection.report import CulpritReport
from service import problems
from service.access import Reader
from service.bisections import Existing, UsesParts
from service.expiry import removal_words
from service.json_answers import JsonAnswer
from service.parts import Parts
from service.problem_responses import document
from service.problems import Problem

router = APIRouter(prefix="/v1/bisections/{bisection_id}", tags=["reports"])

#: The page's own policy, and what only a header can say.
REPORT_POLICY = f"{content_security_policy()}; frame-ancestors 'none'"


class ReportFormat(StrEnum):
    """How a report is written."""

    JSON = "json"
    MARKDOWN = "markdown"
    HTML = "html"


#: In the order of our preference, where the caller has none.
_MEDIA_TYPES = {
    "application/json": ReportFormat.JSON,
    "text/markdown": ReportFormat.MARKDOWN,
    "text/html": ReportFormat.HTML,
}


def accepted_format(accept: str) -> ReportFormat:
    """What an Accept header asks for (RFC 9110, section 12.5.1); JSON where nothing fits."""
    qualities = dict(_ranges(accept))

    def quality(media_type: str) -> float:
        kind = media_type.split("/")[0]
        return next((qualities[r] for r in (media_type, f"{kind}/*", "*/*") if r in qualities), 0.0)

    best = max(_MEDIA_TYPES, key=quality)
    return _MEDIA_TYPES[best] if quality(best) > 0 else ReportFormat.JSON


def _ranges(accept: str) -> list[tuple[str, float]]:
    ranges = []
    for part in accept.split(","):
        media_type, *parameters = (word.strip().lower() for word in part.split(";"))
        quality = 1.0
        for parameter in parameters:
            if parameter.startswith("q="):
                try:
                    quality = float(parameter[2:])
                except ValueError:
                    quality = 0.0
        ranges.append((media_type, quality))
    return ranges


def finished_report(row: BisectionRow, parts: Parts) -> CulpritReport:
    """With a note of what was removed since. Raises Problem where there is none, or only a fault's note."""
    if row.report is None:
        raise Problem(problems.REPORT_NOT_READY, f"Bisection {row.id} is {row.status.value}.")
    try:
        report = CulpritReport.from_json(row.report)
    except ValueError as error:
        raise Problem(
            problems.REPORT_NOT_READY,
            f"The report of bisection {row.id} is not whole: {error}.",
            repair="Read what there is with ?format=json.",
        ) from None
    removed = removal_words(parts.database, row.id)
    return replace(report, notes=(*report.notes, removed)) if removed else report


@router.get(
    "/report",
    operation_id="getReport",
    summary="Read the report",
    response_class=Response,
    responses={
        200: {
            "description": "JSON (docs/reference/report.md), Markdown, or one self-contained HTML page.",
            "content": {
                "application/json": {"schema": {"type": "object"}},
                "text/markdown": {"schema": {"type": "string"}},
                "text/html": {"schema": {"type": "string"}},
            },
        },
        **document(
            problems.UNAUTHENTICATED,
            problems.FORBIDDEN,
            problems.NOT_FOUND,
            problems.REPORT_NOT_READY,
            problems.INVALID_REQUEST,
        ),
    },
)
def get_report(
    _caller: Reader,
    row: Existing,
    parts: UsesParts,
    format: Annotated[ReportFormat | None, Query(description="Goes before the Accept header.")] = None,
    accept: Annotated[str, Header(description="One of the three media types.")] = "",
) -> Response:
    """Which commit, in which component, how sure, and what to do about it."""
    headers = {"Vary": "Accept", "Cache-Control": "private, no-cache"}
    match format or accepted_format(accept):
        case ReportFormat.JSON if row.report is not None:
            return JsonAnswer(row.report, headers=headers)
        case ReportFormat.MARKDOWN:
            text = render_markdown(finished_report(row, parts))
            return Response(text, media_type="text/markdown; charset=utf-8", headers=headers)
        case ReportFormat.HTML:
            headers["Content-Security-Policy"] = REPORT_POLICY
            page = render_html(finished_report(row, parts))
            return Response(page, media_type="text/html; charset=utf-8", headers=headers)
        case _:
            raise Problem(problems.REPORT_NOT_READY, f"Bisection {row.id} is {row.status.value}.")
