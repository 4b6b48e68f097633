"""`settle`: decide upon what a CI reported of one repository, the oldest run first.

A delivery waits in the database until it is decided. Where GitHub is away it is tried again, and those after
it wait: a failure's range starts at the green run before it. What cannot be decided is kept as failed, with
the repair, and may be released.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import structlog

from bisection.adapters.catalogue import CatalogueError, RepositoryEntry
from bisection.adapters.nightlies import JobRules
from bisection.adapters.run_reports import RunReport
from bisection.adapters.storage.deliveries import Deliveries, Delivery, DeliveryStatus
from bisection.adapters.storage.job_runs import JobRuns
from workers.context import WorkerContext
from workers.github_api import GitHubApi, GitHubAway, GitHubRefused
from workers.github_runs import runs_since
from workers.nightly_jobs import JobDecision, JobOutcome, NightlyJobs
from workers.nightly_reading import read_jobs

log = structlog.get_logger(__name__)

#: One task works for so long, then makes room for others' on the control queue.
TURN_SECONDS = 10.0
#: With the pauses between them: about half a day.
MOST_TRIES = 20
_SHORTEST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 5.0, 3600.0
#: A fault of our own is no matter of patience.
MOST_FAULTS = 3
#: Runs are listed by the day of their creation, and may take long: what is known already is left out.
OVERLAP_DAYS, FIRST_DAYS = 2, 7


class NotForUs(ValueError):
    """The repository's file no longer says what the report needs; the operator can mend that."""


def settle(context: WorkerContext, repository: str) -> None:
    """Decide upon deliveries of a repository until none is due, or the turn is over."""
    deliveries = Deliveries(context.database)
    turn_ends = time.monotonic() + TURN_SECONDS
    while (delivery := deliveries.next_of(repository)) is not None and delivery.due_at <= time.time():
        if time.monotonic() > turn_ends:
            context.hints.settle(repository)
            return
        _settle_one(context, deliveries, delivery)


def _settle_one(context: WorkerContext, deliveries: Deliveries, delivery: Delivery) -> None:
    try:
        if delivery.report is None:
            found = _catch_up(context, deliveries, delivery)
            deliveries.settle(delivery.id, DeliveryStatus.SETTLED, found)
            return
        outcomes = _outcomes(context, delivery, delivery.report)
    except GitHubAway as error:
        _try_later(deliveries, delivery, str(error), error.seconds)
    except GitHubRefused as error:
        deliveries.settle(delivery.id, DeliveryStatus.FAILED, f"{error}. Repair: {error.repair}.")
    except (CatalogueError, NotForUs) as error:
        deliveries.settle(delivery.id, DeliveryStatus.FAILED, f"{error}. Mend the file, then release this.")
    except Exception as error:
        log.exception("a delivery could not be settled", delivery=delivery.id)
        if delivery.tries + 1 >= MOST_FAULTS:
            why = f"firstbad itself failed: {type(error).__name__}: {error}. Please report it."
            deliveries.settle(delivery.id, DeliveryStatus.FAILED, why)
        else:
            deliveries.postpone(delivery.id, delivery.tries + 1, _SHORTEST_PAUSE_SECONDS, str(error)[:500])
    else:
        held = any(outcome.decision is JobDecision.HELD for outcome in outcomes)
        deliveries.settle(
            delivery.id,
            DeliveryStatus.HELD if held else DeliveryStatus.SETTLED,
            _in_short(outcomes),
            outcomes=[outcome.to_json() for outcome in outcomes],
            bisection_id=next((one.bisection for one in outcomes if one.bisection), None),
        )


def _try_later(deliveries: Deliveries, delivery: Delivery, why: str, seconds: float) -> None:
    if delivery.tries + 1 >= MOST_TRIES:
        deliveries.settle(delivery.id, DeliveryStatus.FAILED, f"{why}. Tried {MOST_TRIES} times. Release it.")
        return
    pause = min(_LONGEST_PAUSE_SECONDS, max(seconds, _SHORTEST_PAUSE_SECONDS * 2**delivery.tries))
    deliveries.postpone(delivery.id, delivery.tries + 1, pause, f"{why}; tried again in {pause:.0f} s")


def _outcomes(context: WorkerContext, delivery: Delivery, report: RunReport) -> list[JobOutcome]:
    entry = context.catalogue.repository(delivery.repository or "")
    jobs = NightlyJobs(context, entry, _rules(entry, report), released=delivery.released)
    read = read_jobs(entry, report)
    if isinstance(read, JobOutcome):
        return [read]
    with read as finished:
        return [jobs.decide(job) for job in finished]


def _rules(entry: RepositoryEntry, report: RunReport) -> JobRules:
    rules = entry.ci if report.source.startswith("ci:") else entry.webhook
    if rules is None:
        raise NotForUs(f"repository {entry.name} has no {'ci' if entry.webhook else 'webhook'} any more")
    return rules


def _in_short(outcomes: Sequence[JobOutcome]) -> str:
    if len(outcomes) == 1:
        return f"{outcomes[0].decision}: {outcomes[0].why}"
    counts = Counter(outcome.decision.value for outcome in outcomes)
    return ", ".join(f"{count} {decision}" for decision, count in counts.most_common()) or "no job finished"


def _catch_up(context: WorkerContext, deliveries: Deliveries, delivery: Delivery) -> str:
    """Takes every finished run that is not known yet as if it had been delivered."""
    entry = context.catalogue.repository(delivery.repository or "")
    webhook, access = entry.webhook, entry.github
    if webhook is None or access is None:
        raise NotForUs(f"repository {entry.name} has no webhook or no github any more")
    runs = JobRuns(context.database)
    day = _first_day(runs.newest_seen_at(webhook.github))
    missed = 0
    with GitHubApi(access) as api:
        for branch in webhook.branches:
            for report in runs_since(api, branch, day):
                if report.workflow not in webhook.workflows:
                    continue
                if runs.knows(report.source, report.run, report.attempt):
                    continue
                name = f"run-{entry.name}-{report.run}-{report.attempt}"
                missed += deliveries.store(name, "workflow_run", entry.name, report)
    return f"caught up: {missed} runs since {day} were missed"


def _first_day(newest: str | None) -> str:
    if newest is None:
        return (datetime.now(UTC) - timedelta(days=FIRST_DAYS)).date().isoformat()
    return (datetime.fromisoformat(newest) - timedelta(days=OVERLAP_DAYS)).date().isoformat()
