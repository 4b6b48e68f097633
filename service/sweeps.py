"""REST: sweeps, one commit of a profile under several configurations. Create, list, read, cancel."""

from __future__ import annotations

import re
from math import prod
from typing import Annotated, Any

from fastapi import APIRouter, BackgroundTasks, Depends, Header, Path, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from bisection.adapters.catalogue import NotRegistered
from bisection.adapters.storage.audit import token_of
from bisection.adapters.storage.bisections import BisectionRow, IdempotencyConflict, Kind, Status
from bisection.adapters.storage.sweeps import Sweeps, sweep_so_far
from bisection.rendering.sweep_html import render_sweep_html
from bisection.rendering.sweep_markdown import render_sweep_markdown
from bisection.sweep import MOST_POINTS
from bisection.sweep_report import SweepReport
from memory_models.job import Dispatcher
from memory_models.variations import NONE, Axis
from service import problems
from service.access import Reader, Writer
from service.bisections import UsesParts
from service.cursors import read_cursor, write_cursor
from service.hints import hints
from service.intake import MOST_OVERRIDES, Name, Overrides, Ref, Shape, invalid
from service.json_answers import JsonAnswer
from service.parts import Parts
from service.problem_responses import document
from service.problems import FieldError, Problem
from service.reports import REPORT_POLICY, ReportFormat, accepted_format

router = APIRouter(prefix="/v1/sweeps", tags=["sweeps"])

_ID = re.compile(r"[0-9a-f]{16}")
_SCOPES = re.compile(r"[a-z_]{1,40}(\+[a-z_]{1,40}){0,7}")
_MOST_WORDS = 16
_LARGEST = 2**20

Size = Annotated[int, Field(strict=True, ge=1, lt=_LARGEST)]
Word = Annotated[str, Field(min_length=1, max_length=200)]
Sizes = Annotated[tuple[Size, ...], Field(max_length=_MOST_WORDS)]
Words = Annotated[tuple[Word, ...], Field(max_length=_MOST_WORDS)]


class AxesRequest(Shape):
    """What is varied; every combination of the values is a point."""

    model_config = ConfigDict(title="Axes")

    micro_batch: Sizes = Field(default=(), description="Samples of a micro-batch.")
    recompute: Words = Field(default=(), description="none, selective (the job's modules) or full.")
    graph_scope: Words = Field(
        default=(), description="CUDA graphs: none, or parts of layers joined by '+', such as moe_router."
    )
    dispatcher: Words = Field(default=(), description="allgather, alltoall or flex.")
    expert_parallel: Sizes = Field(default=(), description="Ranks that share the experts.")
    expert_tensor_parallel: Sizes = Field(default=(), description="Ranks that share each expert.")


class SweepRequest(Shape):
    """One commit, and the configurations to try it under."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "profile": "qwen3-vl-30b-a3b-sft-8gpu",
                    "at": "main",
                    "axes": {"micro_batch": [1, 2, 4], "recompute": ["none", "selective", "full"]},
                }
            ]
        }
    )

    profile: Name = Field(description="A registered profile: GET /v1/profiles.")
    at: Ref = Field(description="A branch, a tag or a commit hash.")
    axes: AxesRequest
    overrides: Overrides = Field(
        default={}, max_length=MOST_OVERRIDES, description="Configuration keys to change at every point."
    )
    capacity_bytes: Annotated[int, Field(strict=True, gt=0, lt=2**63)] | None = Field(
        default=None, description="Bytes of one device, enforced; the profile's where not given."
    )
    parallel: Annotated[int, Field(strict=True, ge=1, le=64)] | None = Field(
        default=None,
        description="Points at once; where not given, one for each worker of a GPU pool, and one on a CPU.",
    )


class SweepLinks(BaseModel):
    self: str
    report: str
    page: str = Field(description="The report for people, in a browser.")


class SweepSummary(BaseModel):
    """One sweep in a list."""

    id: str
    status: Status
    created_at: str
    updated_at: str
    ended_at: str | None
    source: str
    cancel_requested: bool
    request: dict[str, Any] = Field(description="The normalised request.")
    links: SweepLinks


class SweepView(SweepSummary):
    """One sweep as it stands now."""

    hints: list[str] = Field(description="What keeps it from going on; empty while nothing does.")
    progress: list[str] = Field(description="What the trials that run now say of themselves.")
    report: dict[str, Any] = Field(description="All points so far (docs/reference/sweep.md).")


class SweepPage(BaseModel):
    items: list[SweepSummary]
    next: str | None = Field(description="Pass it as 'cursor' for the next page; null: this is the last.")


def existing_sweep(
    sweep_id: Annotated[str, Path(description="As POST /v1/sweeps gave it.")], parts: UsesParts
) -> BisectionRow:
    """A dependency: the sweep of the path. Raises Problem if there is none."""
    if _ID.fullmatch(sweep_id):
        try:
            row = parts.bisections.get(sweep_id)
        except KeyError:
            row = None
        if row is not None and row.kind is Kind.SWEEP:
            return row
    raise Problem(
        problems.NOT_FOUND, f"There is no sweep {sweep_id[:40]!r}.", repair="Check it against GET /v1/sweeps."
    )


Existing = Annotated[BisectionRow, Depends(existing_sweep)]


def report_of(row: BisectionRow, parts: Parts) -> SweepReport:
    """The stored report, or what is known so far."""
    if row.report is not None:
        return SweepReport.from_json(row.report)
    return sweep_so_far(row, parts.trials.of(row.id), ended=False)


def summary_of(row: BisectionRow, parts: Parts) -> SweepSummary:
    base = parts.settings.url(f"/v1/sweeps/{row.id}")
    return SweepSummary(
        id=row.id,
        status=row.status,
        created_at=row.created_at,
        updated_at=row.updated_at,
        ended_at=row.ended_at,
        source=row.source,
        cancel_requested=row.cancel_requested,
        request=dict(row.request),
        links=SweepLinks(self=base, report=f"{base}/report", page=parts.settings.url(f"/sweeps/{row.id}")),
    )


def view_of(row: BisectionRow, parts: Parts) -> SweepView:
    trials = parts.trials.of(row.id)
    return SweepView(
        **summary_of(row, parts).model_dump(),
        hints=hints(row, trials, parts.roster),
        progress=[one.progress for one in trials if one.progress and one.sequence is None],
        report=report_of(row, parts).to_json(),
    )


@router.post(
    "",
    status_code=202,
    operation_id="createSweep",
    summary="Start a sweep",
    response_model=SweepView,
    responses={
        202: {"description": "Stored; a worker resolves the commit next."},
        **document(
            problems.MALFORMED_BODY,
            problems.UNAUTHENTICATED,
            problems.FORBIDDEN,
            problems.IDEMPOTENCY_CONFLICT,
            problems.INVALID_REQUEST,
            problems.NOT_REGISTERED,
        ),
    },
)
def create_sweep(
    caller: Writer,
    wanted: SweepRequest,
    parts: UsesParts,
    tasks: BackgroundTasks,
    response: Response,
    idempotency_key: Annotated[str | None, Header(min_length=1, max_length=128, pattern=r"^[!-~]+$")] = None,
) -> SweepView:
    """The job as it is runs first: its resolved configuration says what the points change.

    Combinations that upstream's checks refuse are told and not run. Of the others those come first that
    fit by their estimates. Every point keeps the job's global batch size.
    """
    axes = _axes(wanted.axes)
    try:
        profile = parts.catalogue.profile(wanted.profile)
    except NotRegistered as error:
        named = FieldError(field="profile", message=str(error), repair="use one of these")
        raise Problem(problems.NOT_REGISTERED, f"profile: {error}.", errors=[named]) from None
    request = {
        "version": 1,
        "repository": profile.repository,
        "profile": profile.name,
        "at": wanted.at,
        "axes": axes,
        "overrides": dict(wanted.overrides),
        "capacity_bytes": wanted.capacity_bytes,
        "parallel": wanted.parallel,
    }
    try:
        row, _ = parts.bisections.create(
            request=request,
            profile=profile.model_dump(mode="json"),
            source=f"token:{caller.name}",
            idempotency_key=f"{caller.id}:{idempotency_key}" if idempotency_key else None,
            kind=Kind.SWEEP,
        )
    except IdempotencyConflict:
        raise Problem(
            problems.IDEMPOTENCY_CONFLICT, f"The key {idempotency_key!r} stands for another request."
        ) from None
    return _accepted(row, parts, tasks, response)


def _accepted(row: BisectionRow, parts: Parts, tasks: BackgroundTasks, response: Response) -> SweepView:
    tasks.add_task(parts.queue.advance, row.id)
    shown = view_of(row, parts)
    response.headers["Location"] = shown.links.self
    return shown


def _axes(wanted: AxesRequest) -> dict[str, list[str]]:
    """Each axis that is given, its values as words, once each. Raises Problem."""
    errors: list[FieldError] = []
    axes: dict[str, list[str]] = {}
    for axis in Axis:
        words = list(dict.fromkeys(str(value) for value in getattr(wanted, axis.value)))
        for word in words:
            repair = _repair(axis, word)
            if repair:
                errors.append(
                    FieldError(
                        field=f"axes.{axis.value}", message=f"{word!r} is no value of it", repair=repair
                    )
                )
        if words:
            axes[axis.value] = words
    count = prod(len(words) for words in axes.values())
    if not axes:
        errors.append(
            FieldError(field="axes", message="names nothing to vary", repair="give one, such as micro_batch")
        )
    elif count > MOST_POINTS:
        errors.append(
            FieldError(
                field="axes",
                message=f"makes {count} points, and {MOST_POINTS} are the most",
                repair="vary fewer things at once, and go on from the best point",
            )
        )
    if errors:
        raise invalid(errors)
    return axes


def _repair(axis: Axis, word: str) -> str:
    """What to write instead; "" where the word is a value of the axis."""
    match axis:
        case Axis.RECOMPUTE if word not in (NONE, "selective", "full"):
            return "write none, selective or full"
        case Axis.DISPATCHER if word not in tuple(Dispatcher):
            return f"write {', '.join(Dispatcher)}"
        case Axis.GRAPH_SCOPE if not _SCOPES.fullmatch(word):
            return "write none, or names joined by '+', such as moe_router+moe_preprocess"
        case _:
            return ""


@router.get(
    "",
    operation_id="listSweeps",
    summary="List sweeps",
    response_model=SweepPage,
    responses=document(problems.UNAUTHENTICATED, problems.FORBIDDEN, problems.INVALID_REQUEST),
)
def list_sweeps(
    _caller: Reader,
    parts: UsesParts,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[str | None, Query(max_length=120, description="`next` of the page before.")] = None,
) -> SweepPage:
    """The newest first."""
    found = Sweeps(parts.database).page(limit=limit + 1, before=read_cursor(cursor) if cursor else None)
    rows = [parts.bisections.get(sweep_id) for sweep_id in found[:limit]]
    return SweepPage(
        items=[summary_of(row, parts) for row in rows],
        next=write_cursor(rows[-1].created_at, rows[-1].id) if len(found) > limit else None,
    )


@router.get(
    "/{sweep_id}",
    operation_id="getSweep",
    summary="Read one sweep",
    response_model=SweepView,
    responses=document(problems.UNAUTHENTICATED, problems.FORBIDDEN, problems.NOT_FOUND),
)
def get_sweep(_caller: Reader, row: Existing, parts: UsesParts) -> SweepView:
    """Status, and every point so far with its estimate and its measurement."""
    return view_of(row, parts)


@router.post(
    "/{sweep_id}/cancel",
    status_code=202,
    operation_id="cancelSweep",
    summary="Stop a sweep",
    response_model=SweepView,
    responses={
        202: {"description": "A worker stops the trials; what was measured is kept."},
        **document(problems.UNAUTHENTICATED, problems.FORBIDDEN, problems.NOT_FOUND, problems.WRONG_STATE),
    },
)
def cancel_sweep(
    caller: Writer, row: Existing, parts: UsesParts, tasks: BackgroundTasks, response: Response
) -> SweepView:
    """Asking twice is no error."""
    if not parts.bisections.request_cancel(row.id, by=token_of(caller.name)):
        raise Problem(
            problems.WRONG_STATE,
            f"Sweep {row.id} has ended.",
            repair="Nothing is to be done; read its report.",
        )
    return _accepted(parts.bisections.get(row.id), parts, tasks, response)


@router.get(
    "/{sweep_id}/report",
    operation_id="getSweepReport",
    summary="Read a sweep's report",
    response_class=Response,
    responses={
        200: {
            "description": "JSON (docs/reference/sweep.md), Markdown, or one self-contained HTML page.",
            "content": {
                "application/json": {"schema": {"type": "object"}},
                "text/markdown": {"schema": {"type": "string"}},
                "text/html": {"schema": {"type": "string"}},
            },
        },
        **document(
            problems.UNAUTHENTICATED, problems.FORBIDDEN, problems.NOT_FOUND, problems.INVALID_REQUEST
        ),
    },
)
def get_sweep_report(
    _caller: Reader,
    row: Existing,
    parts: UsesParts,
    format: Annotated[ReportFormat | None, Query(description="Goes before the Accept header.")] = None,
    accept: Annotated[str, Header(description="One of the three media types.")] = "",
) -> Response:
    """At any time: before the end, what is known so far."""
    headers = {"Vary": "Accept", "Cache-Control": "private, no-cache"}
    report = report_of(row, parts)
    match format or accepted_format(accept):
        case ReportFormat.MARKDOWN:
            text = render_sweep_markdown(report)
            return Response(text, media_type="text/markdown; charset=utf-8", headers=headers)
        case ReportFormat.HTML:
            headers["Content-Security-Policy"] = REPORT_POLICY
            return Response(render_sweep_html(report), media_type="text/html; charset=utf-8", headers=headers)
        case _:
            return JsonAnswer(report.to_json(), headers=headers)
