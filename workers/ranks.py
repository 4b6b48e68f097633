"""A program that starts one process a rank on this host, and ends them together.

Started by path inside a trial (``python ranks.py --processes N -- COMMAND``), under
the supervisor. Sets what torch.distributed reads, with a rendezvous of its own, so
that two trials on one host never meet; on one of several nodes, the rendezvous that
`slurm_task` names. Standard library only. In a container it is the first process:
``--end-with-input`` ends it, and with it all others there, once nobody holds its input.

Exit status: 0 if every rank's is; else that of the rank that failed first, 128 + n
if signal n ended it.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import socket
import subprocess
import sys
import time

#: How long the other ranks may go on after one failed: enough to write down what they measured,
#: and to fail for themselves where the fault is everyone's; a rank in a collective would wait for ever.
GRACE_SECONDS = 10.0
POLL_SECONDS = 0.05


def free_port() -> int:
    """A loopback port that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run(command: list[str], processes: int, end_with_input: bool = False, world_size: int = 0) -> int:
    nodes, node = int(os.environ.get("FIRSTBAD_NODES", "1")), int(os.environ.get("FIRSTBAD_NODE", "0"))
    rendezvous = {
        "WORLD_SIZE": str(world_size or nodes * processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": os.environ.get("FIRSTBAD_FIRST_NODE", "127.0.0.1"),
        "MASTER_PORT": os.environ.get("FIRSTBAD_PORT") or str(free_port()),
    }
    ranks = [
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            env={
                **os.environ,
                **rendezvous,
                "RANK": str(node * processes + local),
                "LOCAL_RANK": str(local),
            },
        )
        for local in range(processes)
    ]
    first_failure: int | None = None
    give_up = float("inf")
    while any(rank.poll() is None for rank in ranks):
        if end_with_input and _input_ended():
            _signal_all(ranks, signal.SIGKILL)
        failed = [code for code in (rank.poll() for rank in ranks) if code]
        if failed and first_failure is None:
            first_failure = failed[0]
            give_up = time.monotonic() + GRACE_SECONDS
        if time.monotonic() > give_up:
            for number in (signal.SIGTERM, signal.SIGKILL):
                _signal_all(ranks, number)
                time.sleep(1.0)
            give_up = float("inf")
        time.sleep(POLL_SECONDS)
    codes = [rank.wait() for rank in ranks]
    if first_failure is None:
        first_failure = next((code for code in codes if code), 0)
    return 128 - first_failure if first_failure < 0 else first_failure


def _input_ended() -> bool:
    return bool(select.select([0], [], [], 0)[0]) and not os.read(0, 4096)


def _signal_all(ranks: list[subprocess.Popen[bytes]], number: signal.Signals) -> None:
    for rank in ranks:
        if rank.poll() is None:
            rank.send_signal(number)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Start one process a rank on this host.")
    parser.add_argument("--processes", type=int, required=True, metavar="N")
    parser.add_argument("--end-with-input", action="store_true", help="when standard input ends, kill all")
    parser.add_argument(
        "--world-size", type=int, default=0, metavar="N", help="of a dry run, what it pretends"
    )
    parser.add_argument("command", nargs="+", metavar="COMMAND")
    options = parser.parse_args(arguments)
    return run(options.command, options.processes, options.end_with_input, options.world_size)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
