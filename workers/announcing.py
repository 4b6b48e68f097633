"""`announce`: say one result at one place, once; and say it anew when it was retracted.

What is to be said is a row of the outbox from before the bisection ended until it was said. It is claimed
first; what is sent can be told from a repetition at the other end, by a marker or by an id.
"""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import structlog

from bisection.adapters.catalogue import Catalogue, CatalogueError, RepositoryEntry
from bisection.adapters.nightlies import OutgoingWebhook
from bisection.adapters.run_reports import JobConclusion
from bisection.adapters.standard_webhooks import secrets_in, signature
from bisection.adapters.storage.announcements import (
    Announcement,
    Announcements,
    AnnouncementStatus,
    Channel,
)
from bisection.adapters.storage.bisections import BisectionRow
from bisection.adapters.storage.job_runs import JobRuns
from bisection.finding import FindingKind
from bisection.rendering import announcement as words
from bisection.rendering.wording import disproof
from bisection.report import CulpritReport
from workers.context import WorkerContext
from workers.github_api import GitHubApi, GitHubAway, GitHubRefused
from workers.github_places import NowhereToSay, find_or_write, rewrite

log = structlog.get_logger(__name__)

#: With the pauses between them: about a day.
MOST_TRIES = 30
_SHORTEST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 5.0, 3600.0
_WEBHOOK_SECONDS = 15.0


class Unheard(Exception):
    """The other side of a webhook did not take the message; it is sent again."""


class CannotSay(Exception):
    """Repeating changes nothing. The text says what does."""


def plan_announcements(context: WorkerContext, row: BisectionRow) -> None:
    """Before the bisection ends. Only what a nightly started is told: a person's own bisection is theirs."""
    entry = _entry(context.catalogue, row)
    if entry is None or not JobRuns(context.database).of_bisection(row.id):
        return
    wanted = entry.announce
    channels = [
        channel
        for channel, asked in (
            (Channel.CHECK_RUN, wanted.check_run),
            (Channel.PULL_REQUEST, wanted.pull_request),
            (Channel.ISSUE, wanted.issue),
            (Channel.WEBHOOK, wanted.webhook is not None),
        )
        if asked
    ]
    Announcements(context.database).plan(row.id, channels)


def announce_due(context: WorkerContext) -> None:
    """Send the hints of what is to be said; of what was said and retracted since, too."""
    outbox = Announcements(context.database)
    outbox.renew_retracted()
    for announcement_id in outbox.due():
        context.hints.announce(announcement_id)


def announce(context: WorkerContext, announcement_id: str) -> None:
    outbox = Announcements(context.database)
    claimed = outbox.claim(announcement_id)
    if claimed is None:
        return
    row = context.bisections.get(claimed.bisection_id)
    retracted = row.retraction is not None
    try:
        said = _say(context, outbox, claimed, row)
    except NowhereToSay as error:
        outbox.settle(claimed, AnnouncementStatus.NEEDLESS, str(error), retracted=retracted)
    except GitHubRefused as error:
        why = f"{error}. Repair: {error.repair}."
        outbox.settle(claimed, AnnouncementStatus.FAILED, why, retracted=retracted)
    except (CannotSay, CatalogueError) as error:
        outbox.settle(claimed, AnnouncementStatus.FAILED, str(error), retracted=retracted)
    except (GitHubAway, Unheard) as error:
        _try_later(outbox, claimed, str(error), getattr(error, "seconds", 0.0), retracted=retracted)
    except Exception as error:
        log.exception("an announcement failed", announcement=announcement_id)
        _try_later(outbox, claimed, f"{type(error).__name__}: {error}"[:500], 0.0, retracted=retracted)
    else:
        outbox.settle(claimed, AnnouncementStatus.SAID, said, retracted=retracted)


def _try_later(
    outbox: Announcements, claimed: Announcement, why: str, seconds: float, *, retracted: bool
) -> None:
    if claimed.tries + 1 >= MOST_TRIES:
        told = f"{why}. Tried {MOST_TRIES} times."
        outbox.settle(claimed, AnnouncementStatus.FAILED, told, retracted=retracted)
        return
    pause = min(_LONGEST_PAUSE_SECONDS, max(seconds, _SHORTEST_PAUSE_SECONDS * 2**claimed.tries))
    outbox.postpone(claimed, pause, why)


def _entry(catalogue: Catalogue, row: BisectionRow) -> RepositoryEntry | None:
    try:
        return catalogue.repository(str(row.profile.get("repository")))
    except CatalogueError:
        return None


def _say(context: WorkerContext, outbox: Announcements, claimed: Announcement, row: BisectionRow) -> str:
    """What was said, for the event. Raises what `announce` catches."""
    entry = _entry(context.catalogue, row)
    if entry is None or row.report is None:
        raise CannotSay("the repository is not registered any more")
    report = CulpritReport.from_json(row.report)
    silence = words.reason_for_silence(report, entry.announce.confidence)
    if silence and claimed.place is None:
        raise NowhereToSay(silence)
    if row.retraction is not None and claimed.place is None:
        raise NowhereToSay("it was retracted before it was said")
    if claimed.channel is Channel.WEBHOOK:
        return _send(context, outbox, claimed, row, report, entry.announce.webhook)
    return _write(context, outbox, claimed, row, report, entry)


def _page(context: WorkerContext, row: BisectionRow) -> str:
    """The report's address; "" where only this machine could open it."""
    return f"{context.public_url}/reports/{row.id}" if context.public_url else ""


def _write(
    context: WorkerContext,
    outbox: Announcements,
    claimed: Announcement,
    row: BisectionRow,
    report: CulpritReport,
    entry: RepositoryEntry,
) -> str:
    if entry.github is None:
        raise CannotSay("'github' is gone from the repository's file: add it again")
    spec = row.specification
    assert spec is not None  # a search that names a commit was resolved
    commit = spec.range.bad.hash
    if claimed.channel is Channel.PULL_REQUEST:
        if report.finding.kind is not FindingKind.FOUND or report.culprit is None:
            raise NowhereToSay("a comment is made for one culprit alone, and this is a set")
        commit = report.culprit.hash
    # The row's own id cannot be guessed: nobody can have put our marker there before us.
    marker = f"firstbad {row.id} {claimed.id}"
    page = _page(context, row)
    failures = [
        words.FailedRun(job=run.job.name, commit=run.head_sha, url=run.url)
        for run in JobRuns(context.database).of_bisection(row.id)
        if run.conclusion is JobConclusion.FAILURE
    ]
    said = words.announce(report, marker=marker, page=page, failures=failures, retraction=row.retraction)
    with GitHubApi(entry.github) as api:
        if claimed.place is None:
            place = find_or_write(
                api, claimed.channel, said, marker=marker, commit=commit, since=row.created_at[:19] + "Z",
                page=page,
            )  # fmt: skip
            outbox.place(claimed, place)
        else:
            place = claimed.place
            rewrite(api, claimed.channel, place, said, page)
    where = place.get("number") or place.get("id")
    told = f"{claimed.channel.replace('_', ' ')} {where} of {entry.github.repository}"
    return f"{told}: the retraction" if row.retraction is not None else told


def _send(
    context: WorkerContext,
    outbox: Announcements,
    claimed: Announcement,
    row: BisectionRow,
    report: CulpritReport,
    webhook: OutgoingWebhook | None,
) -> str:
    """One message, told from its repetitions by its id. Redirects are not followed."""
    if webhook is None:
        raise CannotSay("announce.webhook is gone from the repository's file: add it again")
    try:
        secrets = secrets_in(Path(webhook.secret_file).read_bytes())
    except OSError as error:
        raise CannotSay(f"announce.webhook.secret_file cannot be read: {error.strerror}") from None
    if not secrets:
        raise CannotSay("announce.webhook.secret_file is empty: put the secret in it")
    kind = "result.retracted" if row.retraction is not None else "result.found"
    body = json.dumps(_message(kind, _page(context, row), row, report)).encode()
    message_id, stamp = f"{claimed.id}.{kind}", str(int(time.time()))
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "firstbad",
        "webhook-id": message_id,
        "webhook-timestamp": stamp,
        # One a secret: while it is rotated, the receiver may know the old one or the new one.
        "webhook-signature": " ".join(signature(one, message_id, stamp, body) for one in secrets),
    }
    try:
        answer = httpx.post(
            webhook.url, content=body, headers=headers, timeout=_WEBHOOK_SECONDS, follow_redirects=False
        )
    except httpx.HTTPError as error:
        raise Unheard(f"{webhook.url} does not answer: {type(error).__name__}") from None
    if not answer.is_success:
        raise Unheard(f"{webhook.url} answered {answer.status_code}")
    outbox.place(claimed, {"webhook": webhook.url})
    return f"{kind} was sent to {webhook.url}"


def _message(kind: str, page: str, row: BisectionRow, report: CulpritReport) -> dict[str, Any]:
    finding = report.finding
    return {
        "version": 1,
        "type": kind,
        "timestamp": datetime.now(UTC).isoformat(timespec="seconds"),
        "data": {
            "bisection": row.id,
            "repository": row.profile.get("repository"),
            "profile": row.profile.get("name"),
            "summary": report.summary,
            "finding": finding.kind.value,
            "commits": list(finding.commits),
            "parent": finding.parent,
            "confidence": finding.confidence,
            "disproof": disproof(report),
            "simulated": report.simulated,
            "retraction": dict(row.retraction) if row.retraction is not None else None,
            "report": page or None,
        },
    }
