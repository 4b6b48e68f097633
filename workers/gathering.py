"""From what a trial left behind to one measurement: the table from facts to an outcome.

=======================================  ==============
first that holds                         outcome
=======================================  ==============
the owner went or stopped it             LOST
a rank's file is not the probe's         INVALID
a rank says it is not what was asked     INVALID
a device allocator refused               OUT_OF_MEMORY
the time limit was reached               TIMED_OUT
the probe could not begin                INVALID
a failure of the code, or the host's     CRASHED
memory, or an exit code without a word
a failure that chance causes, too        CRASHED, doubtful
only failures that come and go           LOST
exit 0, but a rank left no file          INVALID
exit 0, every rank completed             COMPLETED
=======================================  ==============

What an outcome means for a commit is not decided here.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bisection.commits import State
from bisection.criteria import OUT_OF_MEMORY_SIGNATURE, TIMED_OUT_SIGNATURE
from bisection.measurement import Measurement, Outcome, OutOfMemory, Peak, Retained, Step
from memory_models.breakdown import MemoryBreakdown, TimeBreakdown
from workers.rank_files import (
    PeakCell,
    RankError,
    RankFile,
    RankFileError,
    RankPeak,
    RankStep,
    read_rank_files,
)
from workers.redaction import Redaction
from workers.signatures import Failure, FailureKind, failure_in_log, failure_kind, failure_signature
from workers.supervisor import Result

HOST_MEMORY_SIGNATURE = "host_out_of_memory"
#: With this word the probe says, as its last line, why it did not start the job.
_PROBE_SAYS = "firstbad_probe: "
#: Ends that a broken memory module causes as well as broken code.
_DOUBTFUL_ENDS = ("signal SIGSEGV", "signal SIGBUS", "signal SIGILL")
_KILLED = (137, -int(signal.SIGKILL))


@dataclass(frozen=True, kw_only=True)
class Remains:
    """What a trial left behind."""

    result: Result
    probe_folder: Path
    log: str  #: the command's output, bounded
    processes: int
    own_folders: Sequence[Path]  #: where the state's own files are, for signatures
    time_limit_seconds: float
    redaction: Redaction  #: what may be told of it; kinds of failures are told from the whole of it


@dataclass(frozen=True, kw_only=True)
class _Decision:
    outcome: Outcome
    reason: str
    signature: str = ""
    doubtful: bool = False


def gather(remains: Remains, state: State) -> Measurement:
    """The measurement of a trial, without what only its runner knows (worker, keys, digests)."""
    try:
        ranks = read_rank_files(remains.probe_folder, remains.processes)
    except RankFileError as error:
        stopped = _stopped(remains.result)
        decision = stopped or _Decision(outcome=Outcome.INVALID, reason=f"no measurement to trust: {error}")
        return Measurement(outcome=decision.outcome, reason=decision.reason, state=state)
    decision = _decide(remains, ranks)
    merged = _merge(ranks, decision.outcome)
    notes = list(merged.notes)
    if remains.result.left_behind_killed:
        notes.append(f"{remains.result.left_behind_killed} processes outlived the command and were killed")
    if remains.result.survivors:
        notes.append(f"{remains.result.survivors} processes could not be killed")
    return merged.evolve(
        outcome=decision.outcome,
        reason=decision.reason,
        signature=decision.signature,
        doubtful=decision.doubtful,
        state=state,
        notes=tuple(dict.fromkeys(notes)),
    )


def _decide(remains: Remains, ranks: Mapping[int, RankFile]) -> _Decision:
    result = remains.result
    stopped = _stopped(result)
    if stopped:
        return stopped
    invalid = [reason for rank in ranks.values() for reason in rank.invalid]
    if invalid:
        return _Decision(outcome=Outcome.INVALID, reason="; ".join(dict.fromkeys(invalid))[:1000])
    refused = [rank for rank in ranks.values() if rank.status == "out_of_memory"]
    if refused:
        return _Decision(
            outcome=Outcome.OUT_OF_MEMORY,
            reason=f"the device's allocator refused on rank {refused[0].rank}{_message(remains, refused[0])}",
            signature=OUT_OF_MEMORY_SIGNATURE,
        )
    if result.timed_out:
        return _Decision(
            outcome=Outcome.TIMED_OUT,
            reason=f"it was still running after {remains.time_limit_seconds:g} s, the profile's limit",
            signature=TIMED_OUT_SIGNATURE,
        )
    code = result.exit_code if result.exit_code is not None else -(result.signal or 0)
    if code != 0 and not ranks and _last_line(remains.log).startswith(_PROBE_SAYS):
        return _Decision(
            outcome=Outcome.INVALID,
            reason=f"the probe could not begin: {_last_line(remains.log).removeprefix(_PROBE_SAYS)}",
        )
    failures = _failures(remains, ranks)
    if failures or code != 0:
        return _decide_failure(remains, failures, code)
    missing = [str(rank) for rank in range(remains.processes) if rank not in ranks]
    if missing:
        return _Decision(
            outcome=Outcome.INVALID,
            reason=f"it ended without an error, but rank {', '.join(missing)} left no measurement: "
            "the command of the launch adapter must run under the probe (python -m firstbad_probe)",
        )
    return _Decision(outcome=Outcome.COMPLETED, reason="all steps were taken")


def _stopped(result: Result) -> _Decision | None:
    if result.error:
        return _Decision(
            outcome=Outcome.LOST, reason=f"it could not be started on this worker: {result.error}"
        )
    if result.owner_died or result.stopped:
        return _Decision(outcome=Outcome.LOST, reason="its worker stopped it")
    return None


def _decide_failure(remains: Remains, failures: Sequence[Failure], code: int) -> _Decision:
    """One failure speaks for all: the device's memory first, since the others often fail in its wake."""
    by_kind: dict[FailureKind, Failure] = {}
    for failure in failures:
        by_kind.setdefault(failure_kind(failure), failure)
    if FailureKind.DEVICE_MEMORY in by_kind:
        failure = by_kind[FailureKind.DEVICE_MEMORY]
        return _Decision(
            outcome=Outcome.OUT_OF_MEMORY,
            reason="the device's memory was refused outside of torch's allocator: "
            f"{_short(remains, failure)}",
            signature=OUT_OF_MEMORY_SIGNATURE,
        )
    if FailureKind.HOST_MEMORY in by_kind or (code in _KILLED and not by_kind):
        failed = by_kind.get(FailureKind.HOST_MEMORY)
        killed = "a process was killed (SIGKILL), as the kernel does for memory"
        how = _short(remains, failed) if failed else killed
        return _Decision(
            outcome=Outcome.CRASHED,
            reason=f"the host's memory ended, not the device's: {how}",
            signature=HOST_MEMORY_SIGNATURE,
        )
    for kind in (FailureKind.CODE, FailureKind.DOUBTFUL):
        if kind in by_kind:
            failure = by_kind[kind]
            return _Decision(
                outcome=Outcome.CRASHED,
                reason=_short(remains, failure),
                signature=failure_signature(remains.redaction.failure(failure), remains.own_folders),
                doubtful=kind is FailureKind.DOUBTFUL,
            )
    if FailureKind.FLAKY in by_kind:
        return _Decision(
            outcome=Outcome.LOST,
            reason=f"a failure that comes and goes: {_short(remains, by_kind[FailureKind.FLAKY])}",
        )
    name = f"signal {signal.Signals(-code).name}" if code < 0 else _exit_name(code)
    last = remains.redaction.last_words(_last_line(remains.log))
    return _Decision(
        outcome=Outcome.CRASHED,
        reason=f"it ended with {name}; the last it said: {last}",
        signature=name,
        doubtful=name in _DOUBTFUL_ENDS,
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
    if failed and (not found or len(ranks) < remains.processes):
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


def _merge(ranks: Mapping[int, RankFile], outcome: Outcome) -> Measurement:
    """One measurement of all ranks: bytes of the worst one, tokens and images of all together."""
    blank = Measurement(outcome=outcome, state=State(commit="0" * 40))
    if not ranks:
        return blank
    files = [ranks[rank] for rank in sorted(ranks)]
    worst = max(files, key=lambda file: file.peak.allocated_bytes if file.peak else -1)
    refused = [file.oom for file in files if file.oom is not None]
    first = files[0]
    notes = list(dict.fromkeys(note for file in files for note in file.notes))
    notes += _disagreements(files)
    return blank.evolve(
        hardware=first.hardware,
        device=first.device,
        peak=_peak(worst.peak) if worst.peak else None,
        summits=tuple(_peak(summit) for summit in worst.summits),
        retained=tuple(
            Retained(step=row.step, breakdown=_breakdown(row.breakdown)) for row in worst.retained
        ),
        steps=_steps(files, worst),
        time=TimeBreakdown.from_json([row.model_dump() for row in worst.time]),
        oom=OutOfMemory(**refused[0].model_dump()) if refused and outcome is Outcome.OUT_OF_MEMORY else None,
        real_data=all(file.data.real for file in files),
        images=sum(file.data.images for file in files),
        trainable=_largest(file.trainable for file in files),
        imports=dict(first.imports),
        patches=_sums(file.patches for file in files),
        notes=tuple(notes),
    )


def _peak(peak: RankPeak) -> Peak:
    return Peak(
        rank=peak.rank,
        step=peak.step,
        phase=peak.phase,
        instant=peak.instant,
        allocated_bytes=peak.allocated_bytes,
        reserved_bytes=peak.reserved_bytes,
        breakdown=_breakdown(peak.breakdown),
    )


def _breakdown(cells: Iterable[PeakCell]) -> MemoryBreakdown:
    return MemoryBreakdown.from_json([cell.model_dump() for cell in cells])


def _steps(files: Sequence[RankFile], worst: RankFile) -> tuple[Step, ...]:
    """The steps that every rank took; the slowest rank's seconds, since a step waits for it."""
    count = min(len(file.steps) for file in files)
    return tuple(
        Step(
            step=worst.steps[at].step,
            peak_bytes=worst.steps[at].peak_bytes,
            retained_bytes=worst.steps[at].retained_bytes,
            seconds=max(file.steps[at].seconds for file in files),
            loss_tokens=sum(file.steps[at].loss_tokens for file in files),
            image_tokens=sum(file.steps[at].image_tokens for file in files),
            padding_tokens=sum(file.steps[at].padding_tokens for file in files),
            patches=sum(file.steps[at].patches for file in files),
            tokens=sum(file.steps[at].tokens for file in files),
            sequences=sum(file.steps[at].sequences for file in files),
            preparations=max(file.steps[at].preparations for file in files),
            rank_load=_rank_load([file.steps[at] for file in files]),
            expert_load=_expert_load([file.steps[at] for file in files]),
        )
        for at in range(count)
    )


def _rank_load(ranks: Sequence[RankStep]) -> float:
    """The most tokens that one rank's experts got, over the mean of the ranks that hold experts."""
    held = [rank.expert_tokens for rank in ranks if rank.expert_calls]
    return max(held) * len(held) / sum(held) if sum(held) else 0.0


def _expert_load(ranks: Sequence[RankStep]) -> float:
    """The most tokens that one expert got in one layer, over the mean of experts and layers."""
    tokens, calls = sum(rank.expert_tokens for rank in ranks), sum(rank.expert_calls for rank in ranks)
    return max(rank.most_expert_tokens for rank in ranks) * calls / tokens if tokens else 0.0


def _disagreements(files: Sequence[RankFile]) -> list[str]:
    notes = []
    if len({len(file.steps) for file in files}) > 1:
        notes.append("the ranks took different numbers of steps: only those of all are kept")
    if any(file.imports.get("megatron.core") != files[0].imports.get("megatron.core") for file in files):
        notes.append("the ranks imported megatron.core from different places")
    return notes


def _largest(rows: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """By key the largest: a part that one pipeline rank lacks another has."""
    result: dict[str, int] = {}
    for row in rows:
        for key, value in row.items():
            result[key] = max(result.get(key, 0), value)
    return result


def _sums(rows: Iterable[Mapping[str, int]]) -> dict[str, int]:
    result: dict[str, int] = {}
    for row in rows:
        for key, value in row.items():
            result[key] = result.get(key, 0) + value
    return result
