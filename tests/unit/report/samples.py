"""Synthetic bisections with realistic numbers: what the report's tests and pictures are made from.

The numbers follow the CPU runs of a tiny Qwen3-VL-MoE: peaks of some 170 MiB, a capacity of 190 MiB,
steps of about 0.5 s. Every figure is planted, so every answer is known.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from bisection.commits import Commit, CommitRange, State
from bisection.criteria import Criterion, CriterionKind
from bisection.finding import Finding, FindingKind
from bisection.ledger import LedgerEntry, Purpose, Trial
from bisection.measurement import Measurement, Outcome, OutOfMemory, Peak, Step
from bisection.report import Evidence
from bisection.report_parts import DiffSummary, FileChange, RemedyEstimate, RemedyRow
from bisection.specification import BisectionSpec
from bisection.way_back import Launch, RevertOutcome
from memory_models.breakdown import (
    MIB,
    Activity,
    Category,
    Cell,
    Component,
    MemoryBreakdown,
    Phase,
    TimeBreakdown,
    TimeCell,
)

C, K = Component, Category
END, SEARCH, CONFIRM, REVERT, *_ = Purpose

#: MiB by cell at the parent's peak: 171.1 MiB in all.
BASE: Mapping[Cell, float] = {
    (C.VISION, K.PARAMETERS): 6.2,
    (C.VISION, K.GRADIENTS): 6.2,
    (C.VISION, K.OPTIMIZER_STATES): 12.4,
    (C.VISION, K.ACTIVATIONS): 21.6,
    (C.PROJECTOR, K.PARAMETERS): 1.1,
    (C.PROJECTOR, K.GRADIENTS): 1.1,
    (C.PROJECTOR, K.OPTIMIZER_STATES): 2.2,
    (C.PROJECTOR, K.ACTIVATIONS): 2.9,
    (C.DECODER, K.PARAMETERS): 3.4,
    (C.DECODER, K.GRADIENTS): 3.4,
    (C.DECODER, K.OPTIMIZER_STATES): 6.8,
    (C.DECODER, K.ACTIVATIONS): 24.3,
    (C.EXPERTS, K.PARAMETERS): 9.5,
    (C.EXPERTS, K.GRADIENTS): 9.5,
    (C.EXPERTS, K.OPTIMIZER_STATES): 19.0,
    (C.EXPERTS, K.ACTIVATIONS): 18.7,
    (C.EMBEDDING_AND_LOSS, K.PARAMETERS): 4.1,
    (C.EMBEDDING_AND_LOSS, K.GRADIENTS): 4.1,
    (C.EMBEDDING_AND_LOSS, K.OPTIMIZER_STATES): 8.2,
    (C.EMBEDDING_AND_LOSS, K.TEMPORARY): 5.3,
    (C.RUNTIME, K.TEMPORARY): 1.1,
}

BASE_TIME: Mapping[TimeCell, float] = {
    (Activity.VISION, Phase.FORWARD): 0.061,
    (Activity.VISION, Phase.BACKWARD): 0.118,
    (Activity.PROJECTOR, Phase.FORWARD): 0.006,
    (Activity.PROJECTOR, Phase.BACKWARD): 0.011,
    (Activity.DECODER, Phase.FORWARD): 0.048,
    (Activity.DECODER, Phase.BACKWARD): 0.092,
    (Activity.EXPERTS, Phase.FORWARD): 0.044,
    (Activity.EXPERTS, Phase.BACKWARD): 0.071,
    (Activity.DISPATCH, Phase.FORWARD): 0.019,
    (Activity.DISPATCH, Phase.BACKWARD): 0.023,
    (Activity.EMBEDDING_AND_LOSS, Phase.FORWARD): 0.012,
    (Activity.EMBEDDING_AND_LOSS, Phase.BACKWARD): 0.017,
    (Activity.OPTIMIZER, Phase.STEP): 0.034,
    (Activity.DATA, Phase.FORWARD): 0.009,
    (Activity.IDLE, Phase.STEP): 0.004,
}

PATCHES = {"torch.cuda.current_device": 4410, "dispatcher.all_to_all(gloo)": 96, "layer_spec(local)": 2}
CAPACITY_BYTES = 190 * MIB

SUBJECTS = (
    "Bump the nightly container's labels",
    "docs: explain the sharded checkpoint layout",
    "Log the gradient norm by parameter group",
    "Rename the recipe helpers",
    "Read images through the shared cache",
    "Refactor the collator into two functions",
    "Raise the vision tower's attention window",
    "Undo the wider attention window",
    "Move the router's auxiliary loss next to the router",
    "Use mock data where no images are mounted",
    "Read the images again",
    "docs: a table of the nightly profiles",
    "Type the recipe modules",
)


def digest(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def peak(
    delta: Mapping[Cell, float] | None = None,
    *,
    phase: str = "backward",
    instant: str = "decoder.layers.1.mlp.experts backward",
    step: int = 1,
    unusable: float = 0.0,
    rank: int = 0,
) -> Peak:
    """The base's peak with ``delta`` MiB added by cell; ``unusable`` MiB are reserved on top."""
    cells = {cell: round(count * MIB) for cell, count in BASE.items()}
    for cell, count in (delta or {}).items():
        cells[cell] = cells.get(cell, 0) + round(count * MIB)
    breakdown = MemoryBreakdown(cells=cells)
    return Peak(
        rank=rank,
        step=step,
        phase=phase,
        instant=instant,
        allocated_bytes=breakdown.total_bytes,
        reserved_bytes=breakdown.total_bytes + round(unusable * MIB),
        breakdown=breakdown,
    )


def steps(
    peak_bytes: int,
    *,
    retained_mib: float = 96.0,
    growth_mib: float = 0.0,
    swing_mib: float = 0.0,
    patches: int = 1024,
    image_tokens: int = 256,
    loss_tokens: int = 180,
    seconds: float = 0.57,
    count: int = 4,
) -> tuple[Step, ...]:
    return tuple(
        Step(
            step=index,
            peak_bytes=peak_bytes - round(swing_mib * MIB) * (index % 2 == 0),
            retained_bytes=round((retained_mib + growth_mib * index) * MIB),
            seconds=seconds + 0.4 * (index == 0),
            loss_tokens=loss_tokens,
            image_tokens=image_tokens,
            padding_tokens=12,
            patches=patches,
        )
        for index in range(count)
    )


def measurement(
    commit: str = "0" * 40, delta: Mapping[Cell, float] | None = None, **changes: Any
) -> Measurement:
    """A completed CPU trial at the base plus ``delta``; ``changes`` are fields of the measurement."""
    at = changes.pop("peak", None) or peak(delta)
    made = Measurement(
        outcome=Outcome.COMPLETED,
        reason="all 4 steps were taken",
        state=State(commit=commit),
        hardware="cpu",
        device="cpu",
        worker="worker-1",
        peak=at,
        steps=steps(at.allocated_bytes),
        time=TimeBreakdown(cells=BASE_TIME),
        real_data=True,
        images=8,
        patches=PATCHES,
        seconds=31.4,
    )
    return made.evolve(**changes)


def refused(commit: str, delta: Mapping[Cell, float] | None = None, *, asked_mib: float = 6.0) -> Measurement:
    """A trial that the capacity stopped: its peak is truncated right below it."""
    full = peak(delta, phase="forward", instant="decoder.layers.3.mlp.experts forward", step=0)
    # The bytes of the last allocations are missing, of all cells in proportion.
    share = (CAPACITY_BYTES - 2 * MIB) / full.allocated_bytes
    cells = {cell: int(count * share) for cell, count in full.breakdown.cells.items()}
    breakdown = MemoryBreakdown(cells=cells)
    return measurement(
        commit,
        peak=Peak(
            rank=0,
            step=0,
            phase=full.phase,
            instant=full.instant,
            allocated_bytes=breakdown.total_bytes,
            reserved_bytes=breakdown.total_bytes,
            breakdown=breakdown,
        ),
        outcome=Outcome.OUT_OF_MEMORY,
        reason="the allocator refused 6.0 MiB in experts, forward",
        capacity_bytes=CAPACITY_BYTES,
        steps=(),
        time=TimeBreakdown(),
        signature="out_of_memory",
        oom=OutOfMemory(
            component="experts",
            phase="forward",
            requested_bytes=round(asked_mib * MIB),
            allocated_bytes=breakdown.total_bytes,
            reserved_bytes=breakdown.total_bytes,
        ),
        seconds=19.2,
    )


def commits(
    count: int = 26, *, culprit: int = 17, subject: str = "", author: str = "Mira Okafor"
) -> CommitRange:
    made: list[Commit] = []
    for index in range(count):
        title = subject if index == culprit and subject else SUBJECTS[index % len(SUBJECTS)]
        made.append(
            Commit(
                hash=digest(f"commit {index}"),
                parents=(made[-1].hash,) if made else (),
                subject=title,
                author=author if index == culprit else ("Jonas Weber", "Li Na", "Priya Raman")[index % 3],
                committed_at=f"2026-11-{1 + index:02d}T09:{index:02d}:00Z",
                paths=("recipes/qwen3_vl.py",) if index == culprit else ("docs/nightly.md",),
                tree_key=digest(f"tree {index}")[:16],
                environment_key="env-1",
            )
        )
    return CommitRange(commits=tuple(made))


@dataclass(frozen=True)
class Sample:
    """The arguments of `build_report`, and what was planted."""

    spec: BisectionSpec
    ledger: tuple[LedgerEntry, ...]
    finding: Finding
    evidence: Evidence


Planned = tuple[int, Purpose, str, Measurement]


def ledger_of(line: CommitRange, plan: list[Planned]) -> tuple[LedgerEntry, ...]:
    attempts: dict[int, int] = {}
    entries = []
    for sequence, (position, purpose, why, measured) in enumerate(plan):
        attempts[position] = attempts.get(position, 0) + 1
        state = State(commit=line.commits[position].hash)
        entries.append(
            LedgerEntry(
                sequence=sequence,
                trial=Trial(state=state, attempt=attempts[position], purpose=purpose, why=why),
                measurement=measured.evolve(state=state, worker=f"worker-{1 + sequence % 2}"),
            )
        )
    return tuple(entries)


def posterior(line: CommitRange, culprit: int, confidence: float) -> dict[str, float]:
    rest = (1 - confidence) * 0.8
    near = [i for i in range(1, len(line.commits)) if i != culprit]
    weights = {i: 0.5 ** abs(i - culprit) for i in near}
    total = sum(weights.values())
    shares = {line.commits[i].hash: rest * weight / total for i, weight in weights.items()}
    return {
        **shares,
        line.commits[culprit].hash: confidence,
        "no-culprit": (1 - confidence) * 0.15,
        "good-end-is-bad": (1 - confidence) * 0.05,
    }


LAUNCH = Launch(
    command=("{python}", "train.py", "--recipe", "qwen3_vl_tiny", "--steps", "4"),
    override_syntax="{key}={value}",
    overrides={"train.micro_batch_size": 1},
    environment={"OMP_NUM_THREADS": "1"},
    lock_path="requirements.lock",
    setup=(
        ("python3", "-m", "venv", ".venv"),
        (".venv/bin/python", "-m", "pip", "install", "--no-deps", "--requirement", "requirements.lock"),
    ),
)

CONFIG: dict[str, Any] = {
    "model": {
        "num_layers": 4,
        "moe_router_topk": 2,
        "recompute_granularity": "selective",
        "recompute_modules": ["core_attn", "moe"],
        "params_dtype": "torch.bfloat16",
        "seed": 1234,
    },
    "train": {"micro_batch_size": 1, "global_batch_size": 2},
    "checkpoint": {"save": "/run/one/checkpoints"},
    "optimizer": {"lr": 1e-4},
}


def config(**changes: Any) -> dict[str, Any]:
    return {**CONFIG, "model": {**CONFIG["model"], **changes}}


REMEDIES = (
    RemedyRow(
        title="Recompute the experts again",
        change={"model.recompute_modules": ["core_attn", "moe"]},
        estimate=RemedyEstimate(peak_bytes=int(171.0 * MIB), slowdown=0.06, fits=True),
        saving_bytes=int(41.3 * MIB),
        cost="one more forward of every expert layer",
        source="re-estimated",
        proven=True,
        proof="a trial of the culprit with it peaked at 171.1 MiB",
    ),
    RemedyRow(
        title="Recompute whole layers",
        change={"model.recompute_granularity": "full", "model.recompute_method": "uniform"},
        estimate=RemedyEstimate(peak_bytes=int(148.9 * MIB), slowdown=0.29, fits=True),
        saving_bytes=int(63.4 * MIB),
        cost="one more forward of every layer",
        source="re-estimated",
    ),
    RemedyRow(
        title="Split the experts over two ranks",
        change={"model.expert_model_parallel_size": 2},
        estimate=RemedyEstimate(peak_bytes=int(193.3 * MIB), slowdown=0.04, fits=False),
        saving_bytes=int(19.0 * MIB),
        cost="an exchange between ranks in every expert layer",
        legal=False,
        why_not="expert parallelism of 2 needs 2 ranks; this profile has 1",
        source="re-estimated",
    ),
)

EXPERTS_DELTA: dict[Cell, float] = {(C.EXPERTS, K.ACTIVATIONS): 41.2, (C.DECODER, K.TEMPORARY): 0.4}


@dataclass(frozen=True)
class PlantedComparison:
    """Stands for `memory_models.comparison.Comparison`: only its delta is read."""

    delta: Mapping[Cell, int]


def experts(*, subject: str = "", author: str = "Mira Okafor", truncated: bool = False) -> Sample:
    """FOUND: the experts' activations are kept since position 17."""
    line = commits(subject=subject or "Keep the experts' activations to speed up backward", author=author)
    good, bad = measurement(), measurement(delta=EXPERTS_DELTA)
    oom = refused("0" * 40, EXPERTS_DELTA)
    broken = measurement(
        outcome=Outcome.CRASHED,
        reason="ImportError: cannot import name 'recipe' from 'nightly.recipes'",
        peak=None,
        steps=(),
        signature="ImportError nightly.recipes:<module>",
        seconds=8.7,
    ).evolve(peak=None)
    mock = measurement(
        outcome=Outcome.INVALID, reason="mock data where real data was asked for", real_data=False, images=0
    )
    lost = Measurement(
        outcome=Outcome.LOST, reason="the worker's lease ran out", state=State(commit="0" * 40), device="cpu"
    )
    plan: list[Planned] = [
        (0, END, "is the good end good?", good),
        (25, END, "is the bad end bad?", oom),
        (0, END, "is the good end good, again?", good),
        (25, END, "is the bad end bad, in the same way?", oom),
        (12, SEARCH, "halves 25 suspects", good),
        (18, SEARCH, "halves 13 suspects", broken),
        (19, SEARCH, "jumps away from a skipped commit", oom),
        (15, SEARCH, "halves 7 suspects", lost),
        (15, SEARCH, "again: the worker was lost", good),
        (9, SEARCH, "a free worker: what if 15 is wrong?", mock),
        (16, SEARCH, "halves 4 suspects", good),
        (17, SEARCH, "decides between the last two", oom),
        (17, CONFIRM, "the culprit must fail again, its whole peak measured", oom if truncated else bad),
        (16, CONFIRM, "its parent must pass again", good),
        (25, REVERT, "the bad end without the culprit", good),
    ]
    entries = list(ledger_of(line, plan))
    without = State(commit=line.bad.hash, packages=(("revert-of", line.commits[17].short),))
    last = entries[-1]
    entries[-1] = LedgerEntry(
        sequence=last.sequence,
        trial=Trial(state=without, attempt=1, purpose=REVERT, why=last.trial.why),
        measurement=last.measurement.evolve(state=without),
    )
    return Sample(
        spec=BisectionSpec(
            range=line,
            criterion=Criterion(kind=CriterionKind.OUT_OF_MEMORY, capacity_bytes=CAPACITY_BYTES),
            workers=2,
        ),
        ledger=tuple(entries),
        finding=Finding(
            kind=FindingKind.FOUND,
            commits=(line.commits[17].hash,),
            parent=line.commits[16].hash,
            confidence=0.9973,
            why="it failed twice with one signature, and its parent passed twice",
        ),
        evidence=Evidence(
            bisection="b-20261130-1",
            repository="nightly",
            profile="qwen3-vl-tiny-cpu",
            started_at="2026-11-30T02:11:05Z",
            finished_at="2026-11-30T02:17:48Z",
            parent_config=config(),
            culprit_config=config(recompute_modules=["core_attn"]),
            parent_lock="torch==2.13.0\nnumpy==2.3.1\n",
            culprit_lock="torch==2.13.0\nnumpy==2.3.1\n",
            diff_summary=DiffSummary(files=(FileChange(path="recipes/qwen3_vl.py", added=3, removed=2),)),
            revert=RevertOutcome.CLEAN,
            remedies=REMEDIES,
            comparison=PlantedComparison(delta={(C.EXPERTS, K.ACTIVATIONS): round(38.9 * MIB)}),
            launch=LAUNCH,
            posterior=posterior(line, 17, 0.9973),
        ),
    )


VISION_DELTA: dict[Cell, float] = {
    (C.VISION, K.ACTIVATIONS): 16.9,
    (C.PROJECTOR, K.ACTIVATIONS): 2.2,
    (C.DECODER, K.ACTIVATIONS): 19.1,
    (C.EXPERTS, K.ACTIVATIONS): 9.2,
    (C.EMBEDDING_AND_LOSS, K.TEMPORARY): 2.6,
}


def larger_images(commit: str = "0" * 40) -> Measurement:
    made = measurement(commit, VISION_DELTA)
    assert made.peak is not None
    return made.evolve(steps=steps(made.peak.allocated_bytes, patches=1836, image_tokens=459, seconds=0.83))


def _short_plan(culprit: int, last: int, good: Measurement, bad: Measurement) -> list[Planned]:
    return [
        (0, END, "is the good end good?", good),
        (last, END, "is the bad end bad?", bad),
        (last // 2, SEARCH, "halves the suspects", good if last // 2 < culprit else bad),
        (culprit - 1, SEARCH, "halves the suspects", good),
        (culprit, SEARCH, "decides between the last two", bad),
        (culprit, CONFIRM, "the culprit must fail again", bad),
        (culprit - 1, CONFIRM, "its parent must pass again", good),
    ]


def _found(
    line: CommitRange, culprit: int, plan: list[Planned], criterion: Criterion, evidence: Evidence
) -> Sample:
    return Sample(
        spec=BisectionSpec(range=line, criterion=criterion),
        ledger=ledger_of(line, plan),
        finding=Finding(
            kind=FindingKind.FOUND,
            commits=(line.commits[culprit].hash,),
            parent=line.commits[culprit - 1].hash,
            confidence=0.994,
            why="it failed twice with one signature, and its parent passed twice",
        ),
        evidence=evidence,
    )


def vision() -> Sample:
    """FOUND: more pixels. The decoder grows by more bytes than the vision tower, and is not to blame."""
    line = commits(culprit=11, subject="Train on larger images")
    return _found(
        line,
        11,
        _short_plan(11, 25, measurement(), larger_images()),
        Criterion(kind=CriterionKind.OUT_OF_MEMORY, capacity_bytes=CAPACITY_BYTES),
        Evidence(
            repository="nightly",
            profile="qwen3-vl-tiny-cpu",
            parent_config=config(),
            culprit_config={**config(), "dataset": {"max_pixels": 470_000}},
            launch=LAUNCH,
            posterior=posterior(line, 11, 0.994),
            revert=RevertOutcome.CONFLICTS,
            conflicts=("recipes/qwen3_vl.py",),
        ),
    )


def pin() -> Sample:
    """FOUND: a commit that only moves a locked package, which hands over larger images."""
    line = commits(culprit=20, subject="Bump nightly-images to 1.1.0")
    rows = list(line.commits)
    rows[20] = Commit(**{**rows[20].__dict__, "paths": ("requirements.lock",), "environment_key": "env-2"})
    line = CommitRange(commits=tuple(rows))
    return _found(
        line,
        20,
        _short_plan(20, 25, measurement(), larger_images()),
        Criterion(kind=CriterionKind.OUT_OF_MEMORY, capacity_bytes=CAPACITY_BYTES),
        Evidence(
            repository="nightly",
            profile="qwen3-vl-tiny-cpu",
            parent_config=config(),
            culprit_config=config(),
            parent_lock="torch==2.13.0\nnightly_images==1.0.0\n",
            culprit_lock="torch==2.13.0\nnightly-images==1.1.0\n",
            launch=LAUNCH,
            posterior=posterior(line, 20, 0.994),
            revert=RevertOutcome.CLEAN,
        ),
    )


def throughput() -> Sample:
    """FOUND: expert dispatch takes longer."""
    line = commits(culprit=7, subject="Exchange tokens through the host")
    slow_time = {
        **BASE_TIME,
        (Activity.DISPATCH, Phase.FORWARD): 0.131,
        (Activity.DISPATCH, Phase.BACKWARD): 0.149,
    }
    base_peak = peak().allocated_bytes
    slow = measurement(time=TimeBreakdown(cells=slow_time), steps=steps(base_peak, seconds=0.81))
    return _found(
        line,
        7,
        _short_plan(7, 25, measurement(), slow),
        Criterion(kind=CriterionKind.THROUGHPUT, threshold=650.0),
        Evidence(
            repository="nightly",
            profile="qwen3-vl-tiny-cpu",
            parent_config=config(),
            culprit_config=config(),
            launch=LAUNCH,
            posterior=posterior(line, 7, 0.994),
        ),
    )


def credible_set() -> Sample:
    """SET: three commits that do not import lie around the culprit."""
    sample = experts()
    line = sample.spec.range
    good, oom = measurement(), refused("0" * 40, EXPERTS_DELTA)
    broken = measurement(
        outcome=Outcome.UNBUILDABLE, reason="the lock names a package that cannot be found", steps=()
    ).evolve(peak=None)
    plan: list[Planned] = [
        (0, END, "is the good end good?", good),
        (25, END, "is the bad end bad?", oom),
        (12, SEARCH, "halves 25 suspects", good),
        (18, SEARCH, "halves 13 suspects", oom),
        (15, SEARCH, "halves 6 suspects", good),
        (16, SEARCH, "halves 3 suspects", broken),
        (17, SEARCH, "next to a skipped commit", broken),
    ]
    return Sample(
        spec=sample.spec,
        ledger=ledger_of(line, plan),
        finding=Finding(
            kind=FindingKind.SET,
            commits=tuple(c.hash for c in line.commits[16:19]),
            confidence=0.9912,
            why="two commits in a row cannot be tested",
            problem="untestable-stretch",
        ),
        evidence=Evidence(repository="nightly", profile="qwen3-vl-tiny-cpu", launch=LAUNCH),
    )


def untestable() -> Sample:
    """SET: neither end could be judged, for the data was mock data; the trials have peaks all the same."""
    sample = experts()
    mock = measurement(
        outcome=Outcome.INVALID, reason="mock data where real data was asked for", real_data=False, images=0
    )
    plan: list[Planned] = [
        (25, END, "is the bad end bad?", mock),
        (0, END, "is the good end good?", mock),
        (25, END, "is the bad end bad, measured again?", mock),
    ]
    line = sample.spec.range
    return Sample(
        spec=sample.spec,
        ledger=ledger_of(line, plan),
        finding=Finding(
            kind=FindingKind.SET,
            commits=tuple(c.hash for c in line.commits[1:]),
            confidence=0.92,
            why="Neither end can be judged. The bad end: mock data where real data was asked for",
            problem="all-untestable",
        ),
        evidence=replace(sample.evidence, posterior=posterior(line, 17, 0.04)),
    )


def cancelled() -> Sample:
    """SET: the search was cancelled after the good end had passed; nothing was seen to fail."""
    sample = untestable()
    plan: list[Planned] = [
        (0, END, "is the good end good?", measurement()),
        (25, END, "is the bad end bad?", sample.ledger[0].measurement),
    ]
    return Sample(
        spec=sample.spec,
        ledger=ledger_of(sample.spec.range, plan),
        finding=Finding(
            kind=FindingKind.SET,
            commits=sample.finding.commits,
            confidence=0.92,
            why="It was cancelled. So far 25 of 25 suspects remain; the likeliest is 9fb8fb73da with 4.0 %",
            problem="cancelled",
        ),
        evidence=sample.evidence,
    )


def nothing() -> Sample:
    """NONE: the bad end passes."""
    sample = experts()
    good = measurement()
    plan: list[Planned] = [
        (0, END, "is the good end good?", good),
        (25, END, "is the bad end bad?", good),
        (25, END, "is the bad end bad, measured again?", good),
    ]
    return Sample(
        spec=sample.spec,
        ledger=ledger_of(sample.spec.range, plan),
        finding=Finding(
            kind=FindingKind.NONE,
            confidence=0.995,
            why="the bad end passes like the good end",
            problem="bad-end-passes",
        ),
        evidence=Evidence(repository="nightly", profile="qwen3-vl-tiny-cpu", launch=LAUNCH),
    )


def retention() -> Sample:
    """FOUND: experts' activations are kept from step to step. The cell grows by more than its component."""
    sample = experts()
    delta: dict[Cell, float] = {(C.EXPERTS, K.ACTIVATIONS): 48.3, (C.EXPERTS, K.GRADIENTS): -0.5}
    bad = measurement(delta=delta)
    assert bad.peak is not None
    kept = bad.evolve(steps=steps(bad.peak.allocated_bytes, growth_mib=12.0))
    return Sample(
        spec=sample.spec,
        ledger=ledger_of(sample.spec.range, _short_plan(17, 25, measurement(), kept)),
        finding=sample.finding,
        evidence=sample.evidence,
    )


ASKED = Evidence(
    bisection="b-20261130-2",
    repository="nightly",
    profile="qwen3-vl-tiny-cpu",
    good="nightly-green",
    bad="main",
)

REJECTED = Finding(
    kind=FindingKind.REJECTED,
    why="the good end 'nightly-green' is not a ref of the repository: fetch it, or give a full hash",
    problem="unknown-ref",
)
