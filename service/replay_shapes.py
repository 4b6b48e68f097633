"""What a replay answers: the finding under another criterion, or what is missing for one."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field

from bisection.adapters.storage.trials import TrialRow
from bisection.criteria import Verdict
from bisection.ledger import Purpose
from bisection.replaying import Replay
from service.shapes import AnswerSoFar, FindingView


class RejudgedTrial(BaseModel):
    """A trial whose verdict is another one under the new criterion."""

    ordinal: int
    trial: str
    commit: str
    before: Verdict
    after: Verdict
    why: str = Field(description="What the new verdict rests on.")


class WantedTrial(BaseModel):
    """A trial that would be started next."""

    commit: str
    subject: str = Field(description="First line of the commit's message; hostile text, escape it.")
    pins: dict[str, str]
    packages: dict[str, str]
    purpose: Purpose
    why: str


class ReplayView(BaseModel):
    """What the measurements of an ended bisection say under another criterion."""

    model_config = ConfigDict(title="Replay")

    finding: FindingView | None = Field(description="Null while trials are wanted.")
    wanted: list[WantedTrial] = Field(
        description="The trials that would be started next; `answer_so_far.remaining` expects them all."
    )
    answer_so_far: AnswerSoFar
    measurements: int = Field(description="That count, and would be taken over.")
    changed: list[RejudgedTrial] = Field(description="Of these, those with another verdict than before.")
    left_behind: list[int] = Field(
        description="Ordinals of trials that tell nothing under this criterion, and would be measured anew."
    )


def show_replay(told: Replay, trials: Sequence[TrialRow]) -> ReplayView:
    by_sequence = {trial.sequence: trial for trial in trials}
    subjects = {commit.hash: commit.subject for level in told.spec.levels for commit in level.range.commits}
    changed = []
    for one in told.judged:
        if one.before.verdict is not one.after.verdict:
            row = by_sequence[one.entry.sequence]
            changed.append(
                RejudgedTrial(
                    ordinal=row.ordinal,
                    trial=row.id,
                    commit=row.trial.state.commit,
                    before=one.before.verdict,
                    after=one.after.verdict,
                    why=one.after.why,
                )
            )
    return ReplayView(
        finding=FindingView.model_validate(told.finding.to_json()) if told.finding else None,
        wanted=[
            WantedTrial(
                commit=trial.state.commit,
                subject=subjects.get(trial.state.commit, ""),
                pins=dict(trial.state.pins),
                packages=dict(trial.state.packages),
                purpose=trial.purpose,
                why=trial.why,
            )
            for trial in told.wanted
        ],
        answer_so_far=AnswerSoFar.model_validate(told.so_far.to_json()),
        measurements=len(told.judged),
        changed=changed,
        left_behind=[by_sequence[entry.sequence].ordinal for entry in told.left_behind],
    )
