"""Trials as jobs of a real Slurm cluster of two nodes on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from bisection.adapters.catalogue import Catalogue
from bisection.commits import State
from bisection.ledger import Purpose, Trial
from bisection.measurement import Measurement, Outcome
from tests.repository_scene import RepositoryScene
from tests.slurm_cluster import Cluster, missing
from workers.slurm_task import Lease
from workers.supervisor import descendants
from workers.trial_run import run_trial


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if missing() or os.geteuid() != 0:
        pytest.skip(f"a Slurm of one's own needs root and Debian's slurm-wlm and munge; missing: {missing()}")
    running = Cluster(tmp_path_factory.mktemp("slurm"))
    running.start()
    yield running
    running.stop()


class Host:
    """A submit host with a repository whose training is one small program."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.scene = RepositoryScene(root / "origin")
        (root / "catalogue" / "repositories").mkdir(parents=True)
        (root / "catalogue" / "profiles").mkdir()
        row = {"name": "origin", "url": self.scene.url}
        (root / "catalogue" / "repositories" / "origin.yaml").write_text(yaml.safe_dump(row))

    def run(
        self,
        program: str,
        *,
        nodes: int = 1,
        processes: int = 1,
        options: tuple[str, ...] = (),
        queue_seconds: float = 60.0,
        seconds: float = 60.0,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Measurement:
        commit = self.scene.commit("train", train__py=program)
        row = {
            "name": "small",
            "repository": "origin",
            "environment": {"kind": "interpreter", "python": sys.executable},
            "launch": [{"command": ["{python}", "train.py", "{trial}"], "processes": processes}],
            "slurm": {"nodes": nodes, "options": list(options), "queue_seconds": queue_seconds},
            "data": {"kind": "mock"},
            "privacy": {"samples": "leave"},
            "limits": {"trial_seconds": seconds},
        }
        (self.root / "catalogue" / "profiles" / "small.yaml").write_text(yaml.safe_dump(row))
        catalogue = Catalogue(self.root / "catalogue")
        self.said: list[str] = []
        self.result = run_trial(
            Trial(state=State(commit=commit), attempt=1, purpose=Purpose.SEARCH),
            profile=catalogue.profile("small"),
            repository=catalogue.repository("origin"),
            catalogue=catalogue,
            root=self.root / "home",
            overrides={},
            capacity_bytes=None,
            worker="test",
            pseudonym_key=b"of a test",
            cancelled=cancelled,
            progress=self.said.append,
        )
        return self.result.measurement

    @property
    def log(self) -> str:
        return self.result.artifacts["log.txt"].decode()


@pytest.fixture
def host(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    monkeypatch.setenv("SLURM_CONF", str(cluster.configuration))
    yield Host(tmp_path)
    deadline = time.monotonic() + 30  # a job that is being ended stays listed for some seconds
    while cluster.asked("squeue", "-h", "-t", "pending,running") and time.monotonic() < deadline:
        time.sleep(0.5)
    assert cluster.asked("squeue", "-h", "-t", "pending,running") == "", "a job outlived its trial"


def test_a_trial_runs_as_a_job_and_its_failure_is_told(host: Host) -> None:
    measured = host.run(
        "import os; print('job', os.environ['SLURM_JOB_ID'] != ''); raise ValueError('broken')"
    )
    assert measured.outcome is Outcome.CRASHED
    assert "broken" in measured.reason
    assert "job True" in host.log
    assert any("Slurm job" in line for line in host.said), host.said


def test_ranks_on_two_nodes_meet(host: Host) -> None:
    program = (
        "import os\n"
        "names = ('RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'MASTER_ADDR', 'MASTER_PORT', 'SLURMD_NODENAME')\n"
        "os.write(1, ' '.join(['rank', *(os.environ[name] for name in names), '\\n']).encode())\n"
    )
    host.run(program, nodes=2, processes=2)
    rows = sorted(line.split() for line in host.log.splitlines() if line.startswith("rank "))
    assert [row[1:4] for row in rows] == [["0", "0", "4"], ["1", "1", "4"], ["2", "0", "4"], ["3", "1", "4"]]
    assert len({(row[4], row[5]) for row in rows}) == 1, "all ranks meet at one place"
    assert [row[6] for row in rows] == ["n1", "n1", "n2", "n2"]


def test_the_time_limit_counts_from_the_jobs_start_and_ends_it(host: Host) -> None:
    measured = host.run("import time; time.sleep(300)", seconds=2.0)
    assert measured.outcome is Outcome.TIMED_OUT, measured.reason


def test_a_job_that_the_cluster_refuses_is_the_hosts_fault(host: Host) -> None:
    measured = host.run("pass", options=("--partition=nowhere",))
    assert measured.outcome is Outcome.LOST
    assert "invalid partition" in measured.reason.lower()


def test_a_job_that_never_starts_is_lost_and_taken_back(host: Host) -> None:
    measured = host.run("pass", options=("--begin=now+3600",), queue_seconds=1.0, seconds=1.0)
    assert measured.outcome is Outcome.LOST
    assert "did not start within 1 s" in measured.reason


def test_a_cancelled_trial_takes_its_job_back(host: Host, cluster: Cluster) -> None:
    started = time.monotonic()
    measured = host.run(
        "import time; time.sleep(300)",
        cancelled=lambda: (
            time.monotonic() - started > 2 and "RUNNING" in cluster.asked("squeue", "-h", "-o", "%T")
        ),
    )
    assert measured.outcome is Outcome.LOST
    assert "cancelled" in measured.reason


def test_a_job_that_others_cancel_is_lost(host: Host, cluster: Cluster) -> None:
    def cancel() -> None:
        while not cluster.asked("squeue", "-h", "-t", "running", "-o", "%i"):
            time.sleep(0.2)
        cluster.asked("scancel", "--state=RUNNING", "--me")

    thread = threading.Thread(target=cancel)
    thread.start()
    measured = host.run("import time; time.sleep(300)")
    thread.join()
    assert measured.outcome is Outcome.LOST, measured


def test_a_job_above_its_memory_tells_of_the_hosts_memory(host: Host) -> None:
    """Without control groups the cluster's accounting kills the step, and calls the job failed."""
    measured = host.run("x = b'1' * 700_000_000; import time; time.sleep(60)", options=("--mem=300",))
    assert (measured.outcome, measured.signature) == (Outcome.CRASHED, "host_out_of_memory"), measured
    assert "memory limit" in measured.reason


def test_a_job_whose_node_fails_is_lost(host: Host, cluster: Cluster) -> None:
    def fail() -> None:
        while not cluster.asked("squeue", "-h", "-t", "running", "-o", "%i"):
            time.sleep(0.2)
        cluster.asked("scontrol", "update", "nodename=n1", "state=down", "reason=a test")

    thread = threading.Thread(target=fail)
    thread.start()
    measured = host.run("import time; time.sleep(300)")
    thread.join()
    cluster.asked("scontrol", "update", "nodename=n1", "state=resume")
    assert measured.outcome is Outcome.LOST, measured
    assert "NODE_FAIL" in measured.reason


def test_a_restarted_controller_loses_nothing(host: Host, cluster: Cluster) -> None:
    def restart() -> None:
        while not cluster.asked("squeue", "-h", "-t", "running", "-o", "%i"):
            time.sleep(0.2)
        cluster.restart_controller()

    thread = threading.Thread(target=restart)
    thread.start()
    measured = host.run("import time; time.sleep(4); raise ValueError('to the end')")
    thread.join()
    assert measured.outcome is Outcome.CRASHED
    assert "to the end" in measured.reason


def test_a_job_whose_worker_was_killed_is_taken_back_by_the_next_trial(host: Host, cluster: Cluster) -> None:
    trials = host.root / "home" / "trials"
    left = trials / "left-behind"
    left.mkdir(parents=True)
    left.with_suffix(".lock").write_text("mark")
    (left / "slurm.sh").write_text("#!/bin/sh\nsleep 300\n")
    cluster.asked("sbatch", "--job-name=firstbad-left-behind", "--output=/dev/null", str(left / "slurm.sh"))
    host.run("pass")
    assert not left.exists()


def test_a_lease_that_is_not_renewed_is_over(tmp_path: Path) -> None:
    lease = Lease(tmp_path, seconds=0.2)
    for _ in range(3):
        (tmp_path / "slurm-lease").touch()
        assert not lease.is_over()
        time.sleep(0.1)
    time.sleep(0.3)
    assert lease.is_over()


def test_when_the_worker_is_gone_the_node_ends_what_it_started(tmp_path: Path) -> None:
    """As on a node: the lease is renewed for a while, and then no more."""
    (tmp_path / "slurm-lease").touch()
    task = Path(sys.modules[Lease.__module__].__file__ or "")
    program = f"import sys; sys.path.insert(0, {str(task.parent.parent)!r}); from workers import slurm_task; "
    program += "slurm_task.LEASE_SECONDS = 1.0; sys.exit(slurm_task.main(sys.argv[1:]))"
    command = [sys.executable, "-c", "import time; time.sleep(300)"]
    node = subprocess.Popen(
        [
            *(sys.executable, "-c", program, "--folder", str(tmp_path), "--time-limit", "300"),
            *("--output-limit", "1000", "--", *command),
        ]
    )
    while not (tmp_path / "node-0.txt").exists():
        time.sleep(0.05)
    started = descendants(node.pid)
    assert started
    node.wait()
    assert not [pid for pid in started if Path(f"/proc/{pid}/cmdline").exists()]
    assert '"owner_died": true' in (tmp_path / "node-0.json").read_text()
