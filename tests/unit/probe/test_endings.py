"""A script ends under the probe as it would alone, with its record written first."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PROBE = Path(__file__).parents[3] / "workers" / "probe"

Run = Callable[..., tuple[subprocess.CompletedProcess[str], dict[str, Any] | None]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a script under the probe: how it ended, and its record."""
    python = os.environ.get("FIRSTBAD_TEST_MEGATRON_PYTHON", "")
    if not python:
        pytest.skip("FIRSTBAD_TEST_MEGATRON_PYTHON names no interpreter with torch")

    def run(source: str, *arguments: str, **environment: str) -> Any:
        script = tmp_path / "job.py"
        script.write_text(source)
        ended = subprocess.run(
            [python, "-m", "firstbad_probe", script, *arguments],
            cwd=tmp_path,
            env={
                **os.environ,
                "PYTHONPATH": str(PROBE),
                "PYTHONDONTWRITEBYTECODE": "1",
                "FIRSTBAD_DEVICE": "cpu",
                "FIRSTBAD_PROBE_DIRECTORY": str(tmp_path / "probe"),
                **environment,
            },
            capture_output=True,
            text=True,
            check=False,
        )
        record = tmp_path / "probe" / "rank-0.json"
        return ended, json.loads(record.read_text()) if record.exists() else None

    return run


def test_the_script_is_main_and_sees_its_own_arguments_and_neighbours(run: Run, tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").write_text("word = 'seen'\n")
    ended, record = run("import sys, neighbour\nprint(__name__, sys.argv[1:], neighbour.word)", "a", "b=1")
    assert ended.stdout == "__main__ ['a', 'b=1'] seen\n"
    assert ended.returncode == 0
    assert record is not None
    assert record["imports"] == {"neighbour": str(tmp_path / "neighbour.py")}
    (reason,) = record["invalid"]
    assert reason.startswith("no step was seen")
    assert "Megatron Bridge's own loop" in reason


@pytest.mark.parametrize(("code", "status"), [(0, "completed"), (3, "failed")])
def test_an_exit_code_is_kept(run: Run, code: int, status: str) -> None:
    ended, record = run(f"import sys\nsys.exit({code})")
    assert ended.returncode == code
    assert record is not None
    assert record["status"] == status


def test_a_wrapped_out_of_memory_error_is_found(run: Run) -> None:
    source = (
        "import torch\n"
        "def step():\n    raise torch.OutOfMemoryError('no room')\n"
        "try:\n    step()\nexcept RuntimeError as error:\n    raise ValueError('step failed') from error\n"
    )
    ended, record = run(source)
    assert ended.returncode == 1
    assert record is not None
    assert record["status"] == "out_of_memory"
    assert (record["error"]["message"], record["error"]["frames"]) == (
        "no room",
        ["job.py:<module>", "job.py:step"],
    )


def test_a_killed_process_leaves_no_half_written_file(run: Run, tmp_path: Path) -> None:
    ended, record = run("import os\nos.kill(os.getpid(), 9)")
    assert (ended.returncode, record) == (-9, None)
    assert not (tmp_path / "probe").exists()


def test_an_order_that_cannot_be_followed_runs_nothing(run: Run) -> None:
    ended, record = run("print('ran')", FIRSTBAD_DEVICE="tpu")
    assert (ended.stdout, record) == ("", None)
    assert ended.returncode == 1
    assert "FIRSTBAD_DEVICE is 'tpu'" in ended.stderr


def test_cuda_code_runs_on_the_cpu_and_is_counted(run: Run) -> None:
    source = (
        "import torch\n"
        "batch = torch.ones(4, device='cuda').cuda().to('cuda:0')\n"
        "torch.cuda.synchronize()\n"
        "assert batch.device.type == 'cpu'\n"
        "assert batch.type() == 'torch.cuda.FloatTensor'\n"
    )
    ended, record = run(source)
    assert ended.returncode == 0, ended.stderr
    assert record is not None
    assert record["patches"] == {
        "Tensor.cuda": 1,
        "Tensor.to('cuda')": 1,
        "Tensor.type": 1,
        "torch.cuda.synchronize": 1,
        "torch.ones(device='cuda')": 1,
    }


def test_a_stand_in_is_seen_by_its_importers_alone_and_refuses_to_be_called(run: Run) -> None:
    source = (
        "import transformer_engine.pytorch as te\n"
        "class Layer(te.ops.Sequential): ...\n"
        "try:\n"
        "    exec('import transformer_engine', {'__name__': 'megatron.core.utils'})\n"
        "except ModuleNotFoundError:\n"
        "    print('core finds nothing')\n"
        "try:\n"
        "    te.fp8_autocast()\n"
        "except RuntimeError as error:\n"
        "    print(error)\n"
    )
    ended, record = run(source)
    assert ended.returncode == 0, ended.stderr
    nothing, refused = ended.stdout.splitlines()
    assert nothing == "core finds nothing"
    assert refused.startswith("transformer_engine.pytorch.fp8_autocast was called, but its package is not")
    assert record is not None
    assert record["patches"]["stand-in for transformer_engine"] == 1
