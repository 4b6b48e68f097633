"""What a report needs besides the ledger: configurations, locks, the diff, the revert, the estimates.

Everything here may be missing, and each part alone: a report with a gap and a note
about it is worth more than none.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bisection.adapters.catalogue import CatalogueError, Profile
from bisection.adapters.mirror import Mirror, MirrorError, MissingPath
from bisection.adapters.storage.bisections import BisectionRow
from bisection.adapters.storage.trials import TrialRow, Trials
from bisection.allocations import AllocationTable
from bisection.attribution import choose_measurement, is_whole
from bisection.commit_record import compared_commits, compared_states
from bisection.commits import State
from bisection.finding import Finding, FindingKind
from bisection.measurement import Measurement
from bisection.report import Evidence
from bisection.report_parts import DiffSummary, FileChange, RemedyEstimate, RemedyRow
from bisection.search import Search
from bisection.specification import BisectionSpec, end_words
from bisection.way_back import Launch, RevertOutcome
from memory_models.comparison import Comparison, compare
from memory_models.estimation import estimate
from memory_models.job import TrainingJob
from memory_models.reading import Reading, read_bridge_config
from memory_models.remedies import Remedy, find_remedies
from memory_models.shapes import ImageLoad
from memory_models.upstream import Upstream, upstream_at
from workers.building import BuildHostError
from workers.context import WorkerContext
from workers.launching import PROBE_FOLDER, dry_run_environment, filled
from workers.rank_files import parse_strictly
from workers.requirement_lock import Unbuildable
from workers.resolution import open_mirror
from workers.state_reading import lock_at

#: More would bury the few that changed something.
_MOST_FILES = 50
_MOST_REMEDIES = 8


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the two commits that are compared: its best measurement, and what it resolved to."""

    commit: str
    measurement: Measurement | None = None
    config: Mapping[str, Any] | None = None
    lock: str = ""
    allocations: AllocationTable | None = None


def gather_evidence(
    context: WorkerContext, row: BisectionRow, spec: BisectionSpec, finding: Finding
) -> Evidence:
    """Ask the database, git and the memory model."""
    profile = Profile.model_validate(row.profile)
    rows = context.trials.of(row.id)
    ledger = Trials.ledger(rows)
    notes: list[str] = []
    evidence = Evidence(
        bisection=row.id,
        repository=profile.repository,
        profile=profile.name,
        good=end_words(row.request.get("good", "")),
        bad=end_words(row.request.get("bad", "")),
        started_at=row.created_at,
        finished_at=row.updated_at,
        launch=_launch(profile, spec, row.request.get("overrides") or {}),
        posterior=Search.replay(spec, ledger, spec.ground).probabilities(),
    )
    line = spec.shown.levels[0]
    pair = compared_commits(spec.shown, ledger, finding)
    sides = compared_states(spec, ledger, finding)
    if pair is None or sides is None:
        return evidence
    before, after = (
        _side(context, rows, line.state_of(commit).commit, states, notes)
        for commit, states in zip(pair, sides, strict=True)
    )
    try:
        mirror = open_mirror(context, profile)
        before, after = (_with_lock(mirror, profile, side) for side in (before, after))
        evidence = replace(evidence, launch=_with_unlisted_pins(mirror, spec, evidence.launch))
        if line.is_ground:
            evidence = replace(evidence, **_git_evidence(mirror, spec, finding))
    except (MirrorError, CatalogueError) as error:
        notes.append(f"The repository could not be asked for the diff and the lock: {error}")
    evidence = replace(
        evidence,
        parent_config=before.config,
        culprit_config=after.config,
        parent_lock=before.lock,
        culprit_lock=after.lock,
        parent_allocations=before.allocations,
        culprit_allocations=after.allocations,
    )
    if finding.kind in (FindingKind.FOUND, FindingKind.SET):
        evidence = replace(evidence, **_estimates(spec, profile, before, after, notes))
    return replace(evidence, notes=tuple(notes))


def _side(
    context: WorkerContext,
    rows: Sequence[TrialRow],
    commit_hash: str,
    states: Collection[State],
    notes: list[str],
) -> Side:
    """The lock is the commit's; the measurement is of one of the states, which may carry other pins."""
    measured = {
        id(row.measurement): row
        for row in rows
        if row.measurement is not None and row.trial.state in states and row.trial.is_evidence
    }
    best = choose_measurement([row.measurement for row in measured.values() if row.measurement])
    if best is None:
        return Side(commit=commit_hash)
    content = context.artifacts.content(measured[id(best)].id, "config.json")
    config = None
    if content:
        try:
            config = recorded_configuration(content)
        except ValueError as error:
            notes.append(f"Commit {commit_hash[:10]}: {error}; the report treats it as missing.")
    return Side(
        commit=commit_hash,
        measurement=best,
        config=config,
        allocations=_allocations(context, list(measured.values()), notes),
    )


def _allocations(
    context: WorkerContext, rows: Sequence[TrialRow], notes: list[str]
) -> AllocationTable | None:
    """Of the trial with the highest peak that was run in the full mode."""
    found: list[AllocationTable] = []
    for row in rows:
        content = context.artifacts.content(row.id, "allocations.json")
        if content:
            try:
                found.append(AllocationTable.from_json(parse_strictly(content)))
            except ValueError as error:
                notes.append(f"A trial's list of allocations cannot be read: {error}")
    return max(found, key=lambda table: table.allocated_bytes, default=None)


def recorded_configuration(content: bytes) -> dict[str, Any]:
    """What the training job wrote as its resolved configuration; ValueError if it cannot be one."""
    try:
        config = parse_strictly(content)
    except ValueError as error:
        raise ValueError(f"the recorded configuration cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise ValueError("the recorded configuration is not a mapping")
    return config


def _with_lock(mirror: Mirror, profile: Profile, side: Side) -> Side:
    if not profile.environment.lock:
        return side
    try:
        text = lock_at(mirror, side.commit, profile.environment.lock)
    except (Unbuildable, BuildHostError):
        text = None  # what cannot be read cannot be compared
    return replace(side, lock=text or "")  # without one, the report shows the other side's


def _with_unlisted_pins(mirror: Mirror, spec: BisectionSpec, launch: Launch | None) -> Launch | None:
    pins = {path for commit in spec.shown.range.commits for path in commit.pins}
    if launch is None or not pins:
        return launch
    try:
        text = mirror.read_file(spec.shown.range.bad.hash, ".gitmodules").decode(errors="replace")
    except MissingPath:
        text = ""
    listed = set(re.findall(r"^[ \t]*path[ \t]*=[ \t]*(.+?)[ \t]*$", text, re.MULTILINE))
    return replace(launch, unlisted_pins=tuple(sorted(pins - listed)))


def _git_evidence(mirror: Mirror, spec: BisectionSpec, finding: Finding) -> dict[str, Any]:
    if finding.kind is not FindingKind.FOUND or finding.parent is None:
        return {}
    culprit = finding.commits[0]
    changes = mirror.diff_summary(finding.parent, culprit)
    files = tuple(FileChange(path=c.path, added=c.added, removed=c.removed) for c in changes)
    revert = mirror.revert(culprit, onto=spec.shown.range.bad.hash)
    return {
        "diff_summary": DiffSummary(files=files[:_MOST_FILES], left_out=max(0, len(files) - _MOST_FILES)),
        "revert": RevertOutcome.CONFLICTS if revert.conflicts else RevertOutcome.CLEAN,
        "conflicts": tuple(revert.conflicts),
    }


def _launch(profile: Profile, spec: BisectionSpec, overrides: Mapping[str, Any]) -> Launch:
    """How people start the job by hand, at the newest commits."""
    adapter = profile.newest_adapter
    environment = profile.environment
    words = {"{steps}": str(profile.steps), "{data}": profile.data.path or ""}
    words |= {"{workspace}": ".", "{trial}": "."}
    words |= {f"{{{name}}}": place for name, place in profile.places.items()}
    by_hand = dict(adapter.env)
    if "firstbad_probe" in adapter.command:
        by_hand |= _probe_environment(profile, spec)
    return Launch(
        command=profile.by_hand or tuple(filled(word, words) for word in adapter.command),
        override_syntax="" if profile.by_hand else adapter.override,
        overrides=dict(overrides),
        environment=by_hand,
        lock_path=environment.lock or "",
        setup=_setup(profile),
        python=environment.python
        if environment.kind == "interpreter" and environment.python
        else ".venv/bin/python",
    )


def _probe_environment(profile: Profile, spec: BisectionSpec) -> dict[str, str]:
    """What the probe must be told; it writes beside the job."""
    environment = {
        "PYTHONPATH": f"{PROBE_FOLDER}:.",
        "FIRSTBAD_DEVICE": profile.device,
        "FIRSTBAD_PROBE_DIRECTORY": ".",
    }
    if profile.dry_run:
        world = {
            "RANK": "0",
            "LOCAL_RANK": "0",
            "WORLD_SIZE": str(profile.world_size),
            "LOCAL_WORLD_SIZE": "1",
        }
        environment |= dry_run_environment(profile.dry_run) | world
    if spec.criterion.capacity_bytes is not None:
        environment["FIRSTBAD_CAPACITY_BYTES"] = str(spec.criterion.capacity_bytes)
    return environment


def _setup(profile: Profile) -> tuple[tuple[str, ...], ...]:
    environment = profile.environment
    if environment.kind != "venv" or not environment.lock:
        return ()
    links = tuple(word for folder in environment.find_links for word in ("--find-links", folder))
    return (
        ("python3", "-m", "venv", ".venv"),
        (".venv/bin/python", "-m", "pip", "install", "--no-deps", *links, "-r", environment.lock),
    )


def _estimates(
    spec: BisectionSpec, profile: Profile, before: Side, after: Side, notes: list[str]
) -> dict[str, Any]:
    """The comparison of the two configurations' estimates, and remedies for the bad one."""
    if before.config is None or after.config is None:
        notes.append("No estimate: not both resolved configurations were recorded.")
        return {}
    try:
        world_size = profile.world_size
        old, new = (read_side(side, world_size) for side in (before, after))
        comparison: Comparison = compare(old.job, new.job)
        remedies = _remedies(new.job, spec, after.measurement)
    except (ValueError, ArithmeticError) as error:  # a job may write integers that no float holds
        notes.append(f"No estimate: the memory model cannot follow this configuration: {error}")
        return {}
    notes += [f"Memory model: {note}" for note in new.notes]
    if new.ignored:
        notes.append("The memory model does not follow: " + "; ".join(new.ignored))
    return {"comparison": comparison, "remedies": remedies}


def read_side(side: Side, world_size: int) -> Reading:
    """The job that a side resolved to, with its images as measured. ValueError where it cannot be read."""
    if side.config is None:
        raise ValueError("no resolved configuration was recorded")
    return read_bridge_config(
        side.config,
        world_size=world_size,
        images=image_load(side),
        upstream=upstream_of(side.lock),
    )


def upstream_of(lock: str) -> Upstream:
    """By the releases of Megatron's two repositories that a lock names; others are taken at their newest."""
    packages = {"megatron-bridge": "megatron-bridge", "megatron-core": "megatron-lm"}
    found = re.findall(r"^(megatron-(?:bridge|core))==(\d+(?:\.\d+)*)", lock, re.MULTILINE)
    return upstream_at({packages[package]: release for package, release in found})


def image_load(side: Side) -> ImageLoad | None:
    """Images and patches of a sample, as measured; None where no step told."""
    measurement = side.measurement
    train = (side.config or {}).get("train")
    batch = train.get("global_batch_size") if isinstance(train, Mapping) else None
    if type(batch) is not int or batch < 1 or measurement is None or not measurement.steps:
        return None
    samples = batch * len(measurement.steps)
    if measurement.device == "dry_run":  # a few microbatches of one replica, whatever the batch
        samples = sum(step.sequences for step in measurement.steps)
    if not samples:
        return None
    patches = sum(step.patches for step in measurement.steps)
    return ImageLoad(patches=round(patches / samples), images=max(1, round(measurement.images / samples)))


def _remedies(job: TrainingJob, spec: BisectionSpec, measured: Measurement | None) -> tuple[RemedyRow, ...]:
    """Remedies for the bad configuration, from its measured peak where that is known.

    What code keeps without the configuration saying so, no estimate sees; the saving is the model's,
    the peak that it is taken from is the measured one.
    """
    capacity = spec.criterion.capacity_bytes
    if capacity is None:
        return ()
    unseen = 0
    if measured is not None and is_whole(measured) and measured.peak is not None:
        unseen = measured.peak.allocated_bytes - estimate(job).worst.breakdown.total_bytes
    rows = [_row(remedy, unseen, capacity) for remedy in find_remedies(job, max(1, capacity - unseen))]
    return tuple(rows[:_MOST_REMEDIES])


def _row(remedy: Remedy, unseen_bytes: int, capacity_bytes: int) -> RemedyRow:
    peak = max(0, remedy.estimate_bytes + unseen_bytes)
    return RemedyRow(
        title=remedy.title,
        change=dict(remedy.change),
        estimate=RemedyEstimate(peak_bytes=peak, slowdown=remedy.slowdown, fits=peak <= capacity_bytes),
        saving_bytes=remedy.saving_bytes,
        cost=remedy.cost,
        legal=remedy.legal,
        why_not=remedy.why_not,
        source=remedy.source,
    )
