"""Ends of a trial that neither its code nor the device's memory caused: host memory, hardware, a hand.

Told from what the supervisor saw of the kernel, not from what the command said: who is killed says nothing.

==============================================  =====================================================
what is known                                   cause
==============================================  =====================================================
the kernel killed for memory in the trial's     HOST_MEMORY: the last commit that fits may be sought,
control group, its container or its Slurm job   as a crash with that signature
SIGKILL, and the kernel killed on this host     HOST_MEMORY
SIGKILL, and the kernel killed nothing for      KILLED: somebody, or a daemon that watches memory
memory                                          (systemd-oomd, earlyoom); says nothing of the code
SIGKILL, and the kernel cannot be asked         HOST_MEMORY: by far the most frequent reason
an error of a GPU's hardware in the kernel's    NODE: the GPU, its link or its bus failed
log (Xid)
==============================================  =====================================================
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from enum import StrEnum

from workers.supervisor import Result

#: Of NVIDIA's catalogue of Xid errors those that a program cannot cause by itself: double-bit and uncontained
#: ECC errors, row remapping, NVLink, a GPU off its bus, its firmware, its recovery. Left out: 13, 31, 43, 45,
#: which any faulty kernel of a training job raises.
_HARDWARE = frozenset(
    {48, 63, 64, 74, 79, 92, 94, 95, 110, 119, 120, 121, 136, 140, 143, 154, *range(144, 151)}
)
_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)")
_FALLEN = re.compile(r"fallen off the bus")
_KILLED = (128 + signal.SIGKILL, -int(signal.SIGKILL))


class CauseKind(StrEnum):
    """Whose fault an end was that was not the code's."""

    HOST_MEMORY = "host_memory"
    KILLED = "killed"
    NODE = "node"


@dataclass(frozen=True, kw_only=True)
class Cause:
    """A cause outside of the code, and what it was told from."""

    kind: CauseKind
    evidence: str
    sure: bool = True  #: not sure: a neighbour on the host may be why


def outside_cause(result: Result, code: int) -> Cause | None:
    """What ended a command with this code from outside; None if nothing is known to have.

    ``code`` is its exit code, or minus the signal that ended it; 0 has no cause.
    """
    if code == 0:
        return None
    broken = next((line for line in result.kernel if _is_hardware(line)), None)
    if broken is not None:
        return Cause(kind=CauseKind.NODE, evidence=broken)
    if result.memory_kills:
        return Cause(kind=CauseKind.HOST_MEMORY, evidence=_killed_for_memory(result))
    if code not in _KILLED:
        return None
    if result.memory_kills_on_host:
        return Cause(kind=CauseKind.HOST_MEMORY, evidence=_killed_for_memory(result), sure=False)
    if result.memory_kills_on_host is None:
        return Cause(
            kind=CauseKind.HOST_MEMORY,
            evidence="a process was killed (SIGKILL), as the kernel does for memory",
            sure=False,
        )
    return Cause(
        kind=CauseKind.KILLED,
        evidence="a process was killed (SIGKILL), not by firstbad, and not by the kernel for memory",
    )


def _is_hardware(line: str) -> bool:
    xid = _XID.search(line)
    return bool(xid and int(xid[2]) in _HARDWARE) or bool(_FALLEN.search(line))


def _killed_for_memory(result: Result) -> str:
    told = next((line for line in result.kernel if not _XID.search(line)), "")
    return f"the kernel killed for it: {told}" if told else "the kernel killed a process for it"
