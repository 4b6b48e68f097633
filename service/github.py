"""GitHub's deliveries: is one genuine, what does it say, and is it to be looked into. No I/O.

Only the few fields that are used are read; the payload has hundreds, and strict
models of all of them reject real deliveries. Addresses in a payload are never followed.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from bisection.adapters.nightlies import JobRule, Webhook
from bisection.adapters.run_reports import LONGEST_JOB, LONGEST_URL, RunReport, conclusion_of, storable

_PULL_REQUEST_BRANCH = re.compile(r"pull-request/\d+")
#: The app in whose name GitHub reports the jobs of workflows.
_ACTIONS = "github-actions"
_LONGEST_OUTPUT = 20_000

Sha = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")]
Id = Annotated[int, Field(gt=0, lt=2**63)]


def is_signed(body: bytes, signature: str, secret: bytes) -> bool:
    """Whether X-Hub-Signature-256 was made over exactly these bytes with the secret.

    An empty secret signs nothing: anybody knows it.
    """
    expected = "sha256=" + hmac.new(secret, body, hashlib.sha256).hexdigest()
    # As bytes: compare_digest refuses str that is not ASCII, and the header is the caller's.
    same = hmac.compare_digest(expected.encode(), signature.encode(errors="replace"))
    return bool(secret) and same


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class Repository(_Part):
    full_name: Annotated[str, Field(max_length=140)]


class WorkflowRun(_Part):
    """A run of a workflow. ``head_repository`` is null where the fork was deleted."""

    id: Id
    name: str | None
    head_branch: str | None
    head_sha: Sha
    run_attempt: Annotated[int, Field(gt=0, lt=2**31)] = 1
    conclusion: str | None
    head_repository: Repository | None
    html_url: str = ""


class WorkflowRunDelivery(_Part):
    """The payload of a `workflow_run` delivery."""

    action: str
    workflow_run: WorkflowRun
    repository: Repository


class App(_Part):
    slug: str | None = None


class CheckSuite(_Part):
    """``head_branch`` is null where the commit was pushed to a fork."""

    id: Id
    head_branch: str | None


class CheckOutput(_Part):
    title: str | None = None
    summary: str | None = None
    text: str | None = None


class CheckRun(_Part):
    """One check of one commit: a job of Actions, or whatever another app reports."""

    id: Id
    name: str
    head_sha: Sha
    conclusion: str | None
    html_url: str | None = None
    details_url: str | None = None
    output: CheckOutput = CheckOutput()
    app: App | None = None
    check_suite: CheckSuite


class CheckRunDelivery(_Part):
    """The payload of a `check_run` delivery."""

    action: str
    check_run: CheckRun
    repository: Repository


Delivery = WorkflowRunDelivery | CheckRunDelivery
EVENTS: dict[str, type[WorkflowRunDelivery] | type[CheckRunDelivery]] = {
    "workflow_run": WorkflowRunDelivery,
    "check_run": CheckRunDelivery,
}


class Intake(StrEnum):
    """What the delivery's own words settle."""

    ACCEPTED = "accepted"  #: a worker looks into it
    IGNORED = "ignored"  #: says nothing of good or bad
    REFUSED = "refused"  #: not allowed to start anything here


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a delivery means, and why, for whoever reads the answer at GitHub."""

    intake: Intake
    why: str
    report: RunReport | None = None  #: if accepted


def read_delivery(delivery: Delivery, webhook: Webhook) -> Reading:
    """What follows from a delivery that was signed with this webhook's secret."""
    if delivery.repository.full_name != webhook.github:
        return _refused("the repository is not the one that this secret is registered for")
    if delivery.action != "completed":
        return _ignored("only completed runs are acted upon")
    if isinstance(delivery, WorkflowRunDelivery):
        return _read_run(delivery.workflow_run, webhook)
    return _read_check(delivery.check_run, webhook)


def _read_run(run: WorkflowRun, webhook: Webhook) -> Reading:
    if run.head_repository is None or run.head_repository.full_name != webhook.github:
        return _refused("the run's head is in a fork, whose commits are not to be trusted here")
    refusal = _refuse_branch(run.head_branch, webhook)
    if refusal:
        return refusal
    if run.name not in webhook.workflows:
        return _ignored("the workflow is not in the webhook's 'workflows'")
    return _accepted(
        RunReport(
            source=webhook.github,
            workflow=run.name,
            branch=run.head_branch or "",
            run=run.id,
            attempt=run.run_attempt,
            head_sha=run.head_sha,
            conclusion=conclusion_of(run.conclusion),
            url=storable(run.html_url, LONGEST_URL),
        )
    )


def _read_check(check: CheckRun, webhook: Webhook) -> Reading:
    if check.check_suite.head_branch is None:
        return _refused("the check's commit is in a fork, whose commits are not to be trusted here")
    refusal = _refuse_branch(check.check_suite.head_branch, webhook)
    if refusal:
        return refusal
    is_actions = check.app is not None and check.app.slug == _ACTIONS
    if not is_actions and not any(JobRule(job=one).fits(check.name) for one in webhook.checks):
        return _ignored("the check is of another app than GitHub Actions, and not in the webhook's 'checks'")
    said = (check.output.title, check.output.summary, check.output.text)
    return _accepted(
        RunReport(
            source=webhook.github,
            # Actions does not say here which workflow it is of; the API does.
            workflow="" if is_actions else "checks",
            branch=check.check_suite.head_branch,
            run=check.id,
            head_sha=check.head_sha,
            conclusion=conclusion_of(check.conclusion),
            url=storable(check.html_url or check.details_url or "", LONGEST_URL),
            job=storable(check.name, LONGEST_JOB),
            check_run=check.id,
            is_actions=is_actions,
            log="" if is_actions else storable("\n".join(text for text in said if text), _LONGEST_OUTPUT),
        )
    )


def _refuse_branch(branch: str | None, webhook: Webhook) -> Reading | None:
    if branch and _PULL_REQUEST_BRANCH.fullmatch(branch):
        return _refused("the run is of a copied pull request, whose commit is not on the branch")
    if branch not in webhook.branches:
        return _ignored("the branch is not in the webhook's 'branches'")
    return None


def _accepted(report: RunReport) -> Reading:
    return Reading(intake=Intake.ACCEPTED, why="it is stored; a worker decides", report=report)


def _refused(why: str) -> Reading:
    return Reading(intake=Intake.REFUSED, why=why)


def _ignored(why: str) -> Reading:
    return Reading(intake=Intake.IGNORED, why=why)
