"""From a report to its finished jobs: GitHub is asked for the jobs of a run and the logs of failed ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

from bisection.adapters.catalogue import RepositoryEntry
from bisection.adapters.nightlies import GitHubAccess, Webhook
from bisection.adapters.run_reports import RunReport
from workers.ci_logs import text_of
from workers.github_api import GitHubApi, GitHubRefused
from workers.github_runs import GitHubJob, is_on_branch, job_of_check, jobs_of, log_of, run_report
from workers.nightly_jobs import FinishedJob, JobDecision, JobOutcome

#: Logs that GitHub keeps no longer.
_GONE = (404, 410)

FinishedJobs = AbstractContextManager[Iterator[FinishedJob]]


def read_jobs(entry: RepositoryEntry, report: RunReport) -> JobOutcome | FinishedJobs:
    """The finished jobs of a report, or why there are none. Raises GitHubError, while they are read too."""
    if report.check_run is not None and entry.github is None:
        return JobOutcome(
            job=report.job or "",
            decision=JobDecision.IGNORED,
            why="a check run does not say whether its commit is on the branch, and GitHub may not be asked",
            repair="Add 'github' to the repository's file.",
        )
    if report.source.startswith("ci:") or entry.github is None:
        return _as_told(report)
    if report.check_run is None:
        return _of_run(entry.github, report)
    if report.is_actions:
        return _of_actions_check(entry.github, entry.webhook, report)
    return _of_other_check(entry.github, report)


@contextmanager
def _as_told(report: RunReport) -> Iterator[Iterator[FinishedJob]]:
    yield iter([_finished(report, report.job or "", lambda: report.log)])


@contextmanager
def _of_run(access: GitHubAccess, report: RunReport) -> Iterator[Iterator[FinishedJob]]:
    with GitHubApi(access) as api:
        yield iter([_of_job(api, report, job) for job in jobs_of(api, report.run, report.attempt)])


def _of_actions_check(
    access: GitHubAccess, webhook: Webhook | None, report: RunReport
) -> JobOutcome | FinishedJobs:
    """The job behind the check, under the number of its run, as if the run had been reported."""
    assert report.check_run is not None  # so was the report made
    assert webhook is not None
    with GitHubApi(access) as api:
        job = job_of_check(api, report.check_run)
        run = run_report(api, job.run)
    name = report.job or job.name
    if run is None:
        why = "the run's head is in a fork, whose commits are not to be trusted here"
        return JobOutcome(job=name, decision=JobDecision.REFUSED, why=why)
    if run.workflow not in webhook.workflows or run.branch not in webhook.branches:
        why = "the workflow or the branch is not in the webhook's 'workflows' and 'branches'"
        return JobOutcome(job=name, decision=JobDecision.IGNORED, why=why)
    return _one_of_run(access, run, job)


@contextmanager
def _one_of_run(access: GitHubAccess, run: RunReport, job: GitHubJob) -> Iterator[Iterator[FinishedJob]]:
    with GitHubApi(access) as api:
        yield iter([_of_job(api, run, job)])


def _of_other_check(access: GitHubAccess, report: RunReport) -> JobOutcome | FinishedJobs:
    with GitHubApi(access) as api:
        known = is_on_branch(api, report.head_sha, report.branch)
    if not known:
        why = "the check's commit is not on the branch that it names"
        return JobOutcome(job=report.job or "", decision=JobDecision.REFUSED, why=why)
    return _as_told(report)


def _of_job(api: GitHubApi, report: RunReport, job: GitHubJob) -> FinishedJob:
    def log() -> str:
        try:
            return text_of(log_of(api, job))
        except GitHubRefused as error:
            if error.status in _GONE:
                return ""
            raise

    finished = _finished(report, job.name, log)
    return replace(finished, attempt=job.attempt, conclusion=job.conclusion, url=job.url or report.url)


def _finished(report: RunReport, name: str, log: Callable[[], str]) -> FinishedJob:
    return FinishedJob(
        report=report,
        name=name,
        attempt=report.attempt,
        conclusion=report.conclusion,
        url=report.url,
        log=log,
    )
