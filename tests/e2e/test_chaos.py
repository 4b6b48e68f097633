"""Bisections under a seeded plan of kills, freezes, losses and cuts, by the benchmark that makes them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("database", "bisections", "faults", "seed"),
    [
        ("sqlite", 1, 9, 55),
        pytest.param("sqlite", 4, 40, 12, marks=pytest.mark.long),
        pytest.param("postgresql", 4, 40, 13, marks=pytest.mark.long),
    ],
)
def test_faults_lose_nothing_double_nothing_and_change_no_answer(
    database: str, bisections: int, faults: int, seed: int, request: pytest.FixtureRequest
) -> None:
    if database == "postgresql":
        request.getfixturevalue("postgresql")  # skips where there is none
    done = subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks.chaos", "--json", "--database", database),
            *("--bisections", str(bisections), "--faults", str(faults), "--seed", str(seed)),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    del result["seconds"]
    wanted = {"bisections": bisections, "lost": 0, "wrong": 0, "doubled": 0, "orphans": 0}
    assert result.pop("faults") >= faults
    assert result == wanted
