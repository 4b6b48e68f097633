"""What the search costs, and how often it is right, with a planted culprit.

Everything here goes through the shipped `Search`: the flake rates, the culprit and
the untestable commits are known to this file alone. One JSON object is printed.

    python benchmarks/search_cost.py --commits 60 --workers 4 --false-negative .1 --false-positive .01 \\
        --trials 2000 --seed 1 --json

Keys: runs_mean, runs_p95 (started trials; the ends, the confirmations and cancelled ones count), right,
false_accusations, no_answer (shares of all runs), rounds_mean (time with equal trials, in trials),
makespan_mean and makespan_waves_mean (the same with lognormal trial times of sigma 0.5 and mean 1: refilled
at once, or in waves), answer_set_mean (commits in an answer), confidence_gap and brier (the belief in the
likeliest suspect against whether it was the culprit, had the run been stopped after each of its trials: the
largest difference of mean belief and frequency over ten groups of equal size by belief, and the mean
square).

A belief can match its frequency only over the runs that it was made for. With one pair of flake rates in all
runs, and a culprit in each, it is too modest where trials never flake and too sure where they always do.
``--mixed`` is the population to read confidence_gap on: each run draws its rates from the pairs of the
table in docs/explanation/search.md, and has no culprit, or a bad good end, as often as the prior says.
"""

from __future__ import annotations

import argparse
import heapq
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from bisection.commits import Commit, CommitRange
from bisection.criteria import Criterion, CriterionKind
from bisection.finding import Finding, FindingKind
from bisection.ledger import LedgerEntry, Trial
from bisection.measurement import Measurement, Outcome, Peak
from bisection.prior import GOOD_END_IS_BAD, NO_CULPRIT
from bisection.search import Search
from bisection.specification import BisectionSpec, Budget
from memory_models.breakdown import GIB, Category, Component, MemoryBreakdown

#: The peaks of good and bad commits, and the limit between them.
GOOD_BYTES, BAD_BYTES, LIMIT_BYTES = 60 * GIB, 70 * GIB, 65 * GIB
#: Spread of the logarithm of trial times where they differ.
TIME_SIGMA = 0.5
#: What trials flake like in a mixed population: (false negatives, false positives), all equally often.
MIXED_RATES = ((0.0, 0.0), (0.1, 0.01), (0.1, 0.1), (0.3, 0.05))
HOT_PATH, COLD_PATH = "src/recipe/model.py", "docs/guide.md"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One row of the table."""

    commits: int
    workers: int
    false_negative: float
    false_positive: float
    prior: str
    skips: float
    skip_shape: str
    no_culprit: bool
    unrelated: int
    metric_sigma: float | None
    environments: int
    mixed: bool = False


@cache
def _commit(position: int, path: str, environment: str) -> Commit:
    return Commit(
        hash=f"{position:040x}",
        parents=(f"{position - 1:040x}",) if position else (),
        paths=(path,),
        tree_key=str(position),
        environment_key=environment,
    )


class PlantedWorld:
    """A range with a planted culprit, and what a trial of each commit comes to."""

    def __init__(self, setting: Setting, random: np.random.Generator) -> None:
        n = setting.commits
        self.setting, self.random = setting, random
        hot = np.zeros(n + 1, dtype=bool)
        if setting.prior != "uniform":
            hot[1 + random.choice(n, size=max(1, n // 10), replace=False)] = True
        self.false_negative, self.false_positive = setting.false_negative, setting.false_positive
        if setting.mixed:
            self.false_negative, self.false_positive = MIXED_RATES[random.integers(len(MIXED_RATES))]
        self.culprit = self._plant(hot)
        self.skipped = self._skipped()
        self.unrelated: set[int] = set()
        if setting.unrelated:
            room = self.culprit - setting.unrelated
            start = 1 + int(random.integers(max(1, room)))
            self.unrelated = set(range(start, min(self.culprit, start + setting.unrelated)))
        per_environment = (n + 1) / max(1, setting.environments)
        self.range = CommitRange(
            commits=tuple(
                _commit(
                    i,
                    HOT_PATH if hot[i] or setting.prior == "uniform" else COLD_PATH,
                    str(int(i / per_environment)) if setting.environments else "",
                )
                for i in range(n + 1)
            )
        )

    def _plant(self, hot: np.ndarray) -> int:
        """Position of the culprit; behind the range if there is none, 0 if the good end is bad."""
        n, random = self.setting.commits, self.random
        if self.setting.no_culprit or (self.setting.mixed and random.random() < NO_CULPRIT):
            return n + 1
        if self.setting.mixed and random.random() < GOOD_END_IS_BAD / (1 - NO_CULPRIT):
            return 0
        earliest = 1 + self.setting.unrelated
        if self.setting.prior == "informative" and random.random() < 0.8:
            return int(random.choice(np.flatnonzero(hot)))
        if self.setting.prior == "wrong":
            return int(random.choice(np.flatnonzero(~hot)[1:]))
        return int(random.integers(earliest, n + 1))

    def _skipped(self) -> set[int]:
        """Untestable commits; both ends were seen to run, or nobody would ask."""
        n, share = self.setting.commits, self.setting.skips
        if self.setting.skip_shape == "block":
            length = round(share * n)
            start = 1 + int(self.random.integers(max(1, n - length)))
            return set(range(start, min(n, start + length)))
        return {i for i in range(1, n) if self.random.random() < share}

    def specification(self, seed: int) -> BisectionSpec:
        criterion = Criterion(kind=CriterionKind.CRASH)
        if self.setting.metric_sigma is not None:
            criterion = Criterion(kind=CriterionKind.PEAK_MEMORY, threshold=float(LIMIT_BYTES))
        return BisectionSpec(
            range=self.range,
            criterion=criterion,
            budget=Budget(trials=500),
            parallel=self.setting.workers,
            workers=self.setting.workers,
            seed=seed,
        )

    def run(self, trial: Trial, worker: str) -> Measurement:
        """What a trial comes to."""
        position = int(trial.state.commit, 16)
        outcome, signature, peak = self._outcome(position)
        return Measurement(
            outcome=outcome, state=trial.state, worker=worker, signature=signature, peak=peak, seconds=1.0
        )

    def _outcome(self, position: int) -> tuple[Outcome, str, Peak | None]:
        if position in self.skipped:
            return Outcome.UNBUILDABLE, "", None
        if position in self.unrelated:
            return Outcome.CRASHED, "another bug", None
        bad = position >= self.culprit
        flaked = self.random.random() < (self.false_negative if bad else self.false_positive)
        looks_bad = bad != flaked
        if self.setting.metric_sigma is None:
            return (Outcome.CRASHED, "the bug", None) if looks_bad else (Outcome.COMPLETED, "", None)
        noise = self.random.standard_normal() * (BAD_BYTES - GOOD_BYTES) / self.setting.metric_sigma
        peak_bytes = max(0, int((BAD_BYTES if looks_bad else GOOD_BYTES) + noise))
        cells = {(Component.EXPERTS, Category.ACTIVATIONS): peak_bytes}
        peak = Peak(
            rank=0,
            step=0,
            phase="forward",
            instant="",
            allocated_bytes=peak_bytes,
            reserved_bytes=peak_bytes,
            breakdown=MemoryBreakdown(cells=cells),
        )
        return Outcome.COMPLETED, "", peak


@dataclass(frozen=True, kw_only=True)
class Run:
    """One simulated bisection."""

    finding: Finding
    started: int
    makespan: float
    waves: list[list[Trial]]  #: trials by the moment they were started
    beliefs: list[tuple[float, bool]]  #: after each trial, in the likeliest suspect; was it the culprit?


def simulate(world: PlantedWorld, seed: int, duration: Callable[[Trial], float]) -> Run:
    """Drive the search with W workers; each takes a trial as soon as it is free and allowed to."""
    search = Search.replay(world.specification(seed), ())
    beliefs: list[tuple[float, bool]] = []
    free = list(range(world.setting.workers))
    busy: list[tuple[float, int, Trial, int]] = []
    queue: list[Trial] = []
    waves: list[list[Trial]] = []
    now, started, recorded = 0.0, 0, 0
    while True:
        decision = search.next(world.setting.workers, [*(trial for _, _, trial, _ in busy), *queue])
        if isinstance(decision, Finding):
            break
        queue += decision
        begun = _assign(queue, free, idle=not busy)
        for trial, worker in begun:
            heapq.heappush(busy, (now + duration(trial), started, trial, worker))
            started += 1
        if begun:
            waves.append([trial for trial, _ in begun])
        now = busy[0][0]
        while busy and busy[0][0] <= now + 1e-9:  # equal trials end together
            _, _, trial, worker = heapq.heappop(busy)
            free.append(worker)
            search.record(
                LedgerEntry(sequence=recorded, trial=trial, measurement=world.run(trial, f"worker-{worker}"))
            )
            recorded += 1
            beliefs.append(_likeliest(search, world))
    return Run(
        finding=decision,
        started=started,
        makespan=now,
        waves=waves,
        beliefs=beliefs,
    )


def _likeliest(search: Search, world: PlantedWorld) -> tuple[float, bool]:
    """The belief in the likeliest suspect, and whether it is the culprit."""
    belief = search.standing.posterior.belief[1:-1]  # without the two hypotheses that blame no commit
    likeliest = 1 + int(np.argmax(belief))
    return float(belief[likeliest - 1]), likeliest == world.culprit


def _assign(queue: list[Trial], free: list[int], *, idle: bool) -> list[tuple[Trial, int]]:
    """Give queued trials to free workers that may run them; an idle pool runs one in any case."""
    begun: list[tuple[Trial, int]] = []
    for trial in sorted(queue, key=lambda trial: -len(trial.avoid_workers)):
        twins = {f"worker-{worker}" for other, worker in begun if other.state == trial.state}
        allowed = [w for w in sorted(free) if f"worker-{w}" not in {*trial.avoid_workers, *twins}]
        if not allowed and idle and not begun:
            allowed = sorted(free)
        if allowed:
            free.remove(allowed[0])
            queue.remove(trial)
            begun.append((trial, allowed[0]))
    return begun


def measure(setting: Setting, trials: int, seed: int) -> dict[str, float]:
    """The figures of one setting over seeded runs."""
    seeds = np.random.SeedSequence(seed).spawn(trials)
    equal: list[Run] = []
    worlds: list[PlantedWorld] = []
    makespans: list[float] = []
    waves: list[float] = []
    for number, child in enumerate(seeds):
        plan, results, again, times = child.spawn(4)
        world = PlantedWorld(setting, np.random.default_rng(plan))
        world.random = np.random.default_rng(results)
        run = simulate(world, number, _with_environments(world, lambda: 1.0))
        clock = np.random.default_rng(times)
        lognormal = _lognormal(clock)
        waves.append(sum(max(lognormal() for _ in wave) for wave in run.waves))
        world.random = np.random.default_rng(again)
        makespans.append(simulate(world, number, _with_environments(world, lognormal)).makespan)
        equal.append(run)
        worlds.append(world)
    return _summary(equal, worlds, makespans, waves)


def _lognormal(random: np.random.Generator) -> Callable[[], float]:
    """Trial times with mean 1."""
    return lambda: float(random.lognormal(-(TIME_SIGMA**2) / 2, TIME_SIGMA))


def _with_environments(world: PlantedWorld, time: Callable[[], float]) -> Callable[[Trial], float]:
    """A trial in an environment that was not made yet takes one trial's time more."""
    made: set[str] = {""}
    keys = {commit.hash: commit.environment_key for commit in world.range.commits}

    def duration(trial: Trial) -> float:
        key = keys[trial.state.commit]
        extra = 0.0 if key in made else 1.0
        made.add(key)
        return time() + extra

    return duration


def _summary(
    runs: Sequence[Run], worlds: Sequence[PlantedWorld], makespans: Sequence[float], waves: Sequence[float]
) -> dict[str, float]:
    started = np.array([run.started for run in runs])
    right = accused = silent = 0
    answers = []
    for run, world in zip(runs, worlds, strict=True):
        finding, culprit = run.finding, f"{world.culprit:040x}"
        if finding.commits:
            answers.append(len(finding.commits))
        if not 0 < world.culprit <= world.setting.commits:
            right += finding.kind is FindingKind.NONE
            accused += finding.kind is FindingKind.FOUND
        elif finding.problem == "budget-spent" or finding.kind is FindingKind.NONE:
            silent += 1
        else:
            right += culprit in finding.commits
            accused += culprit not in finding.commits
    belief, hit = np.array([moment for run in runs for moment in run.beliefs], dtype=float).T
    return {
        "runs_mean": float(started.mean()),
        "runs_p95": float(np.percentile(started, 95)),
        "right": right / len(runs),
        "false_accusations": accused / len(runs),
        "no_answer": silent / len(runs),
        "rounds_mean": float(np.mean([run.makespan for run in runs])),
        "makespan_mean": float(np.mean(makespans)),
        "makespan_waves_mean": float(np.mean(waves)),
        "answer_set_mean": float(np.mean(answers)) if answers else 0.0,
        "confidence_gap": _gap(belief, hit),
        "brier": float(((belief - hit) ** 2).mean()),
    }


def _gap(belief: np.ndarray, hit: np.ndarray) -> float:
    """The largest difference of mean belief and frequency over deciles of the belief."""
    deciles = np.array_split(np.argsort(belief, kind="stable"), 10)
    return float(max(abs(belief[decile].mean() - hit[decile].mean()) for decile in deciles))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--commits", type=int, required=True, help="suspects after the good end")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--false-negative", type=float, default=0.0)
    parser.add_argument("--false-positive", type=float, default=0.0)
    parser.add_argument("--prior", choices=["uniform", "informative", "wrong"], default="uniform")
    parser.add_argument("--skips", type=float, default=0.0, help="share of untestable commits")
    parser.add_argument("--skip-shape", choices=["random", "block"], default="random")
    parser.add_argument("--no-culprit", action="store_true")
    parser.add_argument("--unrelated", type=int, default=0, help="good commits that fail for another reason")
    parser.add_argument("--metric-sigma", type=float, help="the effect in standard deviations")
    parser.add_argument("--environments", type=int, default=0)
    parser.add_argument(
        "--mixed", action="store_true", help="flake rates and hypotheses differ from run to run"
    )
    parser.add_argument("--trials", type=int, default=200, help="simulated bisections")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = vars(parser.parse_args(arguments))
    trials, seed, as_json = options.pop("trials"), options.pop("seed"), options.pop("json")
    figures = measure(Setting(**options), trials, seed)
    if as_json:
        json.dump(figures, sys.stdout)
        print()
    else:
        for name, figure in figures.items():
            print(f"{name:22} {figure:.4f}")


if __name__ == "__main__":
    main()
