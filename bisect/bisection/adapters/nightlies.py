"""What an operator says about nightlies: whose reports count, how GitHub is reached, what is said there.

Shapes of the parts `webhook`, `ci`, `limits`, `github` and `announce` of `repositories/*.yaml`. Secrets are
never in these files: each names a file that holds one. Nothing here reads a file or opens a connection.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from bisection.adapters.catalogue_fields import Name, Shape, Text
from bisection.adapters.profiles import CriterionDefault

__all__ = [
    "Announce", "CiIntake", "DailyLimits", "GitHubAccess", "GitHubApp", "JobRule", "JobRules",
    "OutgoingWebhook", "Webhook",
]  # fmt: skip

GitHubName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9-]*/[A-Za-z0-9._-]+$")]
Pattern = Annotated[Text, Field(min_length=1, max_length=300)]

_HOST = re.compile(r"(\*\.)?[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:\d{1,5})?")
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
#: Where GitHub keeps logs: a job's log is a redirect to one of these, with a signature in the address.
GITHUB_LOG_HOSTS = ("*.blob.core.windows.net", "*.actions.githubusercontent.com")


def _web_address(value: str) -> str:
    """https, or http on this machine alone; ValueError for anything else."""
    parts = urlsplit(value)
    plain = parts.scheme == "http" and parts.hostname in _LOOPBACK
    if not (parts.scheme == "https" or plain) or not parts.hostname:
        raise ValueError("must be https://HOST/..., or http:// on the loopback address")
    if parts.username or parts.password or parts.query or parts.fragment or re.search(r"\s", value):
        raise ValueError("must be an address alone: no user, no password, no query, no fragment")
    return value.rstrip("/")


def _host(value: str) -> str:
    if not _HOST.fullmatch(value):
        raise ValueError(f"{value!r} must be a host such as logs.example.org, or *.example.org")
    return value


WebAddress = Annotated[Text, AfterValidator(_web_address)]
Host = Annotated[str, AfterValidator(_host)]


class JobRule(Shape):
    """Which profile repeats a job, told by the job's name; `*` stands for any letters."""

    job: Pattern  #: compared with the job's name, and with the recipe where a CI names one
    profile: Name | None = None  #: none: the profile of the intake
    criterion: CriterionDefault | None = None  #: none: what the log tells, else the profile's

    def fits(self, job: str, recipe: str = "") -> bool:
        # Only `*` is special: real job names hold brackets and question marks.
        pattern = re.escape(self.job).replace(r"\*", ".*")
        return any(re.fullmatch(pattern, name, re.DOTALL) for name in (job, recipe) if name)


class JobRules(Shape):
    """Whose word is taken, and which profile repeats what failed."""

    secret_file: Text  #: path of a file that holds the shared secret; never the secret itself
    branches: Annotated[tuple[Text, ...], Field(min_length=1)]
    profile: Name | None = None  #: for jobs whose rule names none, and for all jobs where there are no rules
    jobs: tuple[JobRule, ...] = ()  #: the first that fits is used; a job that none fits is not acted upon
    good: Text | None = None  #: where the range starts while no run was seen to succeed

    @model_validator(mode="after")
    def _every_job_has_a_profile(self) -> Self:
        if self.profile is None and not self.jobs:
            raise ValueError("needs `profile`, or `jobs` with a profile each")
        if self.profile is None and any(rule.profile is None for rule in self.jobs):
            raise ValueError("needs `profile`, since a rule in `jobs` names none")
        return self

    def rule_for(self, job: str, recipe: str = "") -> JobRule | None:
        """With a profile filled in; None: this job is not acted upon."""
        if not self.jobs:
            return JobRule(job="*", profile=self.profile)
        for rule in self.jobs:
            if rule.fits(job, recipe):
                return rule.model_copy(update={"profile": rule.profile or self.profile})
        return None


class Webhook(JobRules):
    """Which failed GitHub workflow runs and check runs start a bisection."""

    github: GitHubName
    workflows: Annotated[tuple[Text, ...], Field(min_length=1)]  #: names of workflows, as GitHub shows them
    checks: tuple[Pattern, ...] = ()  #: names of check runs that other apps than Actions report


class CiIntake(JobRules):
    """Signed reports of a CI outside of GitHub."""


class DailyLimits(Shape):
    """What nightlies may start for one repository on one day (UTC). What exceeds it is held, not lost."""

    bisections_a_day: Annotated[int, Field(ge=1, le=1000)] = 10
    gpu_hours_a_day: Annotated[float, Field(gt=0)] | None = None  #: sum of the budgets given on a day
    gpu_hours: Annotated[float, Field(gt=0)] | None = None  #: budget of each bisection

    @model_validator(mode="after")
    def _a_sum_has_parts(self) -> Self:
        if self.gpu_hours_a_day is not None and self.gpu_hours is None:
            raise ValueError("gpu_hours_a_day needs gpu_hours: the budget of each bisection")
        return self


class GitHubApp(Shape):
    """An installation of a GitHub App, which signs in with its private key."""

    id: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9.]{1,40}$")]  #: app id or client id
    installation: Annotated[int, Field(gt=0, lt=2**63)]
    private_key_file: Text  #: path of the PEM file


class GitHubAccess(Shape):
    """How the API of GitHub is reached for one repository."""

    repository: GitHubName
    api: WebAddress = "https://api.github.com"
    token_file: Text | None = None
    app: GitHubApp | None = None
    log_hosts: Annotated[tuple[Host, ...], Field(min_length=1)] = GITHUB_LOG_HOSTS

    @model_validator(mode="after")
    def _signs_in_one_way(self) -> Self:
        if (self.token_file is None) == (self.app is None):
            raise ValueError("needs `token_file` or `app`, one of them")
        return self

    def may_fetch_log_from(self, address: str) -> bool:
        """Whether a redirect may be followed: a configured host, by https unless the API itself is plain."""
        parts = urlsplit(address)
        own = urlsplit(self.api)
        if parts.username or parts.password or parts.scheme not in {"https", own.scheme}:
            return False
        host = (parts.hostname or "").lower()
        names = {host, f"{host}:{parts.port}"} if parts.port else {host}
        return any(fnmatchcase(name, pattern) for name in names for pattern in self.log_hosts)


class OutgoingWebhook(Shape):
    """An address that is told of every announced result, signed as Standard Webhooks describe."""

    url: WebAddress
    secret_file: Text


class Announce(Shape):
    """Where a result is told; nothing is, unless it is asked for here."""

    confidence: Annotated[float, Field(gt=0.5, lt=1)] = 0.95  #: below it nothing is said
    check_run: bool = False  #: on the bad end; GitHub lets Apps alone do so
    pull_request: bool = False  #: a comment on the culprit's pull request
    issue: bool = False
    webhook: OutgoingWebhook | None = None

    @property
    def uses_github(self) -> bool:
        return self.check_run or self.pull_request or self.issue
