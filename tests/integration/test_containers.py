"""Trials in containers of a real Podman: what they see, how they end, and that nothing of them stays."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

import pytest
import yaml

from bisection.adapters.catalogue import Catalogue, Profile
from bisection.commits import State
from bisection.ledger import Purpose, Trial
from bisection.measurement import Measurement, Outcome
from tests.podman_scene import Podman, host_mounts, why_not
from tests.repository_scene import RepositoryScene
from tests.slurm_cluster import Cluster, missing
from workers import supervisor
from workers.trial_run import TrialResult, run_trial

#: Python 3.12 warns of a fork beside another test's threads; the child here takes none of their locks.
pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),
]

PYTHON = str(Path(sys.base_prefix).resolve() / "bin" / f"python3.{sys.version_info.minor}")


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    folder = tmp_path_factory.mktemp("podman")
    reason = why_not(folder / "try")
    if reason:
        pytest.skip(reason)
    running = Podman(folder / "podman")
    yield running
    running.asked("rm", "--force", "--all")  # after a failed test: mounts of a container would stay


class Host:
    """A worker host whose profile runs train.py in an image."""

    def __init__(self, folder: Path, podman: Podman) -> None:
        self.folder = folder
        self.root = folder / "root"
        self.podman = podman
        self.scene = RepositoryScene(folder / "nightly")
        (folder / "data").mkdir()
        (folder / "data" / "photo").write_text("a photograph")
        self.container: dict[str, Any] = {"runtime": "podman", "mounts": host_mounts()}
        self.row: dict[str, Any] = {
            "name": "tiny",
            "repository": "nightly",
            "environment": {"kind": "image", "image": podman.image_of_the_host(), "python": PYTHON},
            "launch": [{"command": ["{python}", "train.py", "{data}", "{trial}"]}],
            "privacy": {"samples": "leave"},
            "data": {"kind": "mock", "path": str(folder / "data")},
            "limits": {"trial_seconds": 60},
        }
        for kind in ("profiles", "repositories"):
            (folder / "catalogue" / kind).mkdir(parents=True)
        row = {"name": "nightly", "url": self.scene.url}
        (folder / "catalogue" / "repositories" / "nightly.yaml").write_text(yaml.safe_dump(row))

    def commit(self, program: str) -> State:
        return State(commit=self.scene.commit("x", train__py=program))

    def run(
        self,
        state: State,
        *,
        cancelled: Callable[[], bool] = lambda: False,
        container: dict[str, Any] | None = None,
        **profile: Any,
    ) -> TrialResult:
        catalogue = Catalogue(self.folder / "catalogue")
        row = {**self.row, "container": {**self.container, **(container or {})}, **profile}
        return run_trial(
            Trial(state=state, attempt=1, purpose=Purpose.SEARCH),
            profile=Profile.model_validate(row),
            repository=catalogue.repository("nightly"),
            catalogue=catalogue,
            root=self.root,
            overrides={},
            capacity_bytes=None,
            worker="w1",
            pseudonym_key=b"of a test",
            cancelled=cancelled,
            progress=lambda _: None,
        )

    def measured(self, program: str, **changes: Any) -> Measurement:
        return self.run(self.commit(program), **changes).measurement

    def started(self, program: str) -> tuple[ForkProcess, float]:
        """A worker whose trial runs its command, and until when to wait for what follows."""
        state = self.commit(program)
        worker = multiprocessing.get_context("fork").Process(target=self.run, args=(state,))
        worker.start()
        deadline = time.monotonic() + 60
        while not self.training():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return worker, deadline

    def assert_nothing_is_left(self) -> None:
        assert self.podman.containers() == []
        assert not self.living()
        assert list((self.root / "trials").iterdir()) == []

    def training(self) -> list[int]:
        return [pid for pid in self.living() if _command(pid).startswith(f"{PYTHON}\0train.py".encode())]

    def living(self) -> list[int]:
        root = str(self.root).encode()
        return [
            pid
            for pid in supervisor._processes()
            if pid != os.getpid()
            and (supervisor._stat(pid) or ["Z"])[0] != "Z"
            and (root in _command(pid) or any(root in word for word in supervisor._environment(pid)))
        ]


@pytest.fixture
def host(tmp_path: Path, podman: Podman, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    for name, value in podman.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("FIRSTBAD_DATABASE_URL", "a secret of the service")
    made = Host(tmp_path, podman)
    yield made
    made.assert_nothing_is_left()


SEES = """
import json, os, socket, sys
def tried(path):
    try:
        open(path, "w").close()
        return "written"
    except OSError as error:
        return type(error).__name__
data, trial = sys.argv[1:]
print(json.dumps({
    "here": os.getcwd(), "first": open("/proc/1/cmdline").read().split(chr(0))[2:3],
    "photo": open(data + "/photo").read(), "data": tried(data + "/x"), "trial": tried(trial + "/x"),
    "system": tried("/usr/x"), "secret": "FIRSTBAD_DATABASE_URL" in os.environ,
    "other": os.path.exists(os.path.dirname(data) + "/nightly"),
    "interfaces": [name for _, name in socket.if_nameindex()], "home": os.environ["HOME"] == trial + "/home",
}))
raise ValueError("seen")
"""


def test_the_command_sees_its_own_places_and_no_network(host: Host) -> None:
    result = host.run(host.commit(SEES))
    assert (result.measurement.outcome, result.measurement.reason) == (Outcome.CRASHED, "ValueError: seen")
    seen = json.loads(result.artifacts["log.txt"].decode().splitlines()[0])
    assert seen.pop("first")[0].endswith("/workers/ranks.py")
    assert seen == {
        "here": "<workspace>", "photo": "a photograph", "data": "OSError", "trial": "written",
        "system": "OSError", "secret": False, "other": False, "interfaces": ["lo"], "home": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("program", "signature"),
    [
        ("import os; os._exit(5)", "exit code 5"),
        ("import os; os._exit(125)", "exit code 125"),
        ("import os; os.kill(os.getpid(), 11)", "signal SIGSEGV"),
    ],
)
def test_exit_codes_come_out_of_the_container(host: Host, program: str, signature: str) -> None:
    measured = host.measured(program)
    assert (measured.outcome, measured.signature) == (Outcome.CRASHED, signature)


def test_a_container_above_its_memory_tells_of_the_hosts_memory(host: Host) -> None:
    measured = host.measured("x = b'1' * 300_000_000", container={"memory_bytes": 100_000_000})
    assert (measured.outcome, measured.signature) == (Outcome.CRASHED, "host_out_of_memory")


def test_a_container_that_cannot_start_blames_this_host(host: Host) -> None:
    measured = host.measured("pass", container={"options": ["--device=/dev/nowhere"]})
    assert measured.outcome is Outcome.LOST
    assert "podman could not start the container: Error: " in measured.reason
    assert "/dev/nowhere" in measured.reason


def test_the_time_limit_and_cancelling_end_the_container(host: Host) -> None:
    state = host.commit("import time; time.sleep(600)")
    assert host.run(state, limits={"trial_seconds": 2}).measurement.outcome is Outcome.TIMED_OUT
    host.assert_nothing_is_left()
    stop = threading.Event()
    threading.Timer(2.0, stop.set).start()
    measured = host.run(state, cancelled=stop.is_set).measurement
    assert (measured.outcome, "cancelled" in measured.reason) == (Outcome.LOST, True)


@pytest.mark.parametrize("killed", ["worker", "all but the container"])
def test_a_container_dies_with_its_worker_and_is_found_again_by_its_label(host: Host, killed: str) -> None:
    worker, deadline = host.started("import time; time.sleep(600)")
    assert len(host.podman.containers()) == 1
    assert worker.pid is not None
    inside = host.training()
    if killed != "worker":  # as when the kernel ends them all for memory: nobody is left to tell the others
        outside = [pid for pid in host.living() if pid not in inside and b"/supervisor.py" in _command(pid)]
        for pid in outside:
            os.kill(pid, signal.SIGSTOP)
        os.kill(worker.pid, signal.SIGKILL)
        for pid in outside:
            os.kill(pid, signal.SIGKILL)
    os.kill(worker.pid, signal.SIGKILL)
    worker.join()
    while host.living() if killed == "worker" else host.training():
        assert time.monotonic() < deadline, "the command outlived its worker"
        time.sleep(0.05)
    host.measured("pass")  # the next trial sweeps


def test_a_job_of_a_cluster_runs_its_command_in_a_container(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if missing() or os.geteuid() != 0:
        pytest.skip(f"a Slurm of one's own needs root and Debian's slurm-wlm and munge; missing: {missing()}")
    cluster = Cluster(tmp_path / "slurm")
    cluster.start()
    try:
        monkeypatch.setenv("SLURM_CONF", str(cluster.configuration))
        program = (
            "import os\n"
            "place = [os.environ[n] for n in ('RANK', 'WORLD_SIZE', 'MASTER_ADDR', 'MASTER_PORT')]\n"
            "place.append(open('/proc/1/cmdline').read().split(chr(0))[2])\n"
            "os.write(1, ('rank ' + ' '.join(place) + '\\n').encode())\n"
            "raise ValueError('in a job')\n"
        )
        result = host.run(host.commit(program), slurm={"nodes": 2}, container={"network": True})
        assert result.measurement.outcome is Outcome.CRASHED, result.measurement.reason
        assert "in a job" in result.measurement.reason
        lines = result.artifacts["log.txt"].decode().splitlines()
        ranks = sorted(line.split() for line in lines if line.startswith("rank "))
        assert [rank[1:3] for rank in ranks] == [["0", "2"], ["1", "2"]]
        assert len({tuple(rank[3:5]) for rank in ranks}) == 1, "both meet at one place"
        assert all(rank[5].endswith("/ranks.py") for rank in ranks)
        refused = host.run(
            host.commit("pass"), slurm={"nodes": 1}, container={"options": ["--device=/dev/nowhere"]}
        ).measurement
        assert refused.outcome is Outcome.LOST
        assert "podman could not start the container" in refused.reason
    finally:
        cluster.stop()


@pytest.fixture
def docker(tmp_path: Path, podman: Podman, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Docker's own client, and behind it Podman as the daemon: containers are no children of the client's."""
    if shutil.which("docker") is None:
        pytest.skip("docker's client is not installed")
    socket_path = tmp_path / "d.sock"
    daemon = subprocess.Popen(
        ["podman", "system", "service", "--time=0", f"unix://{socket_path}"],
        env={**os.environ, **podman.environment},
    )
    monkeypatch.setenv("DOCKER_HOST", f"unix://{socket_path}")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    deadline = time.monotonic() + 30
    while not socket_path.exists():
        assert time.monotonic() < deadline, "the daemon did not start"
        time.sleep(0.05)
    yield
    daemon.terminate()
    daemon.wait(30)


@pytest.mark.usefixtures("docker")
def test_a_daemons_container_tells_its_exit_and_dies_with_its_worker(host: Host) -> None:
    host.container["runtime"] = "docker"
    measured = host.measured("raise ValueError('under a daemon')")
    assert (measured.outcome, measured.reason) == (Outcome.CRASHED, "ValueError: under a daemon")
    assert host.measured("import os; os._exit(5)").signature == "exit code 5"
    worker, deadline = host.started("import time; time.sleep(600)")
    os.kill(worker.pid or 0, signal.SIGKILL)
    worker.join()
    while host.training():
        assert time.monotonic() < deadline, "the command outlived its worker"
        time.sleep(0.05)
    while host.living():
        assert time.monotonic() < deadline, "something of the trial outlived its worker"
        time.sleep(0.05)
    host.measured("pass")


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
