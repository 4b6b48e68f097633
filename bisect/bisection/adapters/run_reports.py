"""What a CI reports of one run, whichever CI it is: the shape between intake and decision. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

LONGEST_JOB = 300
LONGEST_URL = 500


def storable(text: str, most: int) -> str:
    """A stranger's text without what no database takes: NUL, and halves of surrogate pairs."""
    return text.replace("\0", "").encode("utf-8", "replace").decode()[:most]


class JobConclusion(StrEnum):
    """What a finished run of a job says."""

    SUCCESS = "success"
    FAILURE = "failure"
    UNKNOWN = "unknown"  #: cancelled, skipped and the like: neither green nor red


def conclusion_of(word: str | None) -> JobConclusion:
    """What GitHub's conclusion means. A run that was ended for its time tells nothing of its work."""
    return {"success": JobConclusion.SUCCESS, "failure": JobConclusion.FAILURE}.get(
        word or "", JobConclusion.UNKNOWN
    )


@dataclass(frozen=True, kw_only=True)
class RunReport:
    """One finished run. ``job`` is None for a whole workflow run, whose jobs GitHub is asked for."""

    source: str  #: whose run numbers these are: owner/name at GitHub, "ci:NAME" for another CI
    workflow: str
    branch: str
    run: int  #: grows from run to run of one source
    attempt: int = 1
    head_sha: str
    conclusion: JobConclusion
    url: str = ""
    job: str | None = None
    check_run: int | None = None  #: GitHub's id, where a check run was reported
    is_actions: bool = True  #: GitHub's own runner reported it: run, jobs and logs can be asked for
    log: str = ""  #: what the report itself brings of it
    recipe: str = ""
    profile: str = ""  #: named by the sender; empty: the rules say it
    good: str = ""  #: where the range starts, as the sender says; empty: the last green run
    overrides: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "conclusion": self.conclusion.value}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> RunReport:
        return cls(**{**row, "conclusion": JobConclusion(row["conclusion"])})
