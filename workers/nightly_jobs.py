"""What follows from one finished job: it is remembered, or starts a bisection, or joins one, or ends one.

The range of a failure goes from the job's last green commit to the first one at which it failed with the
same signature. For one such failure there is one bisection; later nights attach to it. A job that passes
when it is run again at the same commit was flaky, and its bisection ends. Everything here may be done
twice without harm.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from bisection.adapters.catalogue import BadCatalogueFile, Profile, RepositoryEntry
from bisection.adapters.nightlies import JobRule, JobRules
from bisection.adapters.run_reports import JobConclusion, RunReport
from bisection.adapters.storage.bisections import BisectionRow, Status
from bisection.adapters.storage.job_runs import Job, JobRun, JobRuns
from bisection.finding import Finding, FindingKind
from workers.ci_logs import LogReading, read_log
from workers.context import WorkerContext
from workers.nightly_criteria import nightly_criterion
from workers.nightly_limits import over_limit
from workers.nightly_requests import nightly_request
from workers.signatures import FailureKind

#: Answers that the next night's failure would only repeat.
_ANSWERED = (FindingKind.FOUND.value, FindingKind.SET.value)


class JobDecision(StrEnum):
    """What was done."""

    STARTED = "started"  #: a bisection was created
    ATTACHED = "attached"  #: a bisection of this failure exists
    RECORDED = "recorded"  #: remembered as green
    CLOSED = "closed"  #: it passed when run again: its bisection ends as flaky
    IGNORED = "ignored"
    REFUSED = "refused"
    HELD = "held"  #: a limit of the day; somebody may release it
    DUPLICATE = "duplicate"  #: this attempt was settled before


@dataclass(frozen=True, kw_only=True)
class JobOutcome:
    """What was done about one job, and why."""

    job: str
    decision: JobDecision
    why: str
    repair: str = ""
    bisection: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "decision": self.decision.value}


@dataclass(frozen=True, kw_only=True)
class FinishedJob:
    """One job of a reported run. ``log`` is asked for a failure's alone: fetching it costs a request."""

    report: RunReport
    name: str
    attempt: int
    conclusion: JobConclusion
    url: str
    log: Callable[[], str]


class NightlyJobs:
    """Decides for the jobs of one repository."""

    def __init__(
        self, context: WorkerContext, entry: RepositoryEntry, rules: JobRules, *, released: bool
    ) -> None:
        self._context = context
        self._entry = entry
        self._rules = rules
        self._released = released
        self._runs = JobRuns(context.database)

    def decide(self, finished: FinishedJob) -> JobOutcome:
        """Raises BadCatalogueFile where a rule names what is not there, and what fetching the log raises."""
        report = finished.report
        job = Job(source=report.source, workflow=report.workflow, branch=report.branch, name=finished.name)
        rule = (
            JobRule(job="*", profile=report.profile)
            if report.profile
            else self._rules.rule_for(finished.name, report.recipe)
        )
        if rule is None:
            return _outcome(finished, JobDecision.IGNORED, "no rule in 'jobs' fits it")
        known = self._runs.get(job, report.run)
        if known is not None and _is_settled(known, finished):
            why = f"attempt {known.attempt} of this run was settled before: {known.conclusion}"
            return _outcome(finished, JobDecision.DUPLICATE, why, bisection=known.bisection_id)
        if finished.conclusion is JobConclusion.FAILURE:
            return self._failed(finished, job, rule)
        self._record(finished, job, finished.conclusion)
        if finished.conclusion is JobConclusion.UNKNOWN:
            why = "it ended without telling good from bad (neither success nor failure): unknown, never green"
            return _outcome(finished, JobDecision.IGNORED, why)
        return self._passed(finished, job)

    def _record(
        self, finished: FinishedJob, job: Job, conclusion: JobConclusion, signature: str = ""
    ) -> None:
        self._runs.record(
            JobRun(
                job=job,
                run=finished.report.run,
                attempt=finished.attempt,
                conclusion=conclusion,
                head_sha=finished.report.head_sha,
                signature=signature,
                url=finished.url,
            )
        )

    def _passed(self, finished: FinishedJob, job: Job) -> JobOutcome:
        """Green. Where it had failed at the same commit, that failure was a flake."""
        for bisection_id in self._runs.bisections_at(job, finished.report.head_sha):
            if self._existing(bisection_id) is None:
                continue
            later = [
                run
                for run in self._runs.of_bisection(bisection_id)
                if run.conclusion is JobConclusion.FAILURE and run.head_sha != finished.report.head_sha
            ]
            if not later and self._close(bisection_id, finished):
                why = "it passed when it was run again at the same commit: the failure was flaky"
                return _outcome(finished, JobDecision.CLOSED, why, bisection=bisection_id)
            self._context.bisections.note(
                bisection_id,
                "passed_again",
                {"commit": finished.report.head_sha, "url": finished.url, "job": finished.name},
            )
        return _outcome(finished, JobDecision.RECORDED, "it is remembered as green")

    def _close(self, bisection_id: str, finished: FinishedJob) -> bool:
        """False if its answer rests on trials of its own already."""
        finding = Finding(
            kind=FindingKind.NONE,
            why=f"The job passed when it was run again at the same commit, {finished.report.head_sha}"
            f"{f' ({finished.url})' if finished.url else ''}: it is flaky, and no commit is to blame.",
            problem="went-green",
        )
        if not self._context.bisections.conclude(bisection_id, finding):
            return False
        self._context.trials.cancel_all(bisection_id)
        self._context.hints.advance(bisection_id)
        return True

    def _failed(self, finished: FinishedJob, job: Job, rule: JobRule) -> JobOutcome:
        reading = read_log(finished.log())
        if reading.kind is FailureKind.FLAKY:
            self._record(finished, job, JobConclusion.UNKNOWN, reading.signature)
            why = f"its log tells of the machinery, not of the code ({reading.signature}): unknown"
            return _outcome(finished, JobDecision.IGNORED, why, repair="Run the job again.")
        self._record(finished, job, JobConclusion.FAILURE, reading.signature)
        report = finished.report
        last = self._runs.last_green_before(job, report.run)
        good = report.good or (last.head_sha if last else self._rules.good)
        if good is None:
            return _outcome(
                finished,
                JobDecision.IGNORED,
                "no last green is known: no successful run of this job and branch was reported yet",
                repair="Set 'good' in the repository's file, or POST /v1/bisections yourself.",
            )
        if good == report.head_sha or self._runs.green_at(job, report.head_sha):
            return _outcome(
                finished,
                JobDecision.IGNORED,
                "the same commit was green in another run, so no commit is to blame",
                repair="Run the job again; look at what changed outside the repository.",
            )
        first = self._runs.first_failure_after(job, last.run if last else 0, reading.signature)
        bad = first.head_sha if first and not report.good else report.head_sha
        standing = self._standing(first)
        if standing is not None:
            return self._attach(finished, job, reading, standing)
        outcome = self._start(finished, job, rule, reading, good, bad)
        if first is not None and outcome.bisection is not None:
            # It may be older than anything that was let through: later nights look there.
            self._runs.attach(job, first.run, outcome.bisection)
        return outcome

    def _standing(self, first: JobRun | None) -> BisectionRow | None:
        """The bisection that explains this failure, open or answered."""
        row = self._existing(first.bisection_id) if first and first.bisection_id else None
        if row is None:
            return None
        if row.status is not Status.ENDED:
            return row
        answered = (row.finding or {}).get("kind") in _ANSWERED and row.retraction is None
        return row if answered else None

    def _existing(self, bisection_id: str) -> BisectionRow | None:
        """None for one that was deleted since."""
        try:
            return self._context.bisections.get(bisection_id)
        except KeyError:
            return None

    def _attach(self, finished: FinishedJob, job: Job, reading: LogReading, row: BisectionRow) -> JobOutcome:
        self._runs.attach(job, finished.report.run, row.id)
        self._context.bisections.note(
            row.id,
            "failed_again",
            {
                "commit": finished.report.head_sha,
                "url": finished.url,
                "job": finished.name,
                "signature": reading.signature,
            },
        )
        why = "a bisection of this failure exists" + (
            ", and has its answer" if row.status is Status.ENDED else ""
        )
        return _outcome(finished, JobDecision.ATTACHED, why, bisection=row.id)

    def _start(
        self, finished: FinishedJob, job: Job, rule: JobRule, reading: LogReading, good: str, bad: str
    ) -> JobOutcome:
        held = None if self._released else over_limit(self._context, self._entry)
        if held:
            return _outcome(
                finished,
                JobDecision.HELD,
                held,
                repair="`firstbad release ID` lets it through; 'limits' stand in the repository's file.",
            )
        profile = self._profile(rule)
        request = nightly_request(
            profile,
            good=good,
            bad=bad,
            criterion=nightly_criterion(rule, reading, profile),
            overrides=finished.report.overrides,
            gpu_hours=self._entry.limits.gpu_hours,
        )
        report = finished.report
        row, new = self._context.bisections.create(
            request=request,
            profile=profile.model_dump(mode="json"),
            source=_source(report)[:200],
            # A report that is repeated starts nothing, even after the bisection has ended.
            idempotency_key=_digest(report.source, finished.name, report.run, finished.attempt),
            failure_key=_digest(report.source, finished.name, bad, reading.signature),
        )
        if not new:
            return self._attach(finished, job, reading, row)
        self._runs.attach(job, report.run, row.id)
        self._context.hints.advance(row.id)
        told = f" with {reading.signature}" if reading.signature else ""
        why = f"the job failed{told}; the range is {good[:40]}..{bad}"
        return _outcome(finished, JobDecision.STARTED, why, bisection=row.id)

    def _profile(self, rule: JobRule) -> Profile:
        assert rule.profile is not None  # the rules were checked when the file was read
        profile = self._context.catalogue.profile(rule.profile)
        if profile.repository != self._entry.name:
            raise BadCatalogueFile(
                f"the rule for {rule.job!r} of {self._entry.name} names profile {profile.name}, which is of "
                f"{profile.repository}: name a profile of {self._entry.name}"
            )
        return profile


def _is_settled(known: JobRun, finished: FinishedJob) -> bool:
    """A failure that started nothing yet, as it was held or no green was known, is looked at again."""
    if known.attempt != finished.attempt:
        return known.attempt > finished.attempt
    return known.conclusion is not JobConclusion.FAILURE or known.bisection_id is not None


def _source(report: RunReport) -> str:
    if report.source.startswith("ci:"):
        return f"{report.source}/{report.job or ''}/{report.run}"
    if report.check_run is not None and not report.is_actions:
        return f"github:{report.source}/check-runs/{report.check_run}"
    return f"github:{report.source}/actions/runs/{report.run}"


def _digest(*words: Any) -> str:
    return "nightly:" + hashlib.sha256(json.dumps(words).encode()).hexdigest()


def _outcome(
    finished: FinishedJob,
    decision: JobDecision,
    why: str,
    *,
    repair: str = "",
    bisection: str | None = None,
) -> JobOutcome:
    return JobOutcome(job=finished.name, decision=decision, why=why, repair=repair, bisection=bisection)
