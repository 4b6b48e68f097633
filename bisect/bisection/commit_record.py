"""What the ledger says of each commit: its verdict, its best measurement, its trials as rows.

Derived from measurements whenever it is asked for; nothing is kept and nothing is rendered. Commits are
those of the specification's level 0 (`BisectionSpec.shown` makes it the one that is reported).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from bisection.answers import OTHER_WORK_PROBLEM
from bisection.attribution import choose_measurement
from bisection.circumstances import Circumstances, circumstances
from bisection.commits import Commit, CommitRange, State
from bisection.criteria import Verdict, judge
from bisection.finding import Finding, FindingKind, LevelFinding
from bisection.ledger import LedgerEntry
from bisection.levels import Level
from bisection.measurement import Measurement, Outcome
from bisection.report_parts import TrialRow
from bisection.specification import BisectionSpec
from bisection.states import Line


def commit_verdicts(spec: BisectionSpec, ledger: Sequence[LedgerEntry]) -> dict[str, Verdict]:
    """What the trials say of each commit, commits of one state together.

    Good and bad by majority; a state with as many of both, or with neither, is skipped.
    """
    counts: dict[object, Counter[Verdict]] = {}
    keys, known = _state_keys(spec), circumstances_of(spec, ledger)
    for entry in ledger:
        if not entry.trial.is_evidence:
            continue
        verdict = judge(spec.criterion, entry.measurement, known).verdict
        if entry.trial.state in keys and verdict is not Verdict.RETRY:
            counts.setdefault(keys[entry.trial.state], Counter())[verdict] += 1
    verdicts = {}
    for commit in spec.range.commits:
        if (count := counts.get(_state_key(commit))) is not None:
            good, bad = count[Verdict.GOOD], count[Verdict.BAD]
            verdicts[commit.hash] = (
                Verdict.SKIP if good == bad else Verdict.GOOD if good > bad else Verdict.BAD
            )
    return verdicts


def compared_commits(
    spec: BisectionSpec, ledger: Sequence[LedgerEntry], finding: Finding
) -> tuple[str, str] | None:
    """The two commits whose measurements tell what grew: a worker gathers evidence for them.

    FOUND: the parent and the culprit. SET: the last good commit before the set, and the first bad one at
    or after its end. NONE because the work changed: before and after that. Any other NONE, and SET where
    no trial was judged bad: the two ends. REJECTED: none.
    """
    if finding.kind is FindingKind.REJECTED:
        return None
    if finding.problem == OTHER_WORK_PROBLEM and finding.others:
        changed = finding.others[0]
        return changed.parent, changed.commits[-1]
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
    known = circumstances_of(spec, ledger)
    return any(judge(spec.criterion, entry.measurement, known).verdict is Verdict.BAD for entry in ledger)


def circumstances_of(spec: BisectionSpec, ledger: Sequence[LedgerEntry]) -> Circumstances:
    """What the verdicts of level 0 depend on besides their measurements."""
    states = spec.levels[0].states
    return circumstances(states[0], states[-1], ledger, spec.workers)


def equal_states(spec: BisectionSpec, commit_hash: str) -> frozenset[State]:
    """The states of a commit and of all others that are one state with it."""
    key = _state_key(commit_in(spec.range, commit_hash))
    return frozenset(state for state, other in _state_keys(spec).items() if other == key)


def compared_states(
    spec: BisectionSpec, ledger: Sequence[LedgerEntry], finding: Finding
) -> tuple[frozenset[State], frozenset[State]] | None:
    """The states whose measurements tell what grew, each with those that equal it.

    Where the descent found a step whose two sides were both measured, the innermost such step's: between
    them lies nothing but what is to blame. Else those of `compared_commits`. ``spec`` has all levels.
    """
    pair = compared_commits(spec.shown, ledger, finding)
    if pair is None:
        return None
    if finding.kind is FindingKind.FOUND:
        measured = {entry.trial.state for entry in ledger if entry.measurement.peak is not None}
        below = spec.levels[spec.ground + 1 :]
        for level, found in reversed(list(zip(below, finding.descent, strict=False))):
            sides = _sides_of(level, found)
            if sides and all(side & measured for side in sides):
                return sides
    before, after = (equal_states(spec.shown, commit) for commit in pair)
    return before, after


def _sides_of(level: Level, found: LevelFinding) -> tuple[frozenset[State], frozenset[State]] | None:
    """The states before and at the step that was found on a level."""
    if found.kind is not FindingKind.FOUND:
        return None
    line = Line.through(level)
    for group in range(1, len(line)):
        if level.accused(line.first_commit(group).hash).hash == found.commits[0]:
            before, at = (frozenset(s for s, g in line.places.items() if g == n) for n in (group - 1, group))
            return before, at
    return None


def best_measurement(ledger: Sequence[LedgerEntry], states: Collection[State]) -> Measurement | None:
    """The best measurement of any of these states."""
    return choose_measurement(
        [
            entry.measurement
            for entry in ledger
            if entry.trial.state in states
            and entry.trial.is_evidence
            and entry.measurement.outcome is not Outcome.LOST
        ]
    )


def trial_row(spec: BisectionSpec, entry: LedgerEntry, known: Circumstances) -> TrialRow:
    measurement, trial = entry.measurement, entry.trial
    judgement = judge(spec.criterion, measurement, known)
    control = measurement.control
    states = spec.levels[0].states
    position = states.index(trial.state) if trial.state in states else None
    return TrialRow(
        sequence=entry.sequence,
        state=trial.state,
        position=position,
        purpose=trial.purpose,
        attempt=trial.attempt,
        why=trial.why,
        taken_from=trial.taken_from,
        outcome=measurement.outcome,
        verdict=judgement.verdict,
        reason=judgement.why,
        signature=judgement.signature or measurement.signature,
        peak_bytes=measurement.peak.allocated_bytes if measurement.peak else None,
        capacity_bytes=measurement.capacity_bytes,
        useful_tokens_per_second=measurement.useful_tokens_per_second,
        control_tokens_per_second=control.work.useful_tokens_per_second if control else None,
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


def _state_keys(spec: BisectionSpec) -> dict[State, object]:
    """What each state of level 0 shares with those that equal it."""
    level = spec.levels[0]
    return {
        state: _state_key(commit) for state, commit in zip(level.states, level.range.commits, strict=True)
    }


def _state_key(commit: Commit) -> object:
    """Equal for commits that are one state to the repro; without a tree key, no two are."""
    return (commit.tree_key, commit.environment_key) if commit.tree_key else commit.hash
