"""The probe's own folder on the path, and its scenes played once in a training environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PROBE = Path(__file__).parents[3] / "workers" / "probe"
sys.path.insert(0, str(PROBE))

Played = Callable[[str], Any]


@pytest.fixture(scope="session")
def scene() -> Played:
    """What a function of `scenes.py` answered where there is torch, which is not here."""
    return _played("scenes.py")


@pytest.fixture(scope="session")
def device_scene() -> Played:
    """The same of `device_scenes.py`."""
    return _played("device_scenes.py")


def _played(script: str) -> Played:
    python = os.environ.get("FIRSTBAD_TEST_MEGATRON_PYTHON", "")
    if not python:
        pytest.skip("FIRSTBAD_TEST_MEGATRON_PYTHON names no interpreter with torch")
    played = subprocess.run(
        [python, Path(__file__).with_name(script)],
        env={**os.environ, "PYTHONPATH": str(PROBE), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert played.returncode == 0, played.stderr
    answers: dict[str, Any] = json.loads(played.stdout)
    return answers.__getitem__
