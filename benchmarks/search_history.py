"""What the search costs on the shape of real histories, beside `git bisect run` on the same culprits.

    python benchmarks/search_history.py --history FOLDER --windows 200 --seed 1 --json

FOLDER holds `megatron_bridge.jsonl` and `megatron_lm.jsonl`, see `histories`. Two kinds of range come of it:
random windows of 60 commits, for a vision-language profile; and the inside of every bump of the submodule,
whose two ends the outer search has tried already (they are started with two trials each on the ledger). A
diverged bump is the path from the old pin back to the merge base and on to the new pin: where the fault
begins on the way back, a fix was lost. In each a culprit is planted, and looked for twice: by the shipped
`Search` with one worker, and by real `git bisect run` on a generated repository of that shape, given the
profile's paths. Both see the same flakes: what the first trial of a commit comes to is drawn once.

Keys of the JSON: windows, states_mean, bumps, first_pins (with nothing before them), inner_ranges, diverged,
off_the_record (real length, borrowed paths), inner_commits_median, inner_commits_max; `inner_runs`, for every
bump in the order of history its commit in Megatron Bridge, the commits inside and the runs without flakes;
and for each flake setting ("flake_0_0" none; "flake_0.1_0.01": a bad run passes in one of ten cases, a good
one fails in one of a hundred) the objects `windows`, `inner`, and of the diverged bumps once more
`inner_diverged` (culprit half way from the merge base to the new pin) and `inner_lost_fix` (half way from the
old pin back to it), each of ranges, runs_mean, runs_p95, runs_max, right, accused_wrongly, git_runs_mean,
git_right, git_accused_wrongly. Every trial of the search counts: ends of a window, confirmations. Git does
not run its ends.

Not covered: the factor test before an inner range, states that do not build, more than one worker.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.histories import RELEVANT, SUBMODULE, Bump, bumps_of, commits_of, read_history
from benchmarks.plain_git import GeneratedRepository
from bisection.commits import Commit, CommitRange, State
from bisection.criteria import Criterion, CriterionKind
from bisection.finding import Finding, FindingKind
from bisection.ledger import LedgerEntry, Purpose, Trial
from bisection.levels import Level, LevelKind
from bisection.measurement import Measurement, Outcome
from bisection.search import Search
from bisection.specification import BisectionSpec, Budget

WINDOW = 60
#: (chance that a bad run passes, chance that a good one fails)
FLAKES = ((0.0, 0.0), (0.1, 0.01))


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A culprit at an index of a range, and what each trial of each commit comes to."""

    culprit: int
    false_negative: float
    false_positive: float
    seed: tuple[int, ...]

    def looks_bad(self, index: int, attempt: int) -> bool:
        bad = index >= self.culprit
        draw = np.random.default_rng([*self.seed, index, attempt]).random()
        return bad != (draw < (self.false_negative if bad else self.false_positive))


@dataclass(frozen=True, kw_only=True)
class Answers:
    """Runs and answer of both, for one planted culprit. An answer is "right", "wrong" or "none"."""

    runs: int
    answer: str
    git_runs: int
    git_answer: str


def outer_spec(commits: Sequence[Commit]) -> BisectionSpec:
    return BisectionSpec(
        range=CommitRange(commits=tuple(commits)),
        criterion=Criterion(kind=CriterionKind.CRASH),
        budget=Budget(trials=200),
        relevant_paths=RELEVANT,
    )


def inner_spec(bump: Bump) -> BisectionSpec:
    """The level that a descent opens: the bump as it is, with one commit of the submodule after another."""
    parent, moved = Commit(hash=hashlib.sha1(bump.commit.encode()).hexdigest()), Commit(hash=bump.commit)
    steps = commits_of(bump.rows, ())
    states = [State(commit=moved.hash, pins=((SUBMODULE, step.hash),)) for step in steps[:-1]]
    level = Level(
        kind=LevelKind.PIN,
        range=CommitRange(commits=tuple(steps)),
        states=(*states, State(commit=moved.hash)),
        path=SUBMODULE,
        turn=bump.base,
        opened_by=Finding(kind=FindingKind.FOUND, commits=(moved.hash,), parent=parent.hash),
    )
    return outer_spec([parent, moved]).with_level(level)


def run_search(spec: BisectionSpec, planted: Planted, *, ends_known: bool) -> tuple[int, str]:
    """Trials of the shipped search to its answer on the last level, with one worker."""
    search = Search.replay(spec, ())
    culprit = search.level.range.commits[planted.culprit].hash
    position = {state: index for index, state in enumerate(search.level.states)}

    def record(trial: Trial, bad: bool) -> None:
        measurement = Measurement(
            outcome=Outcome.CRASHED if bad else Outcome.COMPLETED,
            state=trial.state,
            worker="worker",
            signature="the bug" if bad else "",
        )
        search.record(LedgerEntry(sequence=len(search.ledger), trial=trial, measurement=measurement))

    if ends_known:
        for group in (0, search.line.last):
            for attempt in (1, 2):
                record(Trial(state=search.line.state(group), attempt=attempt, purpose=Purpose.END), group > 0)
    before = len(search.ledger)
    while True:
        decision = search.next(1, ())
        if isinstance(decision, Finding):
            return len(search.ledger) - before, _standing(decision, culprit)
        trial = decision[0]
        record(trial, planted.looks_bad(position[trial.state], trial.attempt))


def _standing(finding: Finding, culprit: str) -> str:
    if finding.kind is not FindingKind.FOUND:
        return "none"
    return "right" if finding.commits == (culprit,) else "wrong"


def ask_both(
    spec: BisectionSpec,
    repository: GeneratedRepository,
    offset: int,
    planted: Planted,
    *,
    inner: bool,
) -> Answers:
    """``offset`` is the row of the first commit in the repository. Git tries each commit once."""
    runs, answer = run_search(spec, planted, ends_known=inner)
    steps = len(spec.levels[-1].range.commits)
    looks_bad = [offset + index for index in range(steps) if planted.looks_bad(index, 1)]
    git_runs, row = repository.bisect(offset, offset + steps - 1, looks_bad, () if inner else RELEVANT)
    named = "none" if row < 0 else "right" if row - offset == planted.culprit else "wrong"
    return Answers(runs=runs, answer=answer, git_runs=git_runs, git_answer=named)


def measure(history: Path, windows: int, seed: int) -> dict[str, Any]:
    bridge = read_history(history / "megatron_bridge.jsonl")
    core = read_history(history / "megatron_lm.jsonl")
    bumps = bumps_of(bridge, core)
    figures: dict[str, Any] = {
        "windows": windows,
        "bumps": len(bumps) + 1,
        "first_pins": 1,
        "inner_ranges": len(bumps),
        "diverged": sum(bump.diverged for bump in bumps),
        "off_the_record": sum(not bump.recorded for bump in bumps),
        "inner_commits_median": float(np.median([len(bump.rows) - 1 for bump in bumps])),
        "inner_commits_max": max(len(bump.rows) - 1 for bump in bumps),
    }
    with tempfile.TemporaryDirectory(prefix="firstbad-histories-") as scratch:
        outer = GeneratedRepository(Path(scratch) / "outer.git", bridge, submodule=SUBMODULE)
        inner = [
            GeneratedRepository(Path(scratch) / f"bump-{number}.git", bump.rows, base=bump.base)
            for number, bump in enumerate(bumps)
        ]
        ranges = [_window(bridge, np.random.default_rng([seed, number])) for number in range(windows)]
        lines = [Search(outer_spec(commits)).line for _, commits, _ in ranges]
        figures["states_mean"] = float(np.mean([len(line) for line in lines]))
        for false_negative, false_positive in FLAKES:
            name = f"flake_{false_negative:g}_{false_positive:g}"
            rates = {"false_negative": false_negative, "false_positive": false_positive}
            outside = [
                ask_both(
                    outer_spec(commits),
                    outer,
                    start,
                    Planted(culprit=culprit, seed=(seed, number), **rates),
                    inner=False,
                )
                for number, (start, commits, culprit) in enumerate(ranges)
                if culprit
            ]
            inside = [
                _inside(bump, repository, Planted(culprit=_plant(bump, seed, n), seed=(seed, 1, n), **rates))
                for n, (bump, repository) in enumerate(zip(bumps, inner, strict=True))
            ]
            parted = [(n, bump) for n, bump in enumerate(bumps) if bump.diverged]
            forth, back = (
                [
                    _inside(bump, inner[n], Planted(culprit=middle(bump), seed=(seed, 3, n), **rates))
                    for n, bump in parted
                ]
                for middle in (Bump.middle_on, Bump.middle_back)
            )
            figures[name] = {
                "windows": _summary(outside),
                "inner": _summary(inside),
                "inner_diverged": _summary(forth),
                "inner_lost_fix": _summary(back),
            }
            if not false_negative:
                figures["inner_runs"] = [
                    {"bump": bump.commit, "commits": len(bump.rows) - 1, "runs": answers.runs}
                    for bump, answers in zip(bumps, inside, strict=True)
                ]
    return figures


def _window(bridge: Sequence[dict[str, Any]], random: np.random.Generator) -> tuple[int, list[Commit], int]:
    """Its first row, its commits, and the index of the culprit; 0 if all of it is one state."""
    start = int(random.integers(len(bridge) - WINDOW))
    commits = commits_of(bridge[start : start + WINDOW + 1], RELEVANT)
    line = Search(outer_spec(commits)).line
    if len(line) == 1:
        return start, commits, 0
    return start, commits, commits.index(line.first_commit(1 + int(random.integers(len(line) - 1))))


def _plant(bump: Bump, seed: int, number: int) -> int:
    return 1 + int(np.random.default_rng([seed, 2, number]).integers(len(bump.rows) - 1))


def _inside(bump: Bump, repository: GeneratedRepository, planted: Planted) -> Answers:
    return ask_both(inner_spec(bump), repository, 0, planted, inner=True)


def _summary(answers: Sequence[Answers]) -> dict[str, float]:
    if not answers:
        return {}
    runs = np.array([one.runs for one in answers])
    return {
        "ranges": len(answers),
        "runs_mean": float(runs.mean()),
        "runs_p95": float(np.percentile(runs, 95)),
        "runs_max": float(runs.max()),
        "right": float(np.mean([one.answer == "right" for one in answers])),
        "accused_wrongly": float(np.mean([one.answer == "wrong" for one in answers])),
        "git_runs_mean": float(np.mean([one.git_runs for one in answers])),
        "git_right": float(np.mean([one.git_answer == "right" for one in answers])),
        "git_accused_wrongly": float(np.mean([one.git_answer == "wrong" for one in answers])),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--history", type=Path, required=True, help="folder of the two .jsonl files")
    parser.add_argument("--windows", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(arguments)
    figures = measure(options.history, options.windows, options.seed)
    if options.json:
        json.dump(figures, sys.stdout)
        print()
    else:
        for name, figure in figures.items():
            if isinstance(figure, dict):
                for kind, row in figure.items():
                    print(f"{name} {kind}:", ", ".join(f"{key} {value:.2f}" for key, value in row.items()))
            elif not isinstance(figure, list):
                print(f"{name:22} {figure:.2f}")


if __name__ == "__main__":
    main()
