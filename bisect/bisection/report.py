"""The culprit report: everything that people and programs are told about a finished bisection.

`build_report` is a pure function of the specification, the ledger, the finding and the evidence that
needed I/O to be gathered. Verdicts are derived here from the ledger, as everywhere. How a report
looks is `rendering`'s matter; the JSON is described in docs/reference/report.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bisection.allocations import AllocationDelta, AllocationTable, allocation_delta
from bisection.attribution import ModelDelta, attribute
from bisection.belief_history import belief_histories
from bisection.commit_record import (
    any_bad,
    best_measurement,
    circumstances_of,
    commit_in,
    commit_verdicts,
    compared_commits,
    compared_states,
    trial_row,
)
from bisection.commits import Commit, CommitRange, State
from bisection.configuration_delta import KeyChange, configuration_delta
from bisection.finding import Finding, FindingKind
from bisection.headline import headline, plain_text
from bisection.json_shapes import decode_fields, encode_fields
from bisection.ledger import LedgerEntry, Purpose
from bisection.measurement import Outcome
from bisection.regression import Regression, RegressionKind
from bisection.remedy_proofs import with_proofs
from bisection.report_parts import (
    Asked,
    BeliefHistory,
    DiffSummary,
    FileChange,
    Link,
    MemoryPicture,
    PinChange,
    PinKind,
    Posterior,
    RemedyRow,
    Retraction,
    Run,
    Simulation,
    Subject,
    TimePicture,
    TrialRow,
)
from bisection.report_pictures import memory_picture, simulation_of, suspicions, time_picture
from bisection.revert_test import RevertResult
from bisection.specification import BisectionSpec
from bisection.way_back import (
    Launch,
    Recipe,
    RevertOutcome,
    git_bisect_log,
    last_good_state,
    reproduce,
    way_back,
)
from bisection.way_inside import way_inside

__all__ = ["CulpritReport", "Evidence", "build_report", "compared_commits", "rejected_report"]

VERSION = 1

#: Estimates are of one step: they know nothing of what is kept from one to the next.
RETENTION_NOTE = (
    "Bytes that are kept from step to step outgrow any remedy, if they go on growing: "
    "the remedies are estimated for one step."
)

_LOCKED = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^\]]*\])?\s*==\s*([^\s;\\]+)", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What a report needs besides the ledger: gathered by workers, by I/O. All of it may be missing.

    ``parent_*`` and ``culprit_*`` belong to the commits that `compared_commits` names.
    """

    bisection: str = ""
    repository: str = ""
    profile: str = ""
    good: str = ""  #: the range's ends as the request named them: a ref or a hash
    bad: str = ""
    started_at: str = ""
    finished_at: str = ""
    parent_config: Mapping[str, Any] | None = None  #: the resolved configuration, nested
    culprit_config: Mapping[str, Any] | None = None
    parent_folders: tuple[str, ...] = ()  #: the run's own folders, see `configuration_delta`
    culprit_folders: tuple[str, ...] = ()
    parent_lock: str = ""  #: text of the lock
    culprit_lock: str = ""
    diff_summary: DiffSummary | None = None
    revert: RevertOutcome = RevertOutcome.NOT_TRIED
    conflicts: tuple[str, ...] = ()  #: paths in which the revert conflicts
    remedies: tuple[RemedyRow, ...] = ()
    parent_allocations: AllocationTable | None = None  #: behind the peak, where the full mode ran
    culprit_allocations: AllocationTable | None = None
    comparison: ModelDelta | None = None  #: of the estimates of the two configurations
    launch: Launch | None = None
    posterior: Mapping[str, float] = field(default_factory=dict)  #: `Search.probabilities`
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CulpritReport:
    """A frozen, versioned report. ``subject`` is None where the range could not be resolved."""

    headline: tuple[Run, ...]
    finding: Finding
    asked: Asked = Asked()
    subject: Subject | None = None
    culprit: Commit | None = None
    parent: Commit | None = None
    suspects: tuple[Commit, ...] = ()  #: of the finding, oldest first; none where no trial was judged bad
    commits: tuple[Commit, ...] = ()  #: the range, oldest first
    compared: tuple[str, ...] = ()  #: the two commits that are compared
    compared_states: tuple[State, ...] = ()  #: whose measurements these are: of a descent, the innermost
    regression: Regression | None = None
    config_delta: tuple[KeyChange, ...] | None = None  #: None: not both configurations are known
    pin_delta: tuple[PinChange, ...] = ()
    diff_summary: DiffSummary | None = None
    remedies: tuple[RemedyRow, ...] = ()
    trials: tuple[TrialRow, ...] = ()
    posterior: Posterior = Posterior()
    history: tuple[BeliefHistory, ...] = ()  #: of the belief, a level each, outermost first
    memory: MemoryPicture | None = None
    allocations: AllocationDelta | None = None  #: None: not both commits were run in the full mode
    time: TimePicture | None = None
    way_back: tuple[Recipe, ...] = ()
    reproduce: Recipe | None = None
    git_bisect_log: str = ""
    simulated: bool = False
    simulation: Simulation | None = None
    links: tuple[Link, ...] = ()
    notes: tuple[str, ...] = ()
    retraction: Retraction | None = None  #: added afterwards, where the result was taken back

    @property
    def summary(self) -> str:
        """The headline as plain text."""
        return plain_text(self.headline)

    @property
    def nothing_known(self) -> bool:
        """A set in whose search no trial was judged bad: all of its commits are only untried."""
        return self.finding.kind is FindingKind.SET and not self.suspects

    def to_json(self) -> dict[str, Any]:
        return {"version": VERSION, "summary": self.summary, **encode_fields(self)}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> CulpritReport:
        """Raises ValueError for another version and for what is not a report."""
        if row.get("version") != VERSION:
            raise ValueError(
                f"report version {row.get('version')!r} is not known here (this reads {VERSION})"
            )
        report: CulpritReport = decode_fields(cls, row)
        return report


def rejected_report(finding: Finding, evidence: Evidence) -> CulpritReport:
    """For a request whose range could not be resolved: there is no specification and no trial."""
    return CulpritReport(
        headline=headline(None, finding, (), None, None, None),
        finding=finding,
        asked=_asked(evidence),
        links=_links(finding, ()),
        notes=evidence.notes,
    )


def build_report(
    spec: BisectionSpec, ledger: Sequence[LedgerEntry], finding: Finding, evidence: Evidence
) -> CulpritReport:
    """The report of a finished bisection.

    Raises ValueError if the finding names a commit that is not in the range.
    """
    shown = spec.shown
    line = shown.levels[0]
    commits = _of_finding(shown.range, finding)
    if finding.kind is FindingKind.SET and not any_bad(spec, ledger):
        commits = ()  # nobody is accused before a trial was judged bad
    found = finding.kind is FindingKind.FOUND
    culprit = commits[0] if found else None
    parent = commit_in(shown.range, finding.parent) if found and finding.parent else None
    accused = [commit.hash for commit in commits]
    accused += [commit for level in finding.descent for commit in level.commits]
    history, effects = belief_histories(spec, ledger, frozenset(accused))
    known = circumstances_of(shown, ledger)
    trials = tuple(
        replace(trial_row(shown, entry, known), changed=effects.get(entry.sequence, "")) for entry in ledger
    )
    verdicts = commit_verdicts(shown, ledger)
    subject = Subject(
        bisection=evidence.bisection,
        repository=line.repository or evidence.repository,
        profile=evidence.profile,
        criterion=spec.criterion,
        good=shown.range.good.hash,
        bad=shown.range.bad.hash,
        commits=len(shown.range.commits),
        started_at=evidence.started_at,
        finished_at=evidence.finished_at,
        line=line.kind,
    )
    pair = compared_commits(shown, ledger, finding)
    sides = compared_states(spec, ledger, finding)
    before, after = (best_measurement(ledger, side) for side in sides) if sides else (None, None)
    changes = _config_delta(evidence)
    pin_delta = _pin_delta(shown.range, pair, evidence) if pair else ()
    regression = None
    # Without a regression there are two ends to show, but nothing to attribute.
    if before and after and commits and before.device == after.device:
        regression = attribute(
            before,
            after,
            comparison=evidence.comparison,
            criterion=spec.criterion.kind,
            changed_keys=None if changes is None else tuple(change.key for change in changes),
            pins_moved=bool(pin_delta),
        )
    memory = memory_picture(spec, before, after)
    time = time_picture(spec, before, after)
    simulation = simulation_of(ledger)
    target = culprit or (shown.range.bad if finding.kind is not FindingKind.REJECTED else None)
    return CulpritReport(
        headline=headline(subject, finding, commits, regression, memory, time),
        finding=finding,
        asked=_asked(evidence),
        subject=subject,
        culprit=culprit,
        parent=parent,
        suspects=commits,
        commits=shown.range.commits,
        compared=pair or (),
        compared_states=tuple(min(side) for side in sides) if sides else (),
        regression=regression,
        config_delta=changes,
        pin_delta=pin_delta,
        diff_summary=evidence.diff_summary or (_paths_touched(culprit) if culprit else None),
        remedies=with_proofs(evidence.remedies, ledger, spec.criterion, after),
        trials=trials,
        # Of a search that saw no bad trial, it is what was believed before: no evidence against anyone.
        posterior=suspicions(shown.range, evidence.posterior)
        if commits or finding.kind is not FindingKind.SET
        else Posterior(),
        history=history,
        memory=memory,
        allocations=allocation_delta(evidence.parent_allocations, evidence.culprit_allocations)
        if evidence.parent_allocations and evidence.culprit_allocations
        else None,
        time=time,
        way_back=_way_back(shown, finding, parent, culprit, changes, evidence) if parent and culprit else (),
        reproduce=reproduce(target, evidence.launch, line.state_of(target.hash)) if target else None,
        git_bisect_log=""
        if line.is_made or line.path
        else git_bisect_log(shown.range, verdicts, culprit=culprit.hash if culprit else None),
        simulated=simulation is not None,
        simulation=simulation,
        links=_links(finding, trials),
        notes=(
            *([RETENTION_NOTE] if regression and regression.kind is RegressionKind.RETENTION else []),
            *(
                f"{commit[:10]} was found first, but nothing that it changes can change the repro; "
                "the search went on without it."
                for commit in spec.excluded
            ),
            *_ledger_notes(ledger),
            *evidence.notes,
        ),
    )


def _way_back(
    shown: BisectionSpec,
    finding: Finding,
    parent: Commit,
    culprit: Commit,
    changes: tuple[KeyChange, ...] | None,
    evidence: Evidence,
) -> tuple[Recipe, ...]:
    """Where states are not commits as they are (pairs of pins as ends), only the state goes back."""
    inside = way_inside(finding.descent, evidence.launch)
    line = shown.levels[0]
    if not line.is_plain:
        return (last_good_state(line.state_of(parent.hash)), *inside)
    recipes = way_back(
        parent=parent,
        culprit=culprit,
        changes=changes,
        revert=evidence.revert,
        conflicts=evidence.conflicts,
        launch=evidence.launch,
    )
    tested = finding.revert
    if tested is not None and tested.result in (RevertResult.MENDS, RevertResult.DOES_NOT_MEND):
        recipes = tuple(
            replace(recipe, note=f"{recipe.note} {tested.why}") if recipe.name == "revert" else recipe
            for recipe in recipes
        )
    return (*recipes[:1], *inside, *recipes[1:])


def _asked(evidence: Evidence) -> Asked:
    return Asked(
        bisection=evidence.bisection,
        repository=evidence.repository,
        profile=evidence.profile,
        good=evidence.good,
        bad=evidence.bad,
    )


def _of_finding(commits: CommitRange, finding: Finding) -> tuple[Commit, ...]:
    return tuple(commit_in(commits, commit_hash) for commit_hash in finding.commits)


def _config_delta(evidence: Evidence) -> tuple[KeyChange, ...] | None:
    if evidence.parent_config is None or evidence.culprit_config is None:
        return None
    return configuration_delta(
        evidence.parent_config,
        evidence.culprit_config,
        folders_before=evidence.parent_folders,
        folders_after=evidence.culprit_folders,
    )


def _pin_delta(commits: CommitRange, pair: tuple[str, str], evidence: Evidence) -> tuple[PinChange, ...]:
    before, after = (commit_in(commits, commit_hash) for commit_hash in pair)
    locks = [
        {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in _LOCKED.findall(text)}
        for text in (evidence.parent_lock, evidence.culprit_lock)
        # With one lock unread, every package would seem to have come or gone.
        if evidence.parent_lock and evidence.culprit_lock
    ] or [{}, {}]
    changes = []
    for kind, old, new in (
        (PinKind.REPOSITORY, before.pins, after.pins),
        (PinKind.PACKAGE, locks[0], locks[1]),
    ):
        changes += [
            PinChange(kind=kind, name=name, before=old.get(name), after=new.get(name))
            for name in sorted({*old, *new})
            if old.get(name) != new.get(name)
        ]
    return tuple(changes)


def _paths_touched(culprit: Commit) -> DiffSummary:
    return DiffSummary(files=tuple(FileChange(path=path) for path in culprit.paths))


def _links(finding: Finding, trials: Sequence[TrialRow]) -> tuple[Link, ...]:
    names = [problem for problem in (finding.problem, *(d.problem for d in finding.descent)) if problem]
    names += [row.outcome.value.replace("_", "-") for row in trials if row.outcome is not Outcome.COMPLETED]
    return tuple(Link(name=name, page=f"docs/errors/{name}.md") for name in dict.fromkeys(names))


def _ledger_notes(ledger: Sequence[LedgerEntry]) -> list[str]:
    notes = []
    workers = {entry.measurement.worker for entry in ledger if entry.measurement.worker}
    confirmed = any(entry.trial.purpose is Purpose.CONFIRM for entry in ledger)
    if len(workers) == 1 and confirmed:
        notes.append(
            "One worker measured everything: what was repeated ran in a fresh process and workspace, "
            "but not on another machine."
        )
    for entry in ledger:
        notes += [note for note in entry.measurement.notes if note not in notes]
    seen = [entry.measurement for entry in ledger if entry.measurement.device != "dry_run"]
    unseen = dict.fromkeys(told for measured in seen for told in measured.unseen)
    notes += [f"Not seen by the probe: {told}." for told in unseen]
    return notes
