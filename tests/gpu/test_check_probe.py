"""The script for a machine with a GPU says so where there is none, and its checks hold in rehearsal."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("check_probe.py")


@pytest.fixture
def python() -> str:
    found = os.environ.get("FIRSTBAD_TEST_MEGATRON_PYTHON", "")
    if not found:
        pytest.skip("FIRSTBAD_TEST_MEGATRON_PYTHON names no interpreter with torch")
    return found


def _run(python: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [python, SCRIPT, *arguments], env=environment, capture_output=True, text=True, check=False
    )


def test_without_a_gpu_it_ends_at_once_and_says_so(python: str) -> None:
    ended = _run(python)
    if ended.returncode != 3:
        pytest.skip("there is a GPU here: run the script itself")
    assert (ended.stdout, ended.stderr.split(":")[0]) == ("", "no GPU")


@pytest.mark.long
def test_its_checks_hold_on_the_hosts_tensors(python: str) -> None:
    ended = _run(python, "--rehearse")
    answer = json.loads(ended.stdout)
    failed = [check for check in answer["checks"] if check["passed"] is False]
    assert not failed, failed
    assert ended.returncode == 0
    assert answer["card"] == "none: a rehearsal, no measurement"
    assert sum(check["passed"] is True for check in answer["checks"]) >= 6
