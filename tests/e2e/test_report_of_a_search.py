"""From the first trial to the report: the real search over a planted culprit, then its log in real git.

The repository is made by git, the measurements are planted; nothing else stands in for anything.
"""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import pytest

from bisection.commits import Commit, CommitRange
from bisection.criteria import Criterion, CriterionKind
from bisection.finding import Finding, FindingKind
from bisection.ledger import LedgerEntry, Trial
from bisection.measurement import Measurement, Outcome
from bisection.rendering.html import render_html
from bisection.rendering.markdown import render_markdown
from bisection.rendering.terminal import render_text
from bisection.report import CulpritReport, Evidence, build_report
from bisection.search import Search
from bisection.specification import BisectionSpec
from memory_models.breakdown import Component
from tests.unit.report import samples

ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
    **{
        f"GIT_{role}_{field}": "a@example.invalid"
        for role in ("AUTHOR", "COMMITTER")
        for field in ("NAME", "EMAIL")
    },
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
}
COMMITS = 24


def git(folder: Path, *argv: str) -> str:
    done = subprocess.run(["git", *argv], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True)
    return done.stdout + done.stderr


def history(folder: Path, docs_only: set[int]) -> CommitRange:
    """A line of commits; those in ``docs_only`` are the state of the commit before them."""
    git(folder, "init", "--quiet")
    rows: list[Commit] = []
    for index in range(COMMITS):
        (folder / "file").write_text(str(index))
        git(folder, "add", "file")
        git(folder, "commit", "--quiet", "-m", f"commit {index}")
        rows.append(
            Commit(
                hash=git(folder, "rev-parse", "HEAD").strip(),
                parents=(rows[-1].hash,) if rows else (),
                subject=f"commit {index}",
                author="a",
                paths=("docs/x.md",) if index in docs_only else ("train.py",),
                tree_key=rows[-1].tree_key if index in docs_only else f"tree-{index}",
                environment_key="env",
            )
        )
    return CommitRange(commits=tuple(rows))


def measured(line: CommitRange, trial: Trial, culprit: int, broken: set[int], sequence: int) -> Measurement:
    position = line.position(trial.state.commit)
    worker = (
        f"worker-{1 + sequence % 2}"
        if f"worker-{1 + sequence % 2}" not in trial.avoid_workers
        else "worker-3"
    )
    if position in broken:
        return Measurement(
            outcome=Outcome.CRASHED,
            reason="ImportError",
            signature="ImportError",
            state=trial.state,
            device="cpu",
            worker=worker,
        )
    if position < culprit:
        return samples.measurement(trial.state.commit, worker=worker)
    if trial.enforce_capacity:
        return samples.refused(trial.state.commit, samples.EXPERTS_DELTA).evolve(worker=worker)
    return samples.measurement(trial.state.commit, samples.EXPERTS_DELTA, worker=worker)


def searched(line: CommitRange, culprit: int, broken: set[int]) -> tuple[CulpritReport, Finding]:
    spec = BisectionSpec(
        range=line,
        criterion=Criterion(kind=CriterionKind.OUT_OF_MEMORY, capacity_bytes=samples.CAPACITY_BYTES),
        workers=2,
    )
    ledger: list[LedgerEntry] = []
    while True:
        search = Search.replay(spec, ledger)
        decision = search.next(1, ())
        if isinstance(decision, Finding):
            evidence = Evidence(posterior=search.probabilities())
            return build_report(spec, ledger, decision, evidence), decision
        for trial in decision:
            found = measured(line, trial, culprit, broken, len(ledger))
            ledger.append(LedgerEntry(sequence=len(ledger), trial=trial, measurement=found))


@pytest.mark.parametrize("seed", range(4))
def test_a_planted_culprit_is_named_with_its_component_and_git_replays_the_log_to_it(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    culprit = chance.randrange(4, COMMITS - 4)
    docs_only = {culprit - 1, *chance.sample(range(1, COMMITS - 1), 3)} - {culprit, culprit + 1}
    line = history(tmp_path, docs_only)
    away = [i for i in range(1, COMMITS - 1) if abs(i - culprit) > 2 and i not in docs_only]
    report, finding = searched(line, culprit, set(chance.sample(away, 2)))
    assert finding.kind is FindingKind.FOUND
    assert report.culprit == line.commits[culprit]
    assert report.parent == line.commits[culprit - 1]
    regression = report.regression
    assert regression is not None
    assert regression.component is Component.EXPERTS
    for text in (render_html(report), render_markdown(report), render_text(report)):
        assert line.commits[culprit].short in text
    log = tmp_path / "log"
    log.write_text(report.git_bisect_log)
    assert f"{line.commits[culprit].hash} is the first bad commit" in git(
        tmp_path, "bisect", "replay", str(log)
    )


def test_a_culprit_among_broken_commits_is_a_set_that_git_agrees_with(tmp_path: Path) -> None:
    line = history(tmp_path, set())
    report, finding = searched(line, 12, {11, 12, 13})
    assert finding.kind is FindingKind.SET
    assert finding.commits == tuple(commit.hash for commit in line.commits[11:15])
    assert report.regression is not None
    assert report.regression.component is Component.EXPERTS
    log = tmp_path / "log"
    log.write_text(report.git_bisect_log)
    printed = git(tmp_path, "bisect", "replay", str(log))
    assert all(commit in printed for commit in finding.commits)
