"""A real Slurm on this machine: controller, two nodes and munge, in a folder of a test's own, on loopback."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol")

_CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
SlurmctldPort={controller_port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=1
JobAcctGatherParams=OverMemoryKill
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerNode=2000
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
KillWait=3
SchedulerParameters=bf_interval=2,sched_min_interval=0
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[0]} CPUs=2 RealMemory=4000 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 RealMemory=4000 State=UNKNOWN
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> list[str]:
    """Programs of Slurm that this machine lacks."""
    # Debian keeps the daemons where only root looks.
    return [name for name in PROGRAMS if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None]


class Cluster:
    """Started by `start`; `stop` ends every daemon."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.configuration = folder / "slurm.conf"
        self._daemons: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        for name in ("state", "spool-n1", "spool-n2"):
            (self.folder / name).mkdir(parents=True)
        (self.folder / "munge.key").write_bytes(os.urandom(128))
        (self.folder / "munge.key").chmod(0o400)
        self.folder.chmod(0o755)
        controller_port, *ports = _free_ports(3)
        self.configuration.write_text(
            _CONFIGURATION.format(
                folder=self.folder, host=socket.gethostname().partition(".")[0],
                controller_port=controller_port, ports=ports,
            )
        )  # fmt: skip
        self._daemon(
            "munged", "--foreground", "--force", f"--key-file={self.folder / 'munge.key'}",
            f"--socket={self.folder / 'munge.sock'}", f"--pid-file={self.folder / 'munged.pid'}",
            f"--log-file={self.folder / 'munged.log'}", f"--seed-file={self.folder / 'munge.seed'}",
        )  # fmt: skip
        _until(lambda: (self.folder / "munge.sock").exists())
        self._daemon("slurmctld", "-D", "-c", "-f", str(self.configuration))
        for node in ("n1", "n2"):
            self._daemon("slurmd", "-D", "-N", node, "-f", str(self.configuration))
        _until(lambda: self.asked("sinfo", "-h", "-o", "%T %D") == "idle 2")

    def _daemon(self, *command: str) -> None:
        environment = {**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin"}
        with (self.folder / "daemons.log").open("ab") as output:
            self._daemons.append(
                subprocess.Popen(
                    command, env=environment, stdout=output, stderr=output, start_new_session=True
                )
            )

    def asked(self, *command: str) -> str:
        done = subprocess.run(
            command,
            env={**os.environ, "SLURM_CONF": str(self.configuration)},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout.strip()

    def restart_controller(self) -> None:
        controller = self._daemons.pop(1)
        controller.terminate()
        controller.wait()
        self._daemon("slurmctld", "-D", "-f", str(self.configuration))
        self._daemons.insert(1, self._daemons.pop())

    def stop(self) -> None:
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in self._daemons:
            try:
                daemon.wait(timeout=10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for opened in sockets:
        opened.bind(("127.0.0.1", 0))
    ports = [int(opened.getsockname()[1]) for opened in sockets]
    for opened in sockets:
        opened.close()
    return ports


def _until(ready: object, seconds: float = 60.0) -> None:
    assert callable(ready)
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline, "Slurm did not start"
        time.sleep(0.1)
