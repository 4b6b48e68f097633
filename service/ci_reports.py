"""A signed report of a CI outside of GitHub: GitLab, a Slurm cron job, a shell script.

It is signed as Standard Webhooks (standardwebhooks.com) describe: an id, a time and the body under one HMAC,
so that no report is forged, changed, or sent again later. As at GitHub's door, a report is stored and
answered at once.
"""

from __future__ import annotations

import hashlib
import json
import time
from typing import Annotated, Literal

from fastapi import APIRouter, BackgroundTasks, Depends, Header, Path, Response
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, ValidationError

from bisection.adapters.catalogue import NotRegistered, RepositoryEntry
from bisection.adapters.run_reports import LONGEST_JOB, LONGEST_URL, JobConclusion, RunReport, storable
from bisection.adapters.standard_webhooks import is_signed
from bisection.adapters.storage.deliveries import Deliveries
from service import problems
from service.bisections import UsesParts
from service.intake import MOST_OVERRIDES, Name, Overrides, Ref, invalid, plain_text
from service.parts import Parts, body_of
from service.problem_responses import document
from service.problems import FieldError, Problem, field_errors
from service.webhooks import Decision, DeliveryAnswer, answer_to, read_secrets

#: A sender's clock may be wrong by so much; an older report may be one that somebody recorded.
TOLERANCE_SECONDS = 300
LONGEST_LOG = 200_000

Plain = Annotated[str, BeforeValidator(plain_text)]

_CONCLUSIONS = {
    "success": JobConclusion.SUCCESS,
    "failure": JobConclusion.FAILURE,
    "cancelled": JobConclusion.UNKNOWN,
    "skipped": JobConclusion.UNKNOWN,
}


def _harmless(log: object) -> object:
    """A log may hold any bytes; what no database takes tells nothing of a failure."""
    return storable(log, len(log)) if isinstance(log, str) else log


class CiReport(BaseModel):
    """One finished run of one job."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        json_schema_extra={
            "examples": [
                {
                    "job": "perf-qwen3-vl-30b-a3b-h100",
                    "run": 48211,
                    "conclusion": "failure",
                    "branch": "main",
                    "commit": "b" * 40,
                    "log": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
                    "url": "https://gitlab.example.org/team/training/-/jobs/48211",
                }
            ]
        },
    )

    job: Annotated[Plain, Field(min_length=1, max_length=LONGEST_JOB)]
    run: Annotated[int, Field(strict=True, gt=0, lt=2**63)] = Field(
        description="Grows from run to run: a pipeline's id, Slurm's job id, or `date +%s`."
    )
    attempt: Annotated[int, Field(strict=True, ge=1, lt=2**31)] = 1
    conclusion: Literal["success", "failure", "cancelled", "skipped"]
    commit: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")] = Field(
        description="What was run: the range's bad end."
    )
    branch: Annotated[Plain, Field(min_length=1, max_length=255)]
    workflow: Annotated[Plain, Field(max_length=200)] = ""
    good: Ref | None = Field(
        default=None, description="The range's good end; where not given, the job's last green commit."
    )
    recipe: Annotated[Plain, Field(max_length=LONGEST_JOB)] = Field(
        default="", description="Compared with the rules of `ci.jobs`, as the job's name is."
    )
    profile: Name | None = Field(default=None, description="Where not given, the rules of `ci.jobs` say it.")
    overrides: Overrides = Field(default={}, max_length=MOST_OVERRIDES)
    log: Annotated[str, BeforeValidator(_harmless), Field(max_length=LONGEST_LOG)] = Field(
        default="", description="The end of the log: it tells which failure it was."
    )
    url: Annotated[Plain, Field(max_length=LONGEST_URL)] = ""


def ci_router(body_bytes: int) -> APIRouter:
    """The one path; ``body_bytes`` is the longest body that it reads."""
    router = APIRouter(prefix="/v1/webhooks", tags=["webhooks"])
    router.add_api_route(
        "/ci/{repository}",
        receive_ci_report,
        methods=["POST"],
        status_code=202,
        operation_id="receiveCiReport",
        summary="Receive a run of another CI",
        response_model=DeliveryAnswer,
        max_body_size=body_bytes,
        responses={
            202: {"description": "It is genuine; the body says what comes of it and why."},
            **document(
                problems.MALFORMED_BODY,
                problems.SIGNATURE_REFUSED,
                problems.INVALID_REQUEST,
                problems.NOT_REGISTERED,
                problems.BAD_CATALOGUE,
            ),
        },
        openapi_extra={
            "requestBody": {
                "required": True,
                "content": {"application/json": {"schema": CiReport.model_json_schema()}},
            }
        },
    )
    return router


def receive_ci_report(
    body: Annotated[bytes, Depends(body_of)],
    repository: Annotated[str, Path(description="The registered name.")],
    parts: UsesParts,
    tasks: BackgroundTasks,
    response: Response,
    webhook_id: Annotated[
        str,
        Header(max_length=90, pattern=r"^[A-Za-z0-9_.-]*$", description="One a report; a repeat is known."),
    ] = "",
    webhook_timestamp: Annotated[
        str,
        Header(max_length=20, pattern=r"^[0-9]*$", description="Seconds since 1970, not 5 minutes off."),
    ] = "",
    webhook_signature: Annotated[
        str, Header(max_length=1000, description="`v1,` and the HMAC of `ID.TIMESTAMP.BODY` in base64.")
    ] = "",
) -> DeliveryAnswer:
    """A finished run of a job: green ones are remembered, a failed one starts a bisection.

    The range starts at `good`, or at the job's last green commit. A worker decides; the answer says
    where that can be read.
    """
    entry = _signer(repository, body, (webhook_id, webhook_timestamp, webhook_signature), parts)
    intake = entry.ci
    assert intake is not None  # only an entry with one can sign
    report = _parse(body)
    if report.branch not in intake.branches:
        return DeliveryAnswer(decision=Decision.IGNORED, why="the branch is not in 'branches' of ci")
    _check_profile(report, entry, parts)
    if report.profile is None and intake.rule_for(report.job, report.recipe) is None:
        return DeliveryAnswer(decision=Decision.IGNORED, why="no rule in 'jobs' of ci fits the job or recipe")
    delivery_id = (
        f"ci-{entry.name[:20]}-{hashlib.sha256(f'{entry.name} {webhook_id}'.encode()).hexdigest()[:40]}"
    )
    new = Deliveries(parts.database).store(delivery_id, "ci", entry.name, _report(report, entry))
    tasks.add_task(parts.queue.settle, entry.name)
    return answer_to(new, delivery_id, parts, response)


def _signer(repository: str, body: bytes, signed: tuple[str, str, str], parts: Parts) -> RepositoryEntry:
    """Raises Problem, the same for an unknown repository: strangers learn nothing of what exists."""
    delivery_id, timestamp, signature = signed
    try:
        entry: RepositoryEntry | None = parts.catalogue.repository(repository)
    except NotRegistered:
        entry = None
    secrets = read_secrets(entry.ci.secret_file, entry.name) if entry and entry.ci else ()
    genuine = any(is_signed(secret, delivery_id, timestamp, body, signature) for secret in secrets)
    if entry is None or not genuine:
        raise Problem(
            problems.SIGNATURE_REFUSED,
            "webhook-signature is missing, or was not made over 'ID.TIMESTAMP.BODY' with this repository's "
            "secret.",
            repair="Sign as docs/how-to/github.md shows, with the secret of ci.secret_file.",
        )
    if abs(time.time() - int(timestamp)) > TOLERANCE_SECONDS:
        raise Problem(
            problems.SIGNATURE_REFUSED,
            f"webhook-timestamp is more than {TOLERANCE_SECONDS} seconds off this machine's clock.",
            repair="Sign anew for every request, and set the sender's clock.",
        )
    return entry


def _parse(body: bytes) -> CiReport:
    try:
        row = json.loads(body)
    except (ValueError, RecursionError):
        raise Problem(problems.MALFORMED_BODY, "The body is not valid JSON.") from None
    try:
        return CiReport.model_validate(row)
    except ValidationError as error:
        raise invalid(field_errors(error.errors())) from None


def _check_profile(report: CiReport, entry: RepositoryEntry, parts: Parts) -> None:
    if report.profile is None:
        return
    try:
        profile = parts.catalogue.profile(report.profile)
    except NotRegistered as error:
        raise Problem(problems.NOT_REGISTERED, f"profile: {error}.") from None
    if profile.repository != entry.name:
        raise invalid(
            [
                FieldError(
                    field="profile",
                    message=f"is of {profile.repository!r}, not of {entry.name!r}",
                    repair=f"name a profile of {entry.name!r}, or none",
                )
            ]
        )


def _report(report: CiReport, entry: RepositoryEntry) -> RunReport:
    return RunReport(
        source=f"ci:{entry.name}",
        workflow=report.workflow,
        branch=report.branch,
        run=report.run,
        attempt=report.attempt,
        head_sha=report.commit,
        conclusion=_CONCLUSIONS[report.conclusion],
        url=report.url,
        job=report.job,
        is_actions=False,
        log=report.log,
        recipe=report.recipe,
        profile=report.profile or "",
        good=report.good or "",
        overrides=dict(report.overrides),
    )
