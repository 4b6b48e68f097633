"""What is read from GitHub: runs, their jobs, logs, and whether a commit is on a branch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from bisection.adapters.run_reports import (
    LONGEST_JOB,
    LONGEST_URL,
    JobConclusion,
    RunReport,
    conclusion_of,
    storable,
)
from workers.github_api import GitHubApi


@dataclass(frozen=True, kw_only=True)
class GitHubJob:
    """One job of one attempt of a run. ``name`` and ``workflow`` are a stranger's text."""

    id: int
    name: str
    workflow: str
    run: int
    attempt: int
    conclusion: JobConclusion
    head_sha: str
    url: str


def jobs_of(api: GitHubApi, run: int, attempt: int) -> list[GitHubJob]:
    """The jobs of one attempt; those that this attempt did not run again keep their older conclusion."""
    rows = api.pages(f"/actions/runs/{run}/attempts/{attempt}/jobs", "jobs")
    return [_job(row) for row in rows if row.get("status") == "completed"]


def job_of_check(api: GitHubApi, check_run: int) -> GitHubJob:
    """The job behind a check run of Actions: both have one id."""
    return _job(api.get(f"/actions/jobs/{check_run}"))


def log_of(api: GitHubApi, job: GitHubJob) -> bytes:
    return api.download(f"/actions/jobs/{job.id}/logs")


def is_on_branch(api: GitHubApi, commit: str, branch: str) -> bool:
    """Whether a commit is the branch's head or before it: a fork's is not, whatever its branch is called."""
    answer = api.get(f"/compare/{quote(branch, safe='')}...{commit}", per_page=1)
    return answer.get("status") in ("identical", "behind")


def run_report(api: GitHubApi, run: int) -> RunReport | None:
    """One run as the webhook would have told it; None if its head is in a fork."""
    return _report(api.get(f"/actions/runs/{run}"), api.access.repository)


def runs_since(api: GitHubApi, branch: str, day: str) -> Iterator[RunReport]:
    """Finished runs on a branch that were created on or after a day (2026-11-30), the newest first."""
    query = {"branch": branch, "status": "completed", "created": f">={day}"}
    for row in api.pages("/actions/runs", "workflow_runs", **query):
        report = _report(row, api.access.repository)
        if report is not None and report.branch == branch:
            yield report


def _report(row: Mapping[str, Any], repository: str) -> RunReport | None:
    head = row.get("head_repository") or {}
    if head.get("full_name") != repository:
        return None
    return RunReport(
        source=repository,
        workflow=str(row.get("name") or ""),
        branch=str(row.get("head_branch") or ""),
        run=int(row["id"]),
        attempt=int(row.get("run_attempt") or 1),
        head_sha=str(row["head_sha"]),
        conclusion=conclusion_of(row.get("conclusion")),
        url=storable(str(row.get("html_url") or ""), LONGEST_URL),
    )


def _job(row: Mapping[str, Any]) -> GitHubJob:
    return GitHubJob(
        id=int(row["id"]),
        name=storable(str(row["name"]), LONGEST_JOB),
        workflow=str(row.get("workflow_name") or ""),
        run=int(row["run_id"]),
        attempt=int(row.get("run_attempt") or 1),
        conclusion=conclusion_of(row.get("conclusion")),
        head_sha=str(row["head_sha"]),
        url=storable(str(row.get("html_url") or ""), LONGEST_URL),
    )
