"""What the search costs on the shape of real histories, with planted culprits.

    python benchmarks/search_history.py --history FOLDER --windows 200 --seed 1 --json

FOLDER holds `megatron_bridge.jsonl` and `megatron_lm.jsonl`, one first-parent commit a line, oldest first:
sha, paths, and for Megatron Bridge the gitlink and the blobs of its lock. Two figures come of it. For random
windows of 60 commits: how many states remain for a vision-language profile, and how many trials name a
planted culprit. For each bump of the submodule whose two ends lie on the first-parent line: the commits
inside it, and the trials of the inner range, whose ends the outer search has tried already (they are started
with two trials each on the ledger).

Not covered: bumps whose ends are not both on that line (diverged ones), and the factor test before an inner
range. Keys: windows, states_mean, runs_mean, right, bumps, bumps_off_the_line, inner_commits_median,
inner_runs_mean, inner_runs_max, inner_right.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from bisection.commits import Commit, CommitRange
from bisection.criteria import Criterion, CriterionKind
from bisection.finding import Finding
from bisection.ledger import LedgerEntry, Purpose, Trial
from bisection.measurement import Measurement, Outcome
from bisection.search import Search
from bisection.specification import BisectionSpec, Budget
from bisection.states import Line

WINDOW = 60
#: What can change a vision-language training run of Megatron Bridge.
RELEVANT = ("src/", "scripts/training/", "examples/", "3rdparty/", "pyproject.toml", "uv.lock")
SUBMODULE = "3rdparty/Megatron-LM"


def read_history(path: Path) -> list[dict[str, Any]]:
    return [json.loads(row) for row in path.read_text().splitlines()]


def commits_of(rows: Sequence[Mapping[str, Any]], relevant: Sequence[str]) -> list[Commit]:
    """Commits with the keys that a profile's relevant paths give them; no relevant path: every one counts."""
    commits: list[Commit] = []
    tree = 0
    for row in rows:
        if not relevant or any(path.startswith(tuple(relevant)) for path in row["paths"]):
            tree += 1
        blobs = json.dumps(row.get("blobs") or {}, sort_keys=True)
        commits.append(
            Commit(
                hash=row["sha"],
                parents=(commits[-1].hash,) if commits else (),
                paths=tuple(row["paths"]),
                pins={SUBMODULE: row["gitlink"]} if row.get("gitlink") else {},
                tree_key=f"{tree}",
                environment_key=hashlib.sha256(blobs.encode()).hexdigest()[:12],
            )
        )
    return commits


def bisect(commits: Sequence[Commit], culprit: int, *, ends_known: bool) -> tuple[int, bool]:
    """Trials to an answer for a planted culprit (an index), one worker and no flakes; whether it is right."""
    spec = BisectionSpec(
        range=CommitRange(commits=tuple(commits)),
        criterion=Criterion(kind=CriterionKind.CRASH),
        budget=Budget(trials=200),
        relevant_paths=RELEVANT if not ends_known else (),
    )
    position = {commit.hash: index for index, commit in enumerate(commits)}
    search = Search.replay(spec, ())

    def record(trial: Trial) -> None:
        bad = position[trial.state.commit] >= culprit
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
                record(Trial(state=search.line.state(group), attempt=attempt, purpose=Purpose.END))
    before = len(search.ledger)
    while True:
        decision = search.next(1, ())
        if isinstance(decision, Finding):
            return len(search.ledger) - before, decision.commits == (commits[culprit].hash,)
        record(decision[0])


def measure(history: Path, windows: int, seed: int) -> dict[str, float]:
    bridge = read_history(history / "megatron_bridge.jsonl")
    core = read_history(history / "megatron_lm.jsonl")
    random = np.random.default_rng(seed)
    states, runs, right = [], [], []
    for _ in range(windows):
        start = int(random.integers(len(bridge) - WINDOW))
        commits = commits_of(bridge[start : start + WINDOW + 1], RELEVANT)
        line = Line.through(CommitRange(commits=tuple(commits)))
        states.append(len(line))
        if len(line) > 1:
            first = line.first_commit(1 + int(random.integers(len(line) - 1)))
            count, found = bisect(commits, commits.index(first), ends_known=False)
            runs.append(count)
            right.append(found)
    return {
        "windows": windows,
        "states_mean": float(np.mean(states)),
        "runs_mean": float(np.mean(runs)),
        "right": float(np.mean(right)),
        **_inner(bridge, core, random),
    }


def _inner(
    bridge: Sequence[Mapping[str, Any]], core: Sequence[Mapping[str, Any]], random: np.random.Generator
) -> dict[str, float]:
    """Every bump of the submodule, bisected inside."""
    place = {row["sha"]: index for index, row in enumerate(core)}
    links = [row["gitlink"] for row in bridge if row["gitlink"]]
    bumps = [(old, new) for old, new in pairwise(links) if old != new]
    ranges = [
        core[place[old] : place[new] + 1]
        for old, new in bumps
        if old in place and new in place and place[old] < place[new]
    ]
    inner = []
    for rows in ranges:
        commits = commits_of(rows, ())
        inner.append(bisect(commits, 1 + int(random.integers(len(commits) - 1)), ends_known=True))
    counts = np.array([count for count, _ in inner])
    return {
        "bumps": len(bumps),
        "bumps_off_the_line": len(bumps) - len(ranges),
        "inner_commits_median": float(np.median([len(rows) - 1 for rows in ranges])),
        "inner_runs_mean": float(counts.mean()),
        "inner_runs_max": float(counts.max()),
        "inner_right": float(np.mean([found for _, found in inner])),
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
            print(f"{name:22} {figure:.2f}")


if __name__ == "__main__":
    main()
