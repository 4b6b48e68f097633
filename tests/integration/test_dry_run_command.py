"""`firstbad dry-run`: the shipped job on real Megatron Bridge code, asked as people ask."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from firstbad.dry_run_command import dry_run

CONFIG = Path(__file__).with_name("models") / "qwen3_vl_30b_a3b.json"
WORDS = (
    *("--world", "8", "--images", "2*256x256"),
    *("--set", "model.num_layers=3", "--set", "model.expert_model_parallel_size=8"),
)


def ask(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "firstbad", "dry-run", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


@pytest.fixture(scope="module")
def python() -> str:
    named = os.environ.get("FIRSTBAD_TEST_MEGATRON_PYTHON", "")
    if not named:
        pytest.skip("FIRSTBAD_TEST_MEGATRON_PYTHON names no interpreter with Megatron Bridge")
    return named


def test_the_answer_holds_the_peak_beside_the_estimate_and_says_that_it_is_simulated(
    python: str, tmp_path: Path
) -> None:
    picture = tmp_path / "memory.svg"
    asked = ask(CONFIG, *WORDS, "--python", python, "--json", "--svg", picture)
    assert asked.returncode == 0, asked.stderr
    row = json.loads(asked.stdout)
    assert row["simulated"] is True
    assert row["asked"]["images"] == [[256, 256], [256, 256]]
    assert any("NCCL" in told for told in row["not_modelled"])
    assert row["patches"]
    peak = row["ranks"][0]["peak"]["allocated_bytes"]
    cells = row["estimate"]["cells"]
    assert sum(cell["simulated_bytes"] for cell in cells) == peak
    assert sum(cell["estimated_bytes"] for cell in cells) == row["estimate"]["allocated_bytes"]
    # What is exact in both is equal; the rest is named where it differs.
    states = [cell for cell in cells if cell["category"] == "optimizer_states" and cell["estimated_bytes"]]
    assert states
    assert all(abs(cell["difference_bytes"]) < 2**16 for cell in states)
    apart = [cell for cell in cells if abs(cell["difference_bytes"]) > 2**28]
    assert all(cell["simulated"] or cell["estimated"] for cell in apart)
    assert max(point["allocated_bytes"] for point in row["instants"]) == peak
    drawn = ElementTree.fromstring(picture.read_text())
    said = " ".join(text.text or "" for text in drawn.iter("{http://www.w3.org/2000/svg}text"))
    assert "SIMULATED on DRY RUN" in said
    assert "rank 0 of 8, dry: 2 steps taken" in asked.stderr, "progress is told while it runs"


def test_an_interpreter_without_megatron_bridge_is_told_and_nothing_is_run() -> None:
    asked = ask(CONFIG, *WORDS, "--python", sys.executable)
    assert asked.returncode == 1
    assert "Megatron Bridge" in asked.stderr
    assert "--python" in asked.stderr
    assert "Traceback" not in asked.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"images": "4096"}, "is no picture"),
        ({"layers": "fast"}, "production or unfused"),
        ({"settings": ["model.num_layers"]}, "is not KEY=VALUE"),
        ({"capacity": "80 stones"}, "no amount of memory"),
        ({"config": Path(__file__)}, "neither YAML nor JSON"),
    ],
)
def test_words_that_mean_nothing_are_refused_before_anything_starts(words: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        dry_run(**{"config": CONFIG, "world": 8, "python": Path("/nowhere/python"), **words})
