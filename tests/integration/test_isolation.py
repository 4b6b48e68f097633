"""A really hostile job in a whole trial: it looks for secrets, writes where it may not, and takes all it can.

It runs under the profile's `isolation`, on this machine, through the worker's own code.
"""

from __future__ import annotations

import json
import os
import pwd
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from bisection.adapters.catalogue import Catalogue, Profile
from bisection.adapters.isolation import Isolation
from bisection.commits import State
from bisection.measurement import Outcome
from tests.integration.test_trial_run import Host, job
from workers import isolating
from workers.host_checks import Health
from workers.isolating import refusal
from workers.isolation_checks import check_isolations
from workers.profile_checks import check_profile

pytestmark = pytest.mark.skipif(
    refusal(Isolation()) != "", reason=f"this machine cannot: {refusal(Isolation())}"
)

#: What it finds goes into its log as one line of JSON.
HOSTILE = """
import ctypes, glob, json, os, resource, signal, socket, sys
known = json.loads(os.environ["KNOWN"])
def tried(what):
    try:
        return repr(what())
    except BaseException as error:
        return "refused: " + type(error).__name__
def connected(kind, address):
    with socket.socket(kind) as one:
        one.settimeout(3)
        one.connect(address)
        return "connected"
def forked():
    for _ in range(400):
        if os.fork() == 0:
            signal.pause()
def written(path):
    with open(path, "w") as file:
        file.write("mine")
    return "written"
def large():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with open("large", "wb") as file:
        for _ in range(64):
            file.write(bytes(2**20))
    return "written"
pids = glob.glob("/proc/*/environ")
environments = {path: tried(lambda: open(path, "rb").read().decode()) for path in pids}
found = {
    "user": [os.getuid(), os.getgid(), os.getgroups(), tried(lambda: os.setuid(0))],
    "environment": sorted(os.environ),
    "environments": json.dumps(environments),
    "processes": len(environments),
    "worker": tried(lambda: os.kill(known["worker"], 0)),
    "etc": tried(lambda: sorted(os.listdir("/etc"))),
    "shadow": tried(lambda: open("/etc/shadow").read()),
    "database": tried(lambda: open(known["database"], "rb").read()),
    "root": tried(lambda: sorted(os.listdir(known["root"]))),
    "others": tried(lambda: sorted(os.listdir(os.path.dirname(os.environ["HOME"])))),
    "source": tried(lambda: open(known["source"]).read()),
    "unix_socket": tried(lambda: connected(socket.AF_UNIX, known["socket"])),
    "loopback": tried(lambda: connected(socket.AF_INET, ("127.0.0.1", known["port"]))),
    "address": tried(lambda: connected(socket.AF_INET, ("192.0.2.1", 80))),
    "data_read": tried(lambda: open(known["data"] + "/sample.txt").read()),
    "data_write": tried(lambda: written(known["data"] + "/sample.txt")),
    "root_write": tried(lambda: written(known["root"] + "/mirrors/x")),
    "system_write": tried(lambda: written("/usr/local/bin/x")),
    "result_write": tried(lambda: written(os.path.dirname(os.environ["HOME"]) + "/output.txt.result.json")),
    "mounted": ctypes.CDLL(None).mount(b"none", b"/mnt", b"tmpfs", 0, None),
    "memory": tried(lambda: len(bytearray(2**31))),
    "core": resource.getrlimit(resource.RLIMIT_CORE),
    "large": tried(large),
    "own_write": tried(lambda: written(os.path.join(os.environ["TMPDIR"], "x"))),
    "forked": tried(forked),
}
print("FOUND " + json.dumps(found), flush=True)
"""


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setenv("FIRSTBAD_DATABASE_URL", "postgresql://of-the-service")
    # As on a real host: the worker's folders can be passed through, and what lies in them can be read.
    for folder in (tmp_path, *tmp_path.parents):
        if folder.owner() == pwd.getpwuid(os.getuid()).pw_name and str(folder) not in ("/", "/tmp"):
            folder.chmod(folder.stat().st_mode | 0o055)
    return Host(tmp_path)


def test_a_hostile_job_finds_no_secret_writes_nowhere_and_takes_no_more_than_its_limits(host: Host) -> None:
    data, database = host.folder / "data", host.folder / "firstbad.db"
    data.mkdir()
    (data / "sample.txt").write_text("a sample")
    database.write_text("the token digests")
    (host.root / "mirrors").mkdir(parents=True)
    for path in (data, data / "sample.txt", database, host.root, host.root / "mirrors"):
        path.chmod(0o777)
    heard = socket.create_server(("127.0.0.1", 0))
    local = socket.socket(socket.AF_UNIX)
    local.bind(str(host.folder / "s"))
    local.listen()
    (host.folder / "s").chmod(0o777)
    known = {
        "worker": os.getpid(),
        "database": str(database),
        "root": str(host.root),
        "source": str(host.folder / "catalogue" / "repositories" / "nightly.yaml"),
        "socket": str(host.folder / "s"),
        "port": heard.getsockname()[1],
        "data": str(data),
    }
    commit = host.commit(train__py=HOSTILE)
    with heard, local:
        result = host.run(
            State(commit=commit),
            isolation={"memory_bytes": 2**30, "processes": 100, "open_files": 128, "file_bytes": 2**24},
            privacy={"samples": "leave"},
            data={"path": str(data)},
            launch=[{"command": ["{python}", "train.py"], "env": {"KNOWN": json.dumps(known)}}],
        )
    log = result.artifacts["log.txt"].decode()
    line = next((line for line in log.splitlines() if line.startswith("FOUND ")), None)
    assert line, (result.measurement.reason, log)
    found: dict[str, Any] = json.loads(line.removeprefix("FOUND "))

    assert "of-the-service" not in line
    assert "FIRSTBAD_DATABASE_URL" not in found["environment"]
    if os.getuid() == 0:
        nobody = pwd.getpwnam("nobody")
        assert found["user"][:3] == [nobody.pw_uid, nobody.pw_gid, []]
    assert found["user"][3] == "refused: PermissionError"
    assert found["processes"] < 10  # its own and those that hold it; none of this machine's
    for kept in (
        "worker", "shadow", "database", "source", "unix_socket", "loopback", "address",
        "data_write", "root_write", "system_write", "memory", "large", "forked",
    ):  # fmt: skip
        assert found[kept].startswith("refused"), (kept, found[kept])
    assert "firstbad" not in found["etc"]
    # The ways to its own folders and to its overlays, and nothing beside them.
    assert found["root"] == "['overlays', 'trials']"
    assert found["others"] == repr(sorted(isolating.OWN_FOLDERS))
    assert found["mounted"] == -1
    assert found["core"] == [0, 0]
    assert found["data_read"] == "'a sample'"
    assert found["own_write"] == "'written'"
    assert (data / "sample.txt").read_text() == "a sample"
    assert list((host.root / "mirrors").glob("x")) == []
    host.assert_nothing_is_left()


def test_a_host_that_can_says_so(host: Host) -> None:
    profile = Profile.model_validate({**host.profile_row, "isolation": {}})
    assert [check.health for check in check_isolations([profile, profile])] == [Health.WELL]


def test_an_honest_trial_measures_the_same_when_it_is_shut_in_and_its_copy_is_used_again(host: Host) -> None:
    commit = host.commit(train__py=job(700))
    for _ in range(2):
        result = host.run(State(commit=commit), isolation={})
        assert result.measurement.outcome is Outcome.COMPLETED, result.measurement.reason
        assert result.measurement.peak is not None
        assert result.measurement.peak.allocated_bytes == 700
    host.assert_nothing_is_left()


def test_what_a_shut_in_trial_leaves_running_is_ended(host: Host) -> None:
    daemon = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(600)\n"
    host.run(State(commit=host.commit(train__py=daemon)), isolation={})
    host.assert_nothing_is_left()


def test_the_time_limit_ends_a_shut_in_trial(host: Host) -> None:
    commit = host.commit(train__py="import signal, time\nsignal.signal(15, 1)\ntime.sleep(600)\n")
    result = host.run(State(commit=commit), isolation={}, limits={"trial_seconds": 2})
    assert result.measurement.outcome is Outcome.TIMED_OUT
    host.assert_nothing_is_left()


def test_a_host_that_cannot_shut_a_trial_in_runs_none_and_is_blamed_itself(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = host.commit(train__py=job())
    monkeypatch.setattr(isolating, "_PATH", str(host.folder / "nothing"))
    result = host.run(State(commit=commit), isolation={})
    assert result.measurement.outcome is Outcome.LOST
    assert "is not installed: install" in result.measurement.reason
    profile = Profile.model_validate({**host.profile_row, "isolation": {}})
    (check,) = check_isolations([profile])
    assert check.health is Health.BROKEN
    assert check.mend
    checks = list(check_profile(profile, Catalogue(host.folder / "catalogue"), host.root, lambda _: None))
    assert "isolation" in [check.name for check in checks if check.health is Health.BROKEN]
    assert "environment" not in [check.name for check in checks]  # nothing is built in vain


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a trial another user")
@pytest.mark.parametrize(("user", "told"), [("root", "is root"), ("nobody-of-that-name", "there is no user")])
def test_a_user_that_does_not_serve_is_told(user: str, told: str) -> None:
    assert told in refusal(Isolation(user=user))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become a worker without rights")
def test_a_worker_without_rights_shuts_trials_in_by_a_user_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    become = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"]
    if subprocess.run([*become, "unshare", "--user", "true"], check=False).returncode != 0:
        pytest.skip("this kernel gives user namespaces to nobody but root")
    monkeypatch.setattr(os, "getuid", lambda: 65534)
    words = isolating.shut_in(Isolation(), [])
    shown = "id -u; ls -A /root /etc/shadow; cat /proc/1/environ; ls -d /proc/[0-9]*"
    done = subprocess.run(
        [*become, *words, "/bin/sh", "-c", shown], capture_output=True, text=True, check=False
    )
    assert done.stdout.split()[0] == "65534", done.stderr
    assert "of-the-service" not in done.stdout
    assert len(done.stdout.split()) < 8  # its own processes
    assert done.stderr.count("No such file") == 2


def test_isolation_is_not_for_what_is_shut_in_otherwise(host: Host) -> None:
    with pytest.raises(ValidationError, match="without a container"):
        Profile.model_validate({**host.profile_row, "isolation": {}, "slurm": {}})
