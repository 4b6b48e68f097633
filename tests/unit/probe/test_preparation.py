"""Compilations and captures are counted step by step, and packed samples one by one."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

PROBE = Path(__file__).parents[3] / "workers" / "probe"

COMPILING = """
import json
from types import SimpleNamespace
import torch
from firstbad_probe.batch import Batches
from firstbad_probe.preparation import Preparations

counted = Preparations()
taken = [counted.take()]
double = torch.compile(lambda x: x * 2, backend="eager")
for size in (3, 3, 5):
    double(torch.ones(size))
    taken.append(counted.take())
class Graph:
    def capture_end(self):
        return "ended"
torch.cuda.CUDAGraph = Graph
captures = Preparations()
captures.take()
ended = Graph().capture_end()

batches = Batches()
tokens = torch.ones(1, 12, dtype=torch.long)
packed = SimpleNamespace(cu_seqlens_q=torch.tensor([0, 4, 7, 12]))
batches.see({"input_ids": tokens, "packed_seq_params": packed}, counted=True)
batches.see({"input_ids": tokens.reshape(2, 6)}, counted=True)
print(json.dumps([taken, ended, captures.take(), batches.take_counts()()]))
"""


@pytest.fixture(scope="module")
def seen() -> Any:
    python = os.environ.get("FIRSTBAD_TEST_MEGATRON_PYTHON", "")
    if not python:
        pytest.skip("FIRSTBAD_TEST_MEGATRON_PYTHON names no interpreter with torch")
    played = subprocess.run(
        [python, "-c", COMPILING],
        env={**os.environ, "PYTHONPATH": str(PROBE), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert played.returncode == 0, played.stderr
    taken, ended, captured, counts = json.loads(played.stdout)
    return SimpleNamespace(taken=taken, ended=ended, captured=captured, counts=counts)


def test_only_steps_that_compile_are_told_to(seen: Any) -> None:
    assert seen.taken == [0, 1, 0, 1]


def test_a_captured_graph_counts_and_ends_as_it_would_alone(seen: Any) -> None:
    assert (seen.ended, seen.captured) == ("ended", 1)


def test_packed_samples_are_counted_by_their_boundaries_and_others_by_rows(seen: Any) -> None:
    assert seen.counts["sequences"] == 3 + 2
    assert seen.counts["tokens"] == 24
