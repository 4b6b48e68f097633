"""Where at GitHub a result stands: a check run, a comment, an issue; found again, written, and written anew.

What was written is found by its ids. Should those have been lost between GitHub's answer and our note of it,
it is found by its marker, so that nothing is ever said twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bisection.adapters.storage.announcements import Channel
from bisection.rendering.announcement import Announcement
from workers.github_api import GitHubApi

CHECK_NAME = "firstbad"
Place = Mapping[str, Any]


class NowhereToSay(Exception):
    """There is no such place, e.g. no pull request brought the commit; nothing is wrong."""


def find_or_write(
    api: GitHubApi, channel: Channel, words: Announcement, *, marker: str, commit: str, since: str, page: str
) -> Place:
    """Where it stands now. ``commit`` is the bad end for a check run, the culprit for a comment; ``since`` is
    when the bisection began: nothing of it is older.
    """
    match channel:
        case Channel.CHECK_RUN:
            return _check_run(api, words, marker=marker, commit=commit, page=page)
        case Channel.PULL_REQUEST:
            return _comment(api, words, marker=marker, commit=commit, since=since)
        case Channel.ISSUE:
            return _issue(api, words, marker=marker, since=since)
        case Channel.WEBHOOK:
            raise ValueError("a webhook is no place at GitHub")


def rewrite(api: GitHubApi, channel: Channel, place: Place, words: Announcement, page: str) -> None:
    """What stands there becomes these words."""
    match channel:
        case Channel.CHECK_RUN:
            api.patch(f"/check-runs/{place['id']}", _check_body(words, page))
        case Channel.PULL_REQUEST:
            api.patch(f"/issues/comments/{place['id']}", {"body": words.text})
        case Channel.ISSUE:
            api.patch(f"/issues/{place['number']}", {"title": _issue_title(words), "body": words.text})
        case Channel.WEBHOOK:
            raise ValueError("a webhook is no place at GitHub")


def _check_run(api: GitHubApi, words: Announcement, *, marker: str, commit: str, page: str) -> Place:
    rows = api.pages(f"/commits/{commit}/check-runs", "check_runs", check_name=CHECK_NAME, filter="all")
    for row in rows:
        if row.get("external_id") == marker:
            place = {"id": int(row["id"])}
            rewrite(api, Channel.CHECK_RUN, place, words, page)
            return place
    made = api.post(
        "/check-runs",
        {"name": CHECK_NAME, "head_sha": commit, "external_id": marker, **_check_body(words, page)},
    )
    return {"id": int(made["id"])}


def _check_body(words: Announcement, page: str) -> dict[str, Any]:
    """Neutral: the job beside it is red already, and a check of ours must block nobody."""
    return {
        "status": "completed",
        "conclusion": "neutral",
        "output": {"title": words.title, "summary": words.text},
        **({"details_url": page} if page else {}),
    }


def _comment(api: GitHubApi, words: Announcement, *, marker: str, commit: str, since: str) -> Place:
    number = _pull_request(api, commit)
    # The oldest first: should somebody copy our marker, ours was there before.
    for row in api.pages(f"/issues/{number}/comments", since=since):
        if marker in (row.get("body") or ""):
            place = {"id": int(row["id"]), "number": number}
            rewrite(api, Channel.PULL_REQUEST, place, words, "")
            return place
    made = api.post(f"/issues/{number}/comments", {"body": words.text})
    return {"id": int(made["id"]), "number": number}


def _pull_request(api: GitHubApi, commit: str) -> int:
    """The merged pull request that brought a commit."""
    for row in api.pages(f"/commits/{commit}/pulls"):
        base = ((row.get("base") or {}).get("repo") or {}).get("full_name")
        if row.get("merged_at") and base == api.access.repository:
            return int(row["number"])
    raise NowhereToSay(f"no merged pull request brought {commit[:12]}")


def _issue(api: GitHubApi, words: Announcement, *, marker: str, since: str) -> Place:
    query = {"state": "all", "since": since, "sort": "created", "direction": "asc"}
    for row in api.pages("/issues", **query):
        if marker in (row.get("body") or "") and "pull_request" not in row:
            place = {"number": int(row["number"])}
            rewrite(api, Channel.ISSUE, place, words, "")
            return place
    made = api.post("/issues", {"title": _issue_title(words), "body": words.text})
    return {"number": int(made["number"])}


def _issue_title(words: Announcement) -> str:
    return f"firstbad: {words.title}"
