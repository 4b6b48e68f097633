"""Whole trials: a real repository, real processes, a small job that writes what the probe would.

The job stands for another training script than Megatron Bridge's; the service's own
code runs unchanged around it.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from bisection.adapters.catalogue import Catalogue, Profile
from bisection.commits import State
from bisection.ledger import Purpose, Trial
from bisection.measurement import Outcome
from tests.repository_scene import RepositoryScene
from tests.wheel_scene import write_wheel
from workers import supervisor
from workers.trial_run import TrialResult, run_trial, sweep_trials

#: Python 3.12 warns of a fork beside another test's threads; the child here takes none of their locks.
pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")

#: A small job: honours the capacity, the changed keys and the probe's folder.
JOB = """
import json, os, sys, time
import photos
settings = dict(word.split("=", 1) for word in sys.argv[1:])
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
folder = os.environ["FIRSTBAD_PROBE_DIRECTORY"]
open("scratch.txt", "w").write("a run may write where it stands")
assert "DATABASE" not in "".join(os.environ)
size = @SIZE@ * int(settings.get("train.micro_batch_size", "1")) + rank
capacity = int(os.environ.get("FIRSTBAD_CAPACITY_BYTES", "0"))
refused = bool(capacity) and size > capacity
row = {
    "version": 1, "rank": rank, "world_size": world,
    "status": "out_of_memory" if refused else "completed",
    "error": {"type": "OutOfMemoryError", "message": "full", "frames": []} if refused else None,
    "invalid": [], "device": os.environ["FIRSTBAD_DEVICE"], "hardware": "cpu", "torch": "",
    "peak": {"rank": rank, "step": 1, "phase": "forward", "instant": "job",
             "allocated_bytes": size, "reserved_bytes": size,
             "breakdown": [{"component": "experts", "category": "activations", "bytes": size}]},
    "steps": [{"step": n, "peak_bytes": size, "retained_bytes": 1, "seconds": 0.1, "loss_tokens": 8,
               "image_tokens": 2, "padding_tokens": 0, "patches": 4} for n in range(int(settings["steps"]))],
    "time": [], "data": {"real": True, "images": 3}, "trainable": {}, "patches": {},
    "notes": [photos.version],
    "oom": {"component": "experts", "phase": "forward", "requested_bytes": 1, "allocated_bytes": size,
            "reserved_bytes": size} if refused else None,
    "imports": {"job": os.path.abspath(__file__)}, "instants": [],
}
json.dump(row, open(os.path.join(folder, f"rank-{rank}.json"), "w"))
if rank == 0:
    json.dump({"train": settings, "here": os.getcwd()}, open(os.path.join(folder, "config.json"), "w"))
print("trained in", os.getcwd(), flush=True)
sys.exit(1 if refused else 0)
"""


def job(size: int = 1000) -> str:
    return JOB.replace("@SIZE@", str(size))


class Host:
    """A worker host, its operator's files and one repository."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "root"
        self.scene = RepositoryScene(folder / "nightly")
        for version in ("1.0", "2.0"):
            write_wheel(folder / "wheels", "photos", version, f"version = 'photos {version}'\n")
        self.profile_row: dict[str, Any] = {
            "name": "tiny",
            "repository": "nightly",
            "environment": {
                "kind": "interpreter",
                "python": sys.executable,
                "lock": "requirements.lock",
                "overlay": ["photos"],
                "find_links": [str(folder / "wheels")],
            },
            "launch": [
                {"when": {"path_exists": "train.py"}, "command": ["{python}", "train.py", "steps={steps}"]}
            ],
            "limits": {"trial_seconds": 60},
        }
        for kind in ("profiles", "repositories"):
            (folder / "catalogue" / kind).mkdir(parents=True)
        row = {"name": "nightly", "url": self.scene.url}
        (folder / "catalogue" / "repositories" / "nightly.yaml").write_text(yaml.safe_dump(row))

    def commit(self, subject: str = "x", **files: str) -> str:
        return self.scene.commit(subject, **{"requirements__lock": "photos==1.0\n", **files})

    def run(
        self,
        state: State,
        *,
        capacity_bytes: int | None = None,
        overrides: dict[str, Any] | None = None,
        cancelled: Callable[[], bool] = lambda: False,
        progress: Callable[[str], None] = lambda _: None,
        **profile: Any,
    ) -> TrialResult:
        catalogue = Catalogue(self.folder / "catalogue")
        return run_trial(
            Trial(state=state, attempt=1, purpose=Purpose.SEARCH),
            profile=Profile.model_validate({**self.profile_row, **profile}),
            repository=catalogue.repository("nightly"),
            catalogue=catalogue,
            root=self.root,
            overrides=overrides or {},
            capacity_bytes=capacity_bytes,
            worker="w1",
            pseudonym_key=b"of a test",
            cancelled=cancelled,
            progress=progress,
        )

    def assert_nothing_is_left(self) -> None:
        """No process stands in this host's folders, and no trial's files are there."""
        inside = [pid for pid in supervisor._processes() if str(self.root) in _command_line(pid)]
        assert not inside
        assert list((self.root / "trials").iterdir()) == []


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setenv("FIRSTBAD_DATABASE_URL", "a secret of the service")
    return Host(tmp_path)


def test_a_state_is_measured_with_its_evidence(host: Host) -> None:
    commit = host.commit(train__py=job())
    lines: list[str] = []
    result = host.run(State(commit=commit), progress=lines.append, privacy={"samples": "leave"})
    measured = result.measurement
    assert (measured.outcome, measured.reason) == (Outcome.COMPLETED, "all steps were taken")
    assert measured.peak is not None
    assert measured.peak.allocated_bytes == 1000
    assert measured.notes == ("photos 1.0",)
    assert (measured.worker, measured.state) == ("w1", State(commit=commit))
    assert measured.environment_key
    assert measured.imports == {"job": "<workspace>/train.py"}
    assert set(result.artifacts) == {"log.txt", "launch.json", "config.json", "rank-0.json"}
    assert measured.artifacts == tuple(sorted(result.artifacts))
    assert result.artifacts["log.txt"].decode() == "trained in <workspace>\n"
    assert json.loads(result.artifacts["config.json"])["here"] == "<workspace>"
    assert "training starts" in lines
    host.assert_nothing_is_left()


def test_a_commit_is_told_a_setting_in_its_own_words_and_the_record_says_both(host: Host) -> None:
    old, present = "train.micro_batch_size", "train.rows"
    host.profile_row["renamed"] = [{"names": {present: f'"{present}"', old: f'"{old}"'}, "files": "train.py"}]
    host.profile_row["launch"][0]["name"] = "2025"
    result = host.run(State(commit=host.commit(train__py=job())), overrides={present: 2})
    assert result.measurement.peak is not None
    assert result.measurement.peak.allocated_bytes == 2000
    record = json.loads(result.artifacts["launch.json"])
    assert record["adapter"] == "2025"
    assert record["overrides"] == [{"written": present, "spelt": old, "value": 2}]
    unknown = host.run(State(commit=host.commit(train__py="pass")), overrides={present: 2}).measurement
    assert unknown.outcome is Outcome.UNBUILDABLE
    assert unknown.reason.startswith("this commit does not know train.rows under any of its names")


def test_two_trials_of_one_state_have_equal_digests(host: Host) -> None:
    state = State(commit=host.commit(train__py=job()))
    first, second = host.run(state).measurement, host.run(state).measurement
    assert first.config_digest == second.config_digest != ""
    assert first.environment_key == second.environment_key
    assert first.profile_digest == second.profile_digest
    changed = host.run(state, overrides={"train.micro_batch_size": 2}).measurement
    assert changed.peak is not None
    assert changed.peak.allocated_bytes == 2000
    assert changed.config_digest != first.config_digest


def test_a_capacity_that_is_enforced_makes_an_out_of_memory(host: Host) -> None:
    measured = host.run(State(commit=host.commit(train__py=job())), capacity_bytes=999).measurement
    assert measured.outcome is Outcome.OUT_OF_MEMORY
    assert measured.oom is not None
    assert measured.capacity_bytes == 999


def test_an_overridden_package_is_what_the_job_imports(host: Host) -> None:
    state = State(commit=host.commit(train__py=job()), packages=(("photos", "2.0"),))
    assert host.run(state).measurement.notes == ("photos 2.0",)


def test_two_ranks_are_one_measurement_of_the_worst(host: Host) -> None:
    commit = host.commit(train__py=job())
    adapter = {"command": ["{python}", "train.py", "steps={steps}"], "processes": 2}
    result = host.run(State(commit=commit), launch=[adapter])
    assert result.measurement.outcome is Outcome.COMPLETED
    assert result.measurement.peak is not None
    assert result.measurement.peak.rank == 1
    assert "rank-1.json" in result.artifacts


@pytest.mark.parametrize(
    ("files", "outcome", "says"),
    [
        ({"other__py": ""}, Outcome.UNBUILDABLE, "no launch adapter of profile tiny fits"),
        ({"train__py": "", "requirements__lock": "photos>=1"}, Outcome.UNBUILDABLE, "line 1"),
        ({"train__py": "", "requirements__lock": "photos==9"}, Outcome.UNBUILDABLE, "overlay photos==9"),
        ({"train__py": "import nowhere"}, Outcome.CRASHED, "ModuleNotFoundError: No module named 'nowhere'"),
    ],
)
def test_what_the_state_does_wrong_is_told_apart(
    host: Host, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], outcome: Outcome, says: str
) -> None:
    monkeypatch.setenv("UV_NO_INDEX", "1")
    measured = host.run(State(commit=host.commit(**files))).measurement
    assert measured.outcome is outcome
    assert says in measured.reason
    host.assert_nothing_is_left()


def test_a_crash_has_a_signature_with_its_place(host: Host) -> None:
    commit = host.commit(
        train__py="import recipes.a\n", recipes___a__py="def f():\n  raise KeyError(5)\nf()\n"
    )
    assert host.run(State(commit=commit)).measurement.signature == "KeyError: <n> @ recipes/a.py:f"


def test_a_commit_that_no_repository_has_is_unbuildable(host: Host) -> None:
    host.commit(train__py="")
    measured = host.run(State(commit="1" * 40)).measurement
    assert measured.outcome is Outcome.UNBUILDABLE
    assert "not even when asked for by its hash" in measured.reason


def test_a_link_whose_target_no_disk_takes_is_unbuildable(host: Host) -> None:
    host.commit(train__py=job())
    host.scene.git("update-index", "--add", "--cacheinfo", f"120000,{host.scene.blob(b'a/' * 3000)},link")
    measured = host.run(State(commit=host.scene.commit_index("a long link"))).measurement
    assert measured.outcome is Outcome.UNBUILDABLE
    assert "the link 'link' (4 bytes), or what it points to, is too long" in measured.reason
    host.assert_nothing_is_left()


@pytest.mark.parametrize("folders", [22, 19])
def test_a_path_that_no_disk_takes_is_unbuildable(host: Host, folders: int) -> None:
    host.commit(train__py=job())
    row = f"100644 blob {host.scene.blob(b'x')}\tf\n"
    # 19 folders fit on a disk, but not below this host's own folder of the trial.
    name = "d" * (200 if folders == 22 else 214)
    for _ in range(folders):
        row = f"040000 tree {host.scene.git('mktree', stdin=row.encode())}\t{name}\n"
    tree = host.scene.git("mktree", stdin=f"{host.scene.git('ls-tree', 'HEAD')}\n{row}".encode())
    commit = host.scene.git("commit-tree", tree, "-p", "HEAD", "-m", "deep")
    host.scene.git("update-ref", "refs/heads/deep", commit)
    measured = host.run(State(commit=commit)).measurement
    assert measured.outcome is Outcome.UNBUILDABLE
    assert "bytes) is too long for this disk" in measured.reason
    host.assert_nothing_is_left()


def test_a_damaged_mirror_is_made_anew_or_loses_the_trial_and_blames_this_host(host: Host) -> None:
    first = host.commit(train__py=job())
    host.run(State(commit=first))
    mirror = host.root / "mirrors" / "nightly.git"

    def damage() -> None:
        for path in [path for path in (mirror / "objects").rglob("*") if path.is_file()]:
            path.chmod(0o644)
            path.write_bytes(b"junk")

    damage()
    assert host.run(State(commit=first)).measurement.outcome is Outcome.COMPLETED
    damage()
    host.scene.folder.rename(host.folder / "away")
    measured = host.run(State(commit=first)).measurement
    assert measured.outcome is Outcome.LOST
    assert f"delete the folder {mirror}" in measured.reason
    assert "neither the commit nor the request" in measured.reason
    host.assert_nothing_is_left()


def test_a_host_that_cannot_work_says_so_and_blames_nobody(host: Host) -> None:
    commit = host.commit(train__py=job())
    environment = {"kind": "interpreter", "python": "/nowhere/python"}
    measured = host.run(State(commit=commit), environment=environment).measurement
    assert measured.outcome is Outcome.UNBUILDABLE
    assert "environment.python" in measured.reason
    (host.root / "workspaces").rename(host.root / "was")
    (host.root / "workspaces").write_text("no folder")
    measured = host.run(State(commit=commit)).measurement
    assert measured.outcome is Outcome.LOST
    assert "this worker failed" in measured.reason


SLEEPERS = (
    "import subprocess, time, os\n"
    "subprocess.Popen(['sh', '-c', 'sleep 600 & sleep 600'], start_new_session=True)\n"
    "open(os.environ['TMPDIR'] + '/../../../up', 'w').write('x')\n"
    "time.sleep(600)\n"
)


def test_cancelling_stops_every_process(host: Host) -> None:
    commit = host.commit(train__py=SLEEPERS)
    stop = threading.Event()

    def watch(line: str) -> None:
        if line == "training starts":
            threading.Timer(1.0, stop.set).start()

    measured = host.run(State(commit=commit), cancelled=stop.is_set, progress=watch).measurement
    assert measured.outcome is Outcome.LOST
    assert "cancelled" in measured.reason
    host.assert_nothing_is_left()


@pytest.mark.parametrize("killed", ["worker", "worker and supervisor"])
def test_a_killed_worker_leaves_no_process_and_the_next_one_sweeps_its_files(host: Host, killed: str) -> None:
    commit = host.commit(train__py=SLEEPERS)
    worker = multiprocessing.get_context("fork").Process(target=host.run, args=(State(commit=commit),))
    worker.start()
    deadline = time.monotonic() + 60
    while not (host.root / "up").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    trial = next(path for path in (host.root / "trials").iterdir() if path.is_dir())
    running = [pid for pid in supervisor._processes() if str(trial) in _environment_text(pid)]
    assert len(running) >= 4
    assert worker.pid is not None
    if killed != "worker":
        for pid in running:
            if supervisor.__file__ in _command_line(pid):
                os.kill(pid, signal.SIGSTOP)  # it must not see its owner die before it is killed itself
                os.kill(worker.pid, signal.SIGKILL)
                os.kill(pid, signal.SIGKILL)
    os.kill(worker.pid, signal.SIGKILL)
    worker.join()
    if killed != "worker":
        sweep_trials(host.root / "trials")  # as the next worker starts, be there another trial or not
    wait_for_the_end(running, str(trial))
    (host.root / "up").unlink()
    good = host.commit(train__py=job())
    assert host.run(State(commit=good)).measurement.outcome is Outcome.COMPLETED
    host.assert_nothing_is_left()


def wait_for_the_end(processes: list[int], trial: str) -> None:
    deadline = time.monotonic() + 15
    while any(trial in _environment_text(pid) for pid in processes):
        assert time.monotonic() < deadline, "a process of the trial outlived its worker"
        time.sleep(0.05)


def _environment_text(pid: int) -> str:
    return b"\0".join(supervisor._environment(pid)).decode(errors="replace")
