"""From what a trial left behind to what happened: the table from facts to an outcome.

=======================================  =====================================
first that holds                         outcome
=======================================  =====================================
the owner went or stopped it             LOST
a rank's file is not the probe's         INVALID
a rank says it is not what was asked     INVALID
a device allocator refused               OUT_OF_MEMORY
the time limit was reached               TIMED_OUT
the probe could not begin                INVALID
a command without the probe says so      as it says: COMPLETED, CRASHED, INVALID,
(`script_job`)                           or LOST with `ABORT_SIGNATURE`
a GPU's hardware failed (kernel's log)   LOST
a library's call for device memory       OUT_OF_MEMORY
was refused (NCCL, Triton, cuBLAS)
the host's memory ended                  CRASHED, `HOST_MEMORY_SIGNATURE`;
                                         doubtful where a neighbour may be why
somebody killed it (SIGKILL)             LOST
a failure of the code                    CRASHED
a collective that never ended            TIMED_OUT, `HANG_SIGNATURE`, doubtful
a failure that chance causes, too        CRASHED, doubtful
only failures that come and go           LOST
an exit code without a word              CRASHED
exit 0, but a rank left no file          INVALID; LOST where a dry run rehearsed it
exit 0, every rank completed             COMPLETED
=======================================  =====================================

The host's memory is no outcome of its own: what is known of it is that a process ended, so there is no
peak to hold against a capacity, and a bisection looks for it as for any crash, by its signature. What an
outcome means for a commit is not decided here.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bisection.criteria import OUT_OF_MEMORY_SIGNATURE, TIMED_OUT_SIGNATURE
from bisection.measurement import Outcome
from workers.outside_causes import Cause, CauseKind, outside_cause
from workers.rank_files import RankError, RankFile, expected_ranks
from workers.redaction import Redaction
from workers.signatures import Failure, FailureKind, failure_in_log, failure_kind, failure_signature
from workers.supervisor import Result

HOST_MEMORY_SIGNATURE = "host_out_of_memory"
HANG_SIGNATURE = "hang"
#: Of a command that stops the whole search, as `git bisect run` is stopped by 128 and above.
ABORT_SIGNATURE = "stopped by the command"
#: Of a command whose every failure is the one looked for.
COMMAND_SIGNATURE = "an exit code from 1 to 127"
#: With this word the probe says, as its last line, why it did not start the job.
_PROBE_SAYS = "firstbad_probe: "
_OF_A_COMMAND = {
    "good": (Outcome.COMPLETED, ""),
    "bad": (Outcome.CRASHED, COMMAND_SIGNATURE),
    "skip": (Outcome.INVALID, ""),
    "abort": (Outcome.LOST, ABORT_SIGNATURE),
}
#: Ends that a broken memory module causes as well as broken code.
_DOUBTFUL_ENDS = ("signal SIGSEGV", "signal SIGBUS", "signal SIGILL")


@dataclass(frozen=True, kw_only=True)
class Remains:
    """What a trial left behind."""

    result: Result
    probe_folder: Path
    log: str  #: the command's output, bounded
    processes: int
    world_size: int | None = None  #: of the job, where it is not the number of processes: of a dry run
    own_folders: Sequence[Path]  #: where the state's own files are, for signatures
    time_limit_seconds: float
    redaction: Redaction  #: what may be told of it; kinds of failures are told from the whole of it


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What happened, and why it is called so."""

    outcome: Outcome
    reason: str
    signature: str = ""
    doubtful: bool = False


def decide(remains: Remains, ranks: Mapping[int, RankFile]) -> Decision:
    result = remains.result
    ended = stopped(result)
    if ended:
        return ended
    invalid = [reason for rank in ranks.values() for reason in rank.invalid]
    if invalid:
        told = remains.redaction.text("; ".join(dict.fromkeys(invalid)))
        return Decision(outcome=Outcome.INVALID, reason=told[:1000])
    refused = [rank for rank in ranks.values() if rank.status == "out_of_memory"]
    if refused:
        return Decision(
            outcome=Outcome.OUT_OF_MEMORY,
            reason=f"the device's allocator refused on rank {refused[0].rank}{_message(remains, refused[0])}",
            signature=OUT_OF_MEMORY_SIGNATURE,
        )
    if result.timed_out:
        return Decision(
            outcome=Outcome.TIMED_OUT,
            reason=f"it was still running after {remains.time_limit_seconds:g} s, the profile's limit",
            signature=TIMED_OUT_SIGNATURE,
        )
    code = result.exit_code if result.exit_code is not None else -(result.signal or 0)
    if code != 0 and not ranks and _last_line(remains.log).startswith(_PROBE_SAYS):
        why = remains.redaction.text(_last_line(remains.log).removeprefix(_PROBE_SAYS))
        return Decision(
            outcome=Outcome.INVALID,
            reason=f"the probe could not begin: {why}",
        )
    command = next((rank.command for rank in ranks.values() if rank.command), None)
    if command is not None:
        outcome, signature = _OF_A_COMMAND[command.verdict]
        return Decision(outcome=outcome, reason=remains.redaction.text(command.said), signature=signature)
    failures = _failures(remains, ranks)
    if failures or code != 0:
        return _decide_failure(remains, failures, code, outside_cause(result, code))
    missing = [str(rank) for rank in expected_ranks(ranks, remains.processes) if rank not in ranks]
    if missing and ranks.get(0) and ranks[0].rehearsed:
        return Decision(
            outcome=Outcome.LOST,
            reason=f"the process that rehearsed rank {', '.join(missing)} left no record: mostly that is the "
            "host's memory; lower dry_run.parallel in the profile",
        )
    if missing:
        return Decision(
            outcome=Outcome.INVALID,
            reason=f"it ended without an error, but rank {', '.join(missing)} left no measurement: "
            "the command of the launch adapter must run under the probe (python -m firstbad_probe)",
        )
    return Decision(outcome=Outcome.COMPLETED, reason="all steps were taken")


def stopped(result: Result) -> Decision | None:
    if result.error:
        return Decision(
            outcome=Outcome.LOST, reason=f"it could not be started on this worker: {result.error}"
        )
    if result.owner_died or result.stopped:
        return Decision(outcome=Outcome.LOST, reason="its worker stopped it")
    return None


def _decide_failure(
    remains: Remains, failures: Sequence[Failure], code: int, cause: Cause | None
) -> Decision:
    """One failure speaks for all, in the table's order: the others often fail in its wake."""
    by_kind: dict[FailureKind, Failure] = {}
    for failure in failures:
        by_kind.setdefault(failure_kind(failure), failure)
    if cause and cause.kind is CauseKind.NODE:
        return Decision(outcome=Outcome.LOST, reason=f"the node's hardware failed: {cause.evidence}")
    if FailureKind.DEVICE_MEMORY in by_kind:
        failure = by_kind[FailureKind.DEVICE_MEMORY]
        return Decision(
            outcome=Outcome.OUT_OF_MEMORY,
            reason="the device's memory was refused outside of torch's allocator: "
            f"{_short(remains, failure)}",
            signature=OUT_OF_MEMORY_SIGNATURE,
        )
    host = by_kind.get(FailureKind.HOST_MEMORY)
    if host or (cause and cause.kind is CauseKind.HOST_MEMORY and (cause.sure or not by_kind)):
        how = _short(remains, host) if host else cause.evidence if cause else ""
        return Decision(
            outcome=Outcome.CRASHED,
            reason=f"the host's memory ended, not the device's: {how}",
            signature=HOST_MEMORY_SIGNATURE,
            doubtful=not (host or (cause and cause.sure)),
        )
    if cause and cause.kind is CauseKind.KILLED and FailureKind.CODE not in by_kind:
        return Decision(outcome=Outcome.LOST, reason=cause.evidence)
    for kind in (FailureKind.CODE, FailureKind.HANG, FailureKind.DOUBTFUL):
        if kind in by_kind:
            return _of_the_state(remains, by_kind[kind], kind)
    if FailureKind.FLAKY in by_kind:
        return Decision(
            outcome=Outcome.LOST,
            reason=f"a failure that comes and goes: {_short(remains, by_kind[FailureKind.FLAKY])}",
        )
    name = f"signal {signal.Signals(-code).name}" if code < 0 else _exit_name(code)
    last = remains.redaction.last_words(_last_line(remains.log))
    return Decision(
        outcome=Outcome.CRASHED,
        reason=f"it ended with {name}; the last it said: {last}",
        signature=name,
        doubtful=name in _DOUBTFUL_ENDS,
    )


def _of_the_state(remains: Remains, failure: Failure, kind: FailureKind) -> Decision:
    if kind is FailureKind.HANG:
        return Decision(
            outcome=Outcome.TIMED_OUT,
            reason=f"a collective never ended, as its watchdog says: {_short(remains, failure)}",
            signature=HANG_SIGNATURE,
            doubtful=True,
        )
    return Decision(
        outcome=Outcome.CRASHED,
        reason=_short(remains, failure),
        signature=failure_signature(remains.redaction.failure(failure), remains.own_folders),
        doubtful=kind is FailureKind.DOUBTFUL,
    )


def _last_line(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "nothing"


def _failures(remains: Remains, ranks: Mapping[int, RankFile]) -> list[Failure]:
    """What the ranks say, and the log for those that could not speak."""
    found = [
        _failure(rank.error)
        if rank.error
        else Failure(type="failure", message="the rank failed without an error")
        for rank in ranks.values()
        if rank.status == "failed"
    ]
    failed = remains.result.exit_code != 0
    if failed and (not found or len(ranks) < len(expected_ranks(ranks, remains.processes))):
        told = failure_in_log(remains.log)
        if told is None and not found:
            # No traceback: a library that aborts still says why.
            kind = failure_kind(Failure(type="", message="", text=remains.log[-20_000:]))
            if kind is not FailureKind.CODE:
                told = Failure(type=kind.value, message="as the log says", text=remains.log[-20_000:])
        if told is not None:
            found.append(told)
    return found


def _failure(error: RankError) -> Failure:
    return Failure(type=error.type, message=error.message, frames=error.frames, text=error.text)


def _exit_name(code: int) -> str:
    if code > 128 and code - 128 in set(signal.Signals):
        return f"signal {signal.Signals(code - 128).name}"
    return f"exit code {code}"


def _message(remains: Remains, rank: RankFile) -> str:
    if rank.error is None:
        return ""
    failure = _failure(rank.error)
    first = remains.redaction.failure(failure).message.strip().split("\n", 1)[0][:300]
    return f": {first}" if first else ""


def _short(remains: Remains, failure: Failure) -> str:
    first = remains.redaction.failure(failure).message.strip().split("\n", 1)[0][:300]
    return f"{failure.type}: {first}" if first else failure.type
