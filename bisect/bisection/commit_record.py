"""What the ledger says of each commit: its verdict, its best measurement, its trials as rows.

Derived from measurements whenever it is asked for; nothing is kept and nothing is rendered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from bisection.attribution import choose_measurement
from bisection.commits import Commit, CommitRange, State
from bisection.criteria import Verdict, judge
from bisection.finding import Finding, FindingKind
from bisection.ledger import LedgerEntry
from bisection.measurement import Measurement, Outcome
from bisection.report_parts import TrialRow
from bisection.specification import BisectionSpec


def commit_verdicts(spec: BisectionSpec, ledger: Sequence[LedgerEntry]) -> dict[str, Verdict]:
    """What the trials say of each commit as it is, commits of one state together.

    Good and bad by majority; a state with as many of both, or with neither, is skipped.
    """
    counts: dict[object, Counter[Verdict]] = {}
    keys = {commit.hash: _state_key(commit) for commit in spec.range.commits}
    for entry in ledger:
        state = entry.trial.state
        verdict = judge(spec.criterion, entry.measurement).verdict
        if state.commit in keys and state == State(commit=state.commit) and verdict is not Verdict.RETRY:
            counts.setdefault(keys[state.commit], Counter())[verdict] += 1
    verdicts = {}
    for commit in spec.range.commits:
        if (count := counts.get(keys[commit.hash])) is not None:
            good, bad = count[Verdict.GOOD], count[Verdict.BAD]
            verdicts[commit.hash] = (
                Verdict.SKIP if good == bad else Verdict.GOOD if good > bad else Verdict.BAD
            )
    return verdicts


def compared_commits(
    spec: BisectionSpec, ledger: Sequence[LedgerEntry], finding: Finding
) -> tuple[str, str] | None:
    """The two commits whose measurements tell what grew: a worker gathers evidence for them.

    FOUND: the parent and the culprit. SET: the last good commit before the set, and the first bad
    one at or after its end. NONE, and SET where no trial was judged bad: the two ends. REJECTED: none.
    """
    if finding.kind is FindingKind.REJECTED:
        return None
    unaccused = finding.kind is FindingKind.SET and not any_bad(spec, ledger)
    if finding.kind is FindingKind.NONE or unaccused:
        return spec.range.good.hash, spec.range.bad.hash
    if finding.kind is FindingKind.FOUND and finding.parent:
        return finding.parent, finding.commits[0]
    verdicts = commit_verdicts(spec, ledger)
    hashes = [commit.hash for commit in spec.range.commits]
    first, last = hashes.index(finding.commits[0]), hashes.index(finding.commits[-1])
    before = [c for c in hashes[:first] if verdicts.get(c) is Verdict.GOOD] or [hashes[0]]
    after = [c for c in hashes[last:] if verdicts.get(c) is Verdict.BAD] or [hashes[-1]]
    return before[-1], after[0]


def any_bad(spec: BisectionSpec, ledger: Sequence[LedgerEntry]) -> bool:
    """Whether any trial was judged bad: without one, nothing is known of any commit's guilt."""
    return any(judge(spec.criterion, entry.measurement).verdict is Verdict.BAD for entry in ledger)


def best_measurement(
    commits: CommitRange, ledger: Sequence[LedgerEntry], commit_hash: str
) -> Measurement | None:
    """The best measurement of a commit, or of another commit of the same state."""
    key = _state_key(commit_in(commits, commit_hash))
    same = {commit.hash for commit in commits.commits if _state_key(commit) == key}
    return choose_measurement(
        [
            entry.measurement
            for entry in ledger
            if entry.trial.state.commit in same
            and entry.trial.state == State(commit=entry.trial.state.commit)
            and entry.measurement.outcome is not Outcome.LOST
        ]
    )


def trial_row(spec: BisectionSpec, entry: LedgerEntry) -> TrialRow:
    measurement, trial = entry.measurement, entry.trial
    judgement = judge(spec.criterion, measurement)
    try:
        position = spec.range.position(trial.state.commit)
    except KeyError:
        position = None
    return TrialRow(
        sequence=entry.sequence,
        state=trial.state,
        position=position,
        purpose=trial.purpose,
        attempt=trial.attempt,
        why=trial.why,
        outcome=measurement.outcome,
        verdict=judgement.verdict,
        reason=judgement.why,
        signature=judgement.signature or measurement.signature,
        peak_bytes=measurement.peak.allocated_bytes if measurement.peak else None,
        capacity_bytes=measurement.capacity_bytes,
        useful_tokens_per_second=measurement.useful_tokens_per_second,
        seconds=measurement.seconds,
        worker=measurement.worker,
        device=measurement.device,
        hardware=measurement.hardware,
        real_data=measurement.real_data,
        images=measurement.images,
        notes=measurement.notes,
        artifacts=measurement.artifacts,
    )


def commit_in(commits: CommitRange, commit_hash: str) -> Commit:
    try:
        return commits.commits[commits.position(commit_hash)]
    except KeyError:
        raise ValueError(f"the finding names {commit_hash}, which is not in the range") from None


def _state_key(commit: Commit) -> object:
    """Equal for commits that are one state to the repro; without a tree key, no two are."""
    return (commit.tree_key, commit.environment_key) if commit.tree_key else commit.hash
        taken_from=trial.taken_from,
