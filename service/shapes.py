"""What the service answers: the shapes that the client reads back, and how rows become them.

Shapes only grow. A verdict is never stored: it is derived here, as everywhere, by
`criteria.judge`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from bisection.adapters.storage.bisections import BisectionRow, Kind, Status
from bisection.adapters.storage.summaries import Summary
from bisection.adapters.storage.trials import TrialRow, Trials, TrialStatus
from bisection.circumstances import ALONE, Circumstances
from bisection.commit_record import circumstances_of
from bisection.commits import State
from bisection.criteria import Criterion, Judgement, Verdict, judge
from bisection.finding import FindingKind, LevelKind
from bisection.ledger import Purpose
from bisection.measurement import Outcome
from bisection.revert_test import RevertResult
from service.settings import ServiceSettings


class Links(BaseModel):
    """Where to go on from a bisection."""

    self: str
    trials: str
    events: str
    report: str
    page: str = Field(description="The report for people, in a browser.")


class LevelFindingView(BaseModel):
    """What was found one level further down, inside what the culprit carries."""

    model_config = ConfigDict(title="LevelFinding")

    level: LevelKind
    path: str = Field(description="Of the gitlink or the lock; empty for the repository itself.")
    repository: str
    title: str = Field(description="What was looked through.")
    kind: FindingKind
    commits: list[str] = Field(description="Hashes; of steps that are no commits, the service's own.")
    names: list[str] = Field(description="What to call them; may hold subjects: hostile text, escape it.")
    parent: str | None
    lost: bool = Field(
        description="The commit is a fix that the new side lacks; of a merge, one came after it"
    )
    joint: bool = Field(description="Parts of one change that could not be told apart.")
    confidence: float
    why: str
    problem: str


class RevertTestView(BaseModel):
    """What became of the bad end without the culprit."""

    model_config = ConfigDict(title="RevertTest")

    result: RevertResult
    why: str
    commit: str = Field(description="Hash of the state that was made for it; empty where none was.")
    trials: int = Field(description="Trials that were run for it.")


class FindingView(BaseModel):
    """The answer of the search."""

    model_config = ConfigDict(title="Finding")

    kind: FindingKind
    commits: list[str] = Field(description="Hashes, oldest first: one if found, none if none.")
    parent: str | None = Field(description="The last good commit, if a culprit was found.")
    confidence: float
    why: str
    problem: str = Field(description="Name of the page in docs/errors, where there is something to repair.")
    descent: list[LevelFindingView] = Field(
        default=[], description="What the culprit's pins, lock or merged branch hold, outermost first."
    )
    revert: RevertTestView | None = Field(
        default=None, description="The bad end without the culprit; null before that was looked at."
    )


class ApprovalDecision(StrEnum):
    """What somebody decided about GPU hours that a profile allows only with approval."""

    APPROVED = "approved"
    REFUSED = "refused"


class ApprovalView(BaseModel):
    """Who decided about the GPU hours, when and why."""

    model_config = ConfigDict(title="Approval")

    decision: ApprovalDecision
    by: str
    at: str
    reason: str


class RetractionView(BaseModel):
    """Who took the result back, when and why."""

    model_config = ConfigDict(title="Retraction")

    by: str
    at: str
    reason: str


class BisectionSummary(BaseModel):
    """One bisection in a list."""

    id: str
    status: Status
    created_at: str
    updated_at: str
    ended_at: str | None
    source: str = Field(description="Who made it: a token's name, or the webhook's workflow run.")
    cancel_requested: bool
    request: dict[str, Any] = Field(description="The normalised request.")
    finding: FindingView | None
    approval: ApprovalView | None = Field(
        default=None, description="Of GPU hours above the profile's limit; null where nobody decided."
    )
    retraction: RetractionView | None = Field(
        default=None, description="The result was taken back: do not act on it. Null while it stands."
    )
    links: Links


class TrialView(BaseModel):
    """One trial, and what its measurement means under the bisection's criterion."""

    id: str
    ordinal: int
    status: TrialStatus
    purpose: Purpose
    position: int | None = Field(
        description="Place of its commit on the range, 0 is the good end; null off it, and inside a pin."
    )
    why: str = Field(description="What the trial was expected to tell.")
    commit: str
    subject: str = Field(description="First line of the commit's message; hostile text, escape it.")
    pins: dict[str, str]
    packages: dict[str, str]
    attempt: int
    taken_from: str = Field(
        description="Another bisection and the number of its trial, where it was measured; empty: here."
    )
    worker: str | None
    created_at: str
    started_at: str | None
    ended_at: str | None
    progress: str
    sequence: int | None = Field(description="Place in the ledger; null until it is done.")
    outcome: Outcome | None
    reason: str
    verdict: Verdict | None
    verdict_why: str
    value: float | None = Field(description="Peak bytes, or useful tokens a second.")
    limit: float | None
    peak_bytes: int | None
    seconds: float | None


class TrialEvidence(TrialView):
    """One trial with all that it measured."""

    measurement: dict[str, Any] | None = Field(description="The Measurement, as the ledger holds it.")
    reuse_key: str | None = Field(description="Equal for what other bisections would take over; or null.")
    artifacts: dict[str, str] = Field(description="Name to URL.")


class CostView(BaseModel):
    """Trials, and the seconds and GPU hours that they take one after another."""

    model_config = ConfigDict(title="Cost")

    trials: float
    seconds: float | None
    gpu_hours: float | None


class SuspicionView(BaseModel):
    """How likely a step is the first bad one."""

    model_config = ConfigDict(title="Suspicion")

    hash: str
    probability: float


class AnswerSoFar(BaseModel):
    """What is known before the search has ended; confirmed is none of it."""

    level: int = Field(description="0: the range that was asked about; deeper ones lie inside a culprit.")
    after: int = Field(description="Finished trials that it rests on.")
    failed: bool = Field(description="Whether anything failed; before that no suspect is accused.")
    credible: int = Field(description="The fewest suspects that hold 95 % of the belief in suspects.")
    suspects: list[SuspicionView] = Field(description="Of these the likeliest, at most 20, likeliest first.")
    no_culprit: float
    good_end_is_bad: float
    why: str
    spent: CostView
    remaining: CostView | None = Field(
        description="Expected on this level, without flakes or skips; null where the line is too long to say."
    )


class BisectionView(BisectionSummary):
    """One bisection as it stands now."""

    plan: dict[str, Any] | None = Field(
        description="The range, the expected trials, time and GPU hours; null until the refs are resolved."
    )
    hints: list[str] = Field(
        description="What keeps it from going on, and how the operator mends it; empty while nothing does."
    )
    answer_so_far: AnswerSoFar | None = Field(description="Null before the first trial is wanted.")
    trials: list[TrialView]


class BisectionPage(BaseModel):
    """A page of a list, the newest first."""

    items: list[BisectionSummary]
    next: str | None = Field(description="Pass it as 'cursor' for the next page; null: this is the last.")


class TrialList(BaseModel):
    """All trials of a bisection, in the order of their creation."""

    items: list[TrialEvidence]


def links(bisection_id: str, settings: ServiceSettings) -> Links:
    base = settings.url(f"/v1/bisections/{bisection_id}")
    return Links(
        self=base,
        trials=f"{base}/trials",
        events=f"{base}/events",
        report=f"{base}/report",
        page=settings.url(f"/reports/{bisection_id}"),
    )


def _finding(row: BisectionRow | Summary) -> FindingView | None:
    return FindingView.model_validate(row.finding) if row.finding else None


def summarise(row: BisectionRow | Summary, settings: ServiceSettings) -> BisectionSummary:
    return BisectionSummary(
        id=row.id,
        status=row.status,
        created_at=row.created_at,
        updated_at=row.updated_at,
        ended_at=row.ended_at,
        source=row.source,
        cancel_requested=row.cancel_requested,
        request=dict(row.request),
        finding=_finding(row),
        approval=ApprovalView.model_validate(row.approval) if row.approval else None,
        retraction=RetractionView.model_validate(row.retraction) if row.retraction else None,
        links=links(row.id, settings),
    )


def view(
    row: BisectionRow,
    trials: Sequence[TrialRow],
    settings: ServiceSettings,
    hints: Sequence[str],
    so_far: Mapping[str, Any] | None,
) -> BisectionView:
    known = known_beside(row, trials)
    return BisectionView(
        **summarise(row, settings).model_dump(),
        plan=dict(row.plan) if row.plan is not None else None,
        hints=list(hints),
        answer_so_far=AnswerSoFar.model_validate(so_far) if so_far is not None else None,
        trials=[TrialView(**fields) for fields in (_trial_fields(row, trial, known) for trial in trials)],
    )


def evidence(
    row: BisectionRow,
    trial: TrialRow,
    artifact_names: Sequence[str],
    settings: ServiceSettings,
    known: Circumstances,
) -> TrialEvidence:
    base = settings.url(f"/v1/bisections/{row.id}/trials/{trial.id}/artifacts/")
    return TrialEvidence(
        **_trial_fields(row, trial, known),
        measurement=trial.measurement.to_json() if trial.measurement else None,
        reuse_key=trial.reuse_key,
        artifacts={name: base + name for name in artifact_names},
    )


def known_beside(row: BisectionRow, trials: Sequence[TrialRow]) -> Circumstances:
    """What the verdicts of a bisection's trials depend on besides their measurements."""
    spec = row.specification if row.kind is Kind.BISECTION else None
    return circumstances_of(spec.shown, Trials.ledger(trials)) if spec else ALONE


def _criterion(row: BisectionRow) -> Criterion | None:
    # A specification's criterion is the one that the search judged by.
    stored = (row.spec or {}).get("criterion") or row.request.get("criterion")
    return Criterion.from_json(stored) if stored else None


def _position(row: BisectionRow, state: State) -> int | None:
    hashes = [commit["hash"] for commit in (row.spec or {}).get("commits", ())]
    plain = not state.pins and not state.packages
    return hashes.index(state.commit) if plain and state.commit in hashes else None


def _subjects(row: BisectionRow) -> Mapping[str, str]:
    spec = row.spec or {}
    ranges = [spec.get("commits", ()), *(level["commits"] for level in spec.get("opened", ()))]
    return {commit["hash"]: commit["subject"] for commits in ranges for commit in commits}


def _trial_fields(row: BisectionRow, trial: TrialRow, known: Circumstances) -> dict[str, Any]:
    measured = trial.measurement
    criterion = _criterion(row)
    judged: Judgement | None = judge(criterion, measured, known) if criterion and measured else None
    return {
        "id": trial.id,
        "ordinal": trial.ordinal,
        "status": trial.status,
        "purpose": trial.trial.purpose,
        "position": _position(row, trial.trial.state),
        "why": trial.trial.why,
        "commit": trial.trial.state.commit,
        "subject": _subjects(row).get(trial.trial.state.commit, ""),
        "pins": dict(trial.trial.state.pins),
        "packages": dict(trial.trial.state.packages),
        "attempt": trial.trial.attempt,
        "taken_from": trial.trial.taken_from,
        "worker": trial.worker,
        "created_at": trial.created_at,
        "started_at": trial.started_at,
        "ended_at": trial.ended_at,
        "progress": trial.progress,
        "sequence": trial.sequence,
        "outcome": measured.outcome if measured else None,
        "reason": measured.reason if measured else "",
        "verdict": judged.verdict if judged else None,
        "verdict_why": judged.why if judged else "",
        "value": judged.value if judged else None,
        "limit": judged.limit if judged else None,
        "peak_bytes": measured.peak.allocated_bytes if measured and measured.peak else None,
        "seconds": measured.seconds if measured else None,
    }
