"""The benchmarks drive the shipped search, and repeat themselves under a seed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import search_cost, search_history
from benchmarks.plain_git import GeneratedRepository
from tests.unit.search.drawn_lines import hash_of

KEYS = {
    "runs_mean", "runs_p95", "right", "false_accusations", "no_answer", "rounds_mean", "makespan_mean",
    "makespan_waves_mean", "answer_set_mean", "confidence_gap", "brier",
}  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [
        "--workers 3",
        "--workers 2 --false-negative .1 --false-positive .01 --prior informative",
        "--skips .2 --skip-shape block",
        "--no-culprit",
        "--unrelated 5",
        "--metric-sigma 20 --environments 4",
    ],
)
def test_the_cost_benchmark_prints_all_its_figures_and_repeats_itself(
    options: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--commits", "16", "--trials", "4", "--seed", "3", "--json", *options.split()]
    printed = []
    for _ in range(2):
        search_cost.main(arguments)
        printed.append(capsys.readouterr().out)
    figures = json.loads(printed[0])
    assert set(figures) == KEYS
    assert figures["right"] == 1
    assert printed[0] == printed[1]


def test_the_history_benchmark_reads_both_histories(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    core = [{"sha": hash_of(1000 + i), "paths": ["megatron/core/moe.py"]} for i in range(20)]
    bridge = [
        {
            "sha": hash_of(i),
            "paths": ["src/a.py"] if i % 2 else ["docs/a.md"],
            "gitlink": hash_of(1000 + i // 10),
            "blobs": {},
        }
        for i in range(80)
    ]
    for name, rows in (("megatron_bridge", bridge), ("megatron_lm", core)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    search_history.main(["--history", str(tmp_path), "--windows", "3", "--json"])
    figures = json.loads(capsys.readouterr().out)
    calm, flaky = figures["flake_0_0"], figures["flake_0.1_0.01"]
    assert calm["windows"]["right"] == calm["inner"]["right"] == calm["inner"]["git_right"] == 1
    assert flaky["windows"]["accused_wrongly"] == 0
    assert (figures["bumps"], figures["inner_ranges"]) == (8, 7)
    assert 30 <= figures["states_mean"] <= 32


def test_plain_git_is_really_asked_and_sees_a_lost_fix_as_no_answer(tmp_path: Path) -> None:
    #   0 .. 3  lead back to the merge base 4, 5 .. 9 lead on from it
    rows = [{"paths": [f"src/{n}.py"]} for n in range(10)]
    repository = GeneratedRepository(tmp_path / "diverged.git", rows, base=4)
    assert repository.bisect(0, 9, range(7, 10), ())[1] == 7
    assert repository.bisect(0, 9, range(2, 10), ()) == (1, -1)  # the merge base is bad: git gives up


def test_the_stated_belief_is_the_frequency_where_rates_and_hypotheses_are_mixed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["--commits", "24", "--workers", "2", "--mixed", "--trials", "300", "--seed", "5", "--json"]
    search_cost.main(arguments)
    figures = json.loads(capsys.readouterr().out)
    # 2,000 searches stay within .03; with 300 a tenth of the moments is known to about .02 by chance alone.
    assert figures["confidence_gap"] < 0.05
    assert figures["right"] > 0.98
