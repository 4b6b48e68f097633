"""After an answer: the revert test of a found culprit (makes the state, has it tried, tells what came of it),
then proofs of remedies where they were asked for.

The finding is known by now, and stands whatever happens here. Every step is derived from rows, so a crash
anywhere only repeats it; the state is a commit whose hash is the same on every host.
"""

from __future__ import annotations

from datetime import UTC, datetime

from bisection.adapters.catalogue import CatalogueError, Profile
from bisection.adapters.mirror import Mirror, MirrorError
from bisection.adapters.storage.bisections import BisectionRow
from bisection.adapters.storage.trials import Trials
from bisection.commit_record import circumstances_of
from bisection.commits import Commit, State
from bisection.finding import Finding, FindingKind
from bisection.ledger import LedgerEntry, Purpose, Trial
from bisection.revert_test import RevertResult, RevertTest, judged
from bisection.search import Search
from bisection.specification import BisectionSpec
from workers.context import WorkerContext
from workers.inheriting import inherit_revert
from workers.proving import prove
from workers.resolution import open_mirror


class RevertDiffers(MirrorError):
    """This host's git takes the commit back otherwise than the host that asked: its versions differ."""

    problem = "git-failed"


def is_verified(row: BisectionRow, spec: BisectionSpec, finding: Finding) -> bool:
    """Whether an answer is tried further before it is reported."""
    accuses = finding.kind in (FindingKind.FOUND, FindingKind.SET)
    return can_be_reverted(spec, finding) or (accuses and row.prove > 0)


def can_be_reverted(spec: BisectionSpec, finding: Finding) -> bool:
    """Whether a commit of the bisected repository was found, and its bad end is a commit as it is."""
    return finding.kind is FindingKind.FOUND and spec.levels[spec.ground].is_plain


def changes_nothing(context: WorkerContext, profile: Profile, spec: BisectionSpec, finding: Finding) -> str:
    """Why the culprit cannot be one: read again from git, nothing of what it changes matters; else "".

    The line of states leaves such commits out already, by keys that were stored with the specification. This
    asks git once more, since naming a commit that changes nothing would be the plainest of wrong accusations.
    """
    culprit = finding.commits[0]
    try:
        parent, found = open_mirror(context, profile).read_back(
            culprit, 1, spec.relevant_paths, profile.environment_paths
        )
    except (MirrorError, CatalogueError, ValueError):
        return ""  # what cannot be read again is no reason to doubt what was measured
    if (parent.tree_key, parent.environment_key) != (found.tree_key, found.environment_key):
        return ""
    return (
        f"{found.short} was found, but nothing that it changes can change the repro: its relevant trees, "
        f"pins and environment are those of its parent {parent.short}. Their trials are told apart "
        "by something else, such as flakes; it is left out of the search."
    )


def verify(context: WorkerContext, row: BisectionRow) -> bool:
    """One step of it; True if there may be more to do now."""
    spec = row.specification
    assert spec is not None  # a finding of a commit has a range
    assert row.finding is not None  # it is what is verified
    finding = Finding.from_json(row.finding)
    if finding.revert is None and can_be_reverted(spec, finding):
        return _test_revert(context, row, spec, finding)
    return prove(context, row) and context.bisections.verified(row.id, finding)


def _test_revert(context: WorkerContext, row: BisectionRow, spec: BisectionSpec, finding: Finding) -> bool:
    culprit, bad = _sides(spec, finding)
    rows = context.trials.of(row.id)
    ledger = Trials.ledger(rows)
    signature = Search.replay(spec, ledger, spec.ground).standing.evidence.signature
    known = judged(spec.criterion, signature, ledger, culprit.short, circumstances_of(spec.shown, ledger))
    if known is not None:
        return _end(context, row, known)
    if culprit.hash == bad.hash:
        return _end(context, row, _back_to_parent(spec, finding))
    if row.cancel_requested:
        return _end(context, row, _not_run("it was cancelled"))
    if Trials.pending(rows):
        return False
    spent = _spent(row, spec, ledger)
    if spent:
        return _end(context, row, _not_run(spent))
    profile = Profile.model_validate(row.profile)
    try:
        state = _state(open_mirror(context, profile), culprit, bad)
    except (MirrorError, CatalogueError) as error:
        return _end(context, row, _not_run(str(error)))
    if isinstance(state, RevertTest):
        return _end(context, row, state)
    trial = Trial(
        state=state,
        attempt=1 + sum(known.trial.state == state for known in rows),
        purpose=Purpose.REVERT,
        why=f"The bad end {bad.short} without {culprit.short}: does reverting it mend it?",
    )
    if inherit_revert(context, row, trial, [known.trial for known in rows]):
        return True
    if context.trials.apply(row.id, row.version, queue=profile.queue, add=[trial]):
        context.hints.work(profile.queue)
        return False
    return True  # the row has changed: look again


def give_up(context: WorkerContext, row: BisectionRow, error: Exception) -> bool:
    """Report the finding without what is left to try: a fault in this must not take the answer away."""
    assert row.finding is not None
    finding = Finding.from_json(row.finding)
    context.trials.cancel_all(row.id)
    if finding.revert is None and finding.kind is FindingKind.FOUND:
        finding = finding.with_revert(_not_run(f"firstbad itself failed at it ({error})"))
    return context.bisections.verified(row.id, finding)


def _back_to_parent(spec: BisectionSpec, finding: Finding) -> RevertTest:
    """The culprit is the bad end itself: without it, that is its parent, which passed already."""
    parent = spec.levels[spec.ground].before(finding.commits[0])
    return RevertTest(
        result=RevertResult.MENDS,
        why=f"Reverting it on the bad end mends it: that gives back its parent {parent.short}, which passed.",
    )


def write_revert(context: WorkerContext, row: BisectionRow, trial: Trial) -> None:
    """Makes sure that the trial's commit is in this host's mirror. Raises MirrorError, CatalogueError."""
    spec = row.specification
    assert spec is not None  # only a resolved bisection has trials
    assert row.finding is not None  # and only a found culprit is reverted
    culprit, bad = _sides(spec, Finding.from_json(row.finding))
    mirror = open_mirror(context, Profile.model_validate(row.profile))
    if mirror.has(trial.state.commit):
        return
    made = _state(mirror, culprit, bad)
    if made != trial.state:
        raise RevertDiffers(
            f"this host's git makes another state of {bad.short} without {culprit.short}: install one git "
            "version on all hosts"
        )


def _sides(spec: BisectionSpec, finding: Finding) -> tuple[Commit, Commit]:
    """The culprit, and the bad end that it is taken back from."""
    line = spec.levels[spec.ground].range
    return line.commits[line.position(finding.commits[0])], line.bad


def _state(mirror: Mirror, culprit: Commit, bad: Commit) -> State | RevertTest:
    """The bad end without the culprit, written here; or why there is nothing to try."""
    mirror.require(culprit.hash)
    mirror.require(bad.hash)
    undone = mirror.revert(culprit.hash, onto=bad.hash)
    if undone.tree is None:
        return RevertTest(
            result=RevertResult.CONFLICTS,
            why="Whether reverting it mends the bad end was not measured: git cannot take it back there "
            f"without conflicts, in {', '.join(undone.conflicts[:5])}"
            + (f" and {len(undone.conflicts) - 5} more." if len(undone.conflicts) > 5 else "."),
        )
    return State(commit=mirror.commit_tree(undone.tree, bad.hash, f"Revert {culprit.hash}"))


def _not_run(why: str) -> RevertTest:
    return RevertTest(
        result=RevertResult.NOT_RUN, why=f"Whether reverting it mends the bad end was not measured: {why}."
    )


def _spent(row: BisectionRow, spec: BisectionSpec, ledger: tuple[LedgerEntry, ...]) -> str:
    """What is used up of the budget; "" while nothing is."""
    budget = spec.budget
    paid = [entry for entry in ledger if not entry.trial.taken_from]
    if len(paid) >= budget.trials:
        return f"the budget of {budget.trials} trials is spent"
    hours = sum(entry.measurement.seconds for entry in paid) * spec.gpus_per_trial / 3600
    if budget.gpu_hours is not None and hours >= budget.gpu_hours:
        return f"the budget of {budget.gpu_hours:g} GPU hours is spent"
    age = (datetime.now(UTC) - datetime.fromisoformat(row.created_at)).total_seconds()
    if budget.seconds is not None and age >= budget.seconds:
        return f"the budget of {budget.seconds:g} seconds is spent"
    return ""


def _end(context: WorkerContext, row: BisectionRow, test: RevertTest) -> bool:
    assert row.finding is not None
    context.trials.cancel_all(row.id)
    proofs = row.prove > 0
    context.bisections.verified(row.id, Finding.from_json(row.finding).with_revert(test), go_on=proofs)
    return True
