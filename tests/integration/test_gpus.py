"""Who holds the GPUs, through an `nvidia-smi` that prints the driver's words from two files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from bisection.commits import State
from bisection.measurement import Measurement, Outcome
from tests.integration.test_trial_run import Host, job
from workers import gpus

A, B = "GPU-5c1b6a52-2a27-4d8e-8d52-000000000001", "GPU-9e0f11aa-4b1c-4f0e-9f11-000000000002"


class Driver:
    """What nvidia-smi says on this host. Two GPUs, the second of them free."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        program = folder / "nvidia-smi"
        program.write_text(
            "#!/bin/sh\n"
            f'[ -e "{folder}/broken" ] && {{ cat "{folder}/broken"; exit 18; }}\n'
            f'case "$1" in --query-gpu=*) cat "{folder}/gpus";; *) cat "{folder}/apps";; esac\n'
        )
        program.chmod(0o755)
        self.holds()

    def holds(self, *holders: tuple[int, str, int], used: int | None = None) -> None:
        """Processes on the first GPU: pid, name and MiB; ``used`` where the driver shows none of them."""
        total = sum(mebibytes for _, _, mebibytes in holders) if used is None else used
        self._write("apps", "".join(f"{A}, {pid}, {name}, {m}\n" for pid, name, m in holders))
        self._write("gpus", f"0, {A}, {total}, 143771\n1, {B}, 0, 143771\n")

    def _write(self, name: str, text: str) -> None:
        scratch = self.folder / f".{name}"
        scratch.write_text(text)
        scratch.replace(self.folder / name)


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver(tmp_path / "driver")
    monkeypatch.setenv("PATH", f"{made.folder}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for name, seconds in (("WAIT_SECONDS", 0.5), ("SETTLE_SECONDS", 0.5), ("POLL_SECONDS", 0.1)):
        monkeypatch.setattr(gpus, name, seconds)
    return made


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def measured(host: Host, program: str = "") -> Measurement:
    state = State(commit=host.commit(train__py=program + job()))
    return host.run(
        state, device="cuda", gpus=1, launch=[{"command": ["{python}", "train.py", "steps={steps}"]}]
    ).measurement


def test_little_that_others_hold_is_recorded_and_not_waited_for(host: Host, driver: Driver) -> None:
    driver.holds((4242, "/usr/bin/Xorg", 300), (77, "python3, of a notebook", 40))
    trial = measured(host)
    assert trial.outcome is Outcome.COMPLETED
    assert trial.gpu_bytes_of_others == 340 * 2**20
    assert (
        "before the trial: 340 MiB of 140.4 GiB of GPU 0 held by pid 4242 (Xorg) with 300 MiB, "
        "pid 77 (python3, of a notebook) with 40 MiB"
    ) in trial.notes
    assert Measurement.from_json(trial.to_json()) == trial


def test_a_gpu_that_others_keep_loses_the_trial_and_says_who_and_how_much(host: Host, driver: Driver) -> None:
    driver.holds((4242, "/opt/venv/bin/python", 20480))
    trial = measured(host)
    assert trial.outcome is Outcome.LOST
    assert "20.0 GiB of 140.4 GiB of GPU 0 held by pid 4242 (python) with 20.0 GiB" in trial.reason
    host.assert_nothing_is_left()


def test_memory_without_a_process_is_somebodys_too(host: Host, driver: Driver) -> None:
    driver.holds(used=20480)
    assert "held by processes that the driver does not show here" in measured(host).reason


def test_a_gpu_that_gets_free_is_waited_for(
    host: Host, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "WAIT_SECONDS", 60.0)
    driver.holds((4242, "python", 20480))
    threading.Timer(2.0, driver.holds).start()
    trial = measured(host)
    assert (trial.outcome, trial.gpu_bytes_of_others) == (Outcome.COMPLETED, 0)


@pytest.mark.parametrize("chosen", ["1", B[:12]])
def test_only_the_workers_own_gpus_count(
    host: Host, driver: Driver, monkeypatch: pytest.MonkeyPatch, chosen: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    driver.holds((4242, "python", 20480))
    assert measured(host).outcome is Outcome.COMPLETED


def test_what_a_trial_leaves_on_a_gpu_is_told(host: Host, driver: Driver) -> None:
    left = f"open({str(driver.folder / 'gpus')!r}, 'w').write('0, {A}, 3072, 143771\\n')\n"
    trial = measured(host, left)
    assert trial.outcome is Outcome.COMPLETED
    assert any(
        note.startswith("3.0 GiB more than before the trial were still held 0.5 s") for note in trial.notes
    )


def test_a_driver_that_does_not_answer_is_noted(host: Host, driver: Driver) -> None:
    (driver.folder / "broken").write_text("Failed to initialize NVML: Driver/library version mismatch\n")
    trial = measured(host)
    assert (trial.outcome, trial.gpu_bytes_of_others) == (Outcome.COMPLETED, None)
    assert (
        "who holds the GPUs is not known: nvidia-smi ended with 18: "
        "Failed to initialize NVML: Driver/library version mismatch"
    ) in trial.notes


def test_a_node_of_a_cluster_looks_by_itself(driver: Driver, tmp_path: Path) -> None:
    """As `slurm_task` starts it; a busy node is told after the wait, which is a constant there."""
    driver.holds((4242, "python", 100))
    file = tmp_path / "gpus-0.json"
    program = [sys.executable, "-I", gpus.__file__]
    assert subprocess.run([*program, "--before", str(file)], check=False).returncode == 0
    driver.holds((4242, "python", 100), (5, "train", 900))
    threading.Timer(2.0, lambda: driver.holds((4242, "python", 100))).start()
    started = time.monotonic()
    assert subprocess.run([*program, "--after", str(file)], check=False).returncode == 0
    assert time.monotonic() - started >= 1.0
    row = json.loads(file.read_text())
    assert row["others_bytes"] == 100 * 2**20
    assert row["notes"] == [
        "before the trial: 100 MiB of 140.4 GiB of GPU 0 held by pid 4242 (python) with 100 MiB"
    ]
