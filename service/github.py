"""GitHub's deliveries: is one genuine, what does it say, and what follows from it. No I/O.

Only the few fields that are used are read; the payload has hundreds, and strict
models of all of them reject real deliveries.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from bisection.adapters.catalogue import Webhook

_PULL_REQUEST_BRANCH = re.compile(r"pull-request/\d+")


def is_signed(body: bytes, signature: str, secret: bytes) -> bool:
    """Whether X-Hub-Signature-256 was made over exactly these bytes with the secret.

    An empty secret signs nothing: anybody knows it.
    """
    expected = "sha256=" + hmac.new(secret, body, hashlib.sha256).hexdigest()
    # As bytes: compare_digest refuses str that is not ASCII, and the header is the caller's.
    same = hmac.compare_digest(expected.encode(), signature.encode("utf-8", "surrogateescape"))
    return bool(secret) and same


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class Repository(_Part):
    full_name: Annotated[str, Field(max_length=140)]


class WorkflowRun(_Part):
    """A run of a workflow. ``head_repository`` is null where the fork was deleted."""

    id: Annotated[int, Field(gt=0, lt=2**63)]
    name: str | None
    head_branch: str | None
    head_sha: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")]
    run_attempt: Annotated[int, Field(gt=0, lt=2**31)] = 1
    conclusion: str | None
    head_repository: Repository | None


class WorkflowRunDelivery(_Part):
    """The payload of a `workflow_run` delivery."""

    action: str
    workflow_run: WorkflowRun
    repository: Repository


class Conclusion(StrEnum):
    """What a delivery means for us."""

    FAILURE = "failure"  #: start a bisection
    SUCCESS = "success"  #: remember as green
    IGNORED = "ignored"  #: says nothing of good or bad
    REFUSED = "refused"  #: not allowed to start anything here


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a delivery means, and why, for whoever reads the answer at GitHub."""

    conclusion: Conclusion
    why: str


def read_run(delivery: WorkflowRunDelivery, webhook: Webhook) -> Reading:
    """What follows from a delivery that was signed with this webhook's secret."""
    run = delivery.workflow_run
    if delivery.repository.full_name != webhook.github:
        return _refused("the repository is not the one that this secret is registered for")
    if delivery.action != "completed":
        return _ignored("only completed runs are acted upon")
    if run.head_repository is None or run.head_repository.full_name != delivery.repository.full_name:
        return _refused("the run's head is in a fork, whose commits are not to be trusted here")
    if run.head_branch and _PULL_REQUEST_BRANCH.fullmatch(run.head_branch):
        return _refused("the run is of a copied pull request, whose commit is not on the branch")
    if run.name not in webhook.workflows:
        return _ignored("the workflow is not in the webhook's 'workflows'")
    if run.head_branch not in webhook.branches:
        return _ignored("the branch is not in the webhook's 'branches'")
    if run.conclusion == "failure":
        return Reading(conclusion=Conclusion.FAILURE, why="the run failed")
    if run.conclusion == "success":
        return Reading(conclusion=Conclusion.SUCCESS, why="the run is remembered as green")
    return _ignored(
        "the run ended without telling good from bad (neither success nor failure): unknown, never green"
    )


def _refused(why: str) -> Reading:
    return Reading(conclusion=Conclusion.REFUSED, why=why)


def _ignored(why: str) -> Reading:
    return Reading(conclusion=Conclusion.IGNORED, why=why)
