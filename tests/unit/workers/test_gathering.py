"""The table from what a trial left behind to its outcome, and the merging of ranks."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from bisection.commits import State
from bisection.criteria import OUT_OF_MEMORY_SIGNATURE, TIMED_OUT_SIGNATURE
from bisection.measurement import Measurement, Outcome
from workers.gathering import gather
from workers.outcomes import HANG_SIGNATURE, HOST_MEMORY_SIGNATURE, Remains
from workers.redaction import Redaction
from workers.supervisor import Result

STATE = State(commit="a" * 40)


def rank_row(rank: int = 0, world_size: int = 1, **changes: Any) -> dict[str, Any]:
    peak = {
        "rank": rank, "step": 1, "phase": "backward", "instant": "decoder.layers.0 backward",
        "allocated_bytes": 100 + rank, "reserved_bytes": 100 + rank,
        "breakdown": [
            {"component": "experts", "category": "activations", "bytes": 60 + rank},
            {"component": "vision", "category": "parameters", "bytes": 40},
        ],
    }  # fmt: skip
    tokens = {"loss_tokens": 10, "image_tokens": 5, "padding_tokens": 1, "patches": 20}
    sizes = {"peak_bytes": 90 + rank, "retained_bytes": 50, "seconds": 1.0 + rank}
    steps = [{"step": number, **sizes, **tokens} for number in range(3)]
    return {
        "version": 1, "rank": rank, "world_size": world_size, "status": "completed", "error": None,
        "invalid": [], "device": "cpu", "hardware": "cpu", "torch": "2.13.0", "peak": peak, "steps": steps,
        "time": [{"component": "experts", "phase": "forward", "seconds": 0.5}], "oom": None,
        "data": {"real": True, "images": 4}, "trainable": {"experts": 1000 * (rank + 1)},
        "imports": {"megatron.core": "/x/core.py"}, "patches": {"nccl": 2}, "notes": ["note"], "instants": [],
        **changes,
    }  # fmt: skip


ERROR = {"type": "ValueError", "message": "width 5 is odd", "frames": ["train.py:<module>"], "text": ""}
OOM = {
    "component": "experts",
    "phase": "forward",
    "requested_bytes": 9,
    "allocated_bytes": 99,
    "reserved_bytes": 99,
}


def left(
    tmp_path: Path,
    *rows: dict[str, Any],
    processes: int | None = None,
    world_size: int | None = None,
    log: str = "",
    **result: Any,
) -> Measurement:
    tmp_path.mkdir(exist_ok=True)
    for row in rows:
        (tmp_path / f"rank-{row['rank']}.json").write_text(json.dumps(row))
    if not {"signal", "error"} & set(result):
        result.setdefault("exit_code", 0)
    remains = Remains(
        result=Result(**result),
        probe_folder=tmp_path,
        log=log,
        processes=processes or max(len(rows), 1),
        world_size=world_size,
        own_folders=(tmp_path,),
        time_limit_seconds=60,
        redaction=Redaction(paths=None),
    )
    return gather(remains, STATE)


def test_a_rank_that_took_all_steps_is_completed(tmp_path: Path) -> None:
    measured = left(tmp_path, rank_row())
    assert measured.outcome is Outcome.COMPLETED
    assert measured.peak is not None
    assert measured.peak.breakdown.total_bytes == measured.peak.allocated_bytes == 100
    assert measured.real_data
    assert Measurement.from_json(measured.to_json()) == measured


def test_bytes_are_of_the_worst_rank_and_tokens_of_all(tmp_path: Path) -> None:
    measured = left(tmp_path, rank_row(0, 2), rank_row(1, 2))
    assert measured.peak is not None
    assert measured.peak.rank == 1
    assert [step.peak_bytes for step in measured.steps] == [91] * 3
    assert [step.loss_tokens for step in measured.steps] == [20] * 3
    assert [step.seconds for step in measured.steps] == [2.0] * 3
    assert measured.images == 8
    assert measured.trainable == {"experts": 2000}
    assert measured.patches == {"nccl": 4}
    assert measured.notes == ("note",)


def dry_row(rank: int, **changes: Any) -> dict[str, Any]:
    simulated = {"device": "dry_run", "data": {"real": None, "images": 4}, "rehearsed": [0, 32]}
    return rank_row(rank, 64, **simulated, **changes)


def test_a_dry_run_is_measured_by_the_ranks_that_it_rehearsed(tmp_path: Path) -> None:
    measured = left(tmp_path, dry_row(0), dry_row(32), processes=1, world_size=64)
    assert measured.outcome is Outcome.COMPLETED, measured.reason
    assert (measured.device, measured.real_data) == ("dry_run", None)
    assert measured.peak is not None
    assert measured.peak.rank == 32
    assert [share.rank for share in measured.ranks] == [0, 32]


def test_a_stage_of_a_dry_run_without_a_record_is_lost_not_good(tmp_path: Path) -> None:
    measured = left(tmp_path, dry_row(0), processes=1, world_size=64)
    assert measured.outcome is Outcome.LOST
    assert "rank 32" in measured.reason
    assert "dry_run.parallel" in measured.reason


def test_a_world_that_was_not_asked_for_is_not_measured(tmp_path: Path) -> None:
    measured = left(tmp_path, dry_row(0), dry_row(32), processes=1, world_size=8)
    assert measured.outcome is Outcome.INVALID
    assert "0 of 64, not of 8" in measured.reason


NETWORK = {"type": "DistNetworkError", "message": "Connection reset by peer", "frames": [], "text": ""}
FAILED: dict[str, Any] = {"status": "failed", "error": ERROR}
WAKE: dict[str, Any] = {"status": "failed", "error": NETWORK}
REFUSED: dict[str, Any] = {
    "status": "out_of_memory",
    "oom": OOM,
    "error": {**ERROR, "type": "OutOfMemoryError"},
}
TIMEOUT = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE)"
STUCK: dict[str, Any] = {
    "status": "failed",
    "error": {**NETWORK, "type": "DistBackendError", "message": TIMEOUT},
}
OFF_ITS_BUS = "NVRM: Xid (PCI:0000:02:00): 79, GPU has fallen off the bus."
FAULT_OF_A_PROGRAM = "NVRM: Xid (PCI:0000:01:00): 31, Ch 00000003, engmask 00000101, intr 10000000"
MOCK: dict[str, Any] = {"invalid": ["the data is mock"]}
ODD_WIDTH = "ValueError: width <n> is odd @ train.py:<module>"
LIMIT = {"signal": 15, "timed_out": True}


@pytest.mark.parametrize(
    ("changes", "result", "outcome", "signature"),
    [
        (REFUSED, {"exit_code": 1}, Outcome.OUT_OF_MEMORY, OUT_OF_MEMORY_SIGNATURE),
        (FAILED, {"exit_code": 1}, Outcome.CRASHED, ODD_WIDTH),
        (FAILED, {"exit_code": 0}, Outcome.CRASHED, ODD_WIDTH),
        ({}, LIMIT, Outcome.TIMED_OUT, TIMED_OUT_SIGNATURE),
        (REFUSED, LIMIT, Outcome.OUT_OF_MEMORY, OUT_OF_MEMORY_SIGNATURE),
        (None, {"exit_code": 137}, Outcome.CRASHED, HOST_MEMORY_SIGNATURE),
        (None, {"signal": 9}, Outcome.CRASHED, HOST_MEMORY_SIGNATURE),
        (None, {"exit_code": 137, "memory_kills_on_host": 0}, Outcome.LOST, ""),
        (None, {"signal": 9, "memory_kills_on_host": 1}, Outcome.CRASHED, HOST_MEMORY_SIGNATURE),
        (WAKE, {"exit_code": 1, "memory_kills": 1}, Outcome.CRASHED, HOST_MEMORY_SIGNATURE),
        (FAILED, {"exit_code": 1, "memory_kills": 1}, Outcome.CRASHED, HOST_MEMORY_SIGNATURE),
        (FAILED, {"exit_code": 137, "memory_kills_on_host": 1}, Outcome.CRASHED, ODD_WIDTH),
        (FAILED, {"exit_code": 137, "memory_kills_on_host": 0}, Outcome.CRASHED, ODD_WIDTH),
        (REFUSED, {"exit_code": 1, "memory_kills": 1}, Outcome.OUT_OF_MEMORY, OUT_OF_MEMORY_SIGNATURE),
        ({}, {"exit_code": 0, "memory_kills": 1}, Outcome.COMPLETED, ""),
        (STUCK, {"exit_code": 1}, Outcome.TIMED_OUT, HANG_SIGNATURE),
        (FAILED, {"exit_code": 1, "kernel": [OFF_ITS_BUS]}, Outcome.LOST, ""),
        (FAILED, {"exit_code": 1, "kernel": [FAULT_OF_A_PROGRAM]}, Outcome.CRASHED, ODD_WIDTH),
        (None, {"exit_code": 139}, Outcome.CRASHED, "signal SIGSEGV"),
        (None, {"exit_code": 3}, Outcome.CRASHED, "exit code 3"),
        ({}, {"exit_code": 3}, Outcome.CRASHED, "exit code 3"),
        (None, {"exit_code": 0}, Outcome.INVALID, ""),
        (MOCK, {"exit_code": 0}, Outcome.INVALID, ""),
        (REFUSED | MOCK, {"exit_code": 1}, Outcome.INVALID, ""),
        ({}, {"exit_code": 0, "owner_died": True}, Outcome.LOST, ""),
        (None, {"error": "cannot be started"}, Outcome.LOST, ""),
        (WAKE, {"exit_code": 1}, Outcome.LOST, ""),
    ],
)
def test_the_first_fact_that_holds_decides_the_outcome(
    tmp_path: Path, changes: dict[str, Any] | None, result: dict[str, Any], outcome: Outcome, signature: str
) -> None:
    (tmp_path / "train.py").touch()
    rows = [] if changes is None else [rank_row(**changes)]
    measured = left(tmp_path, *rows, **result)
    assert (measured.outcome, measured.signature) == (outcome, signature)
    assert measured.reason


def test_a_rank_that_ran_out_of_memory_speaks_before_those_it_took_along(tmp_path: Path) -> None:
    measured = left(tmp_path, rank_row(0, 2, **WAKE), rank_row(1, 2, **REFUSED), exit_code=1)
    assert measured.outcome is Outcome.OUT_OF_MEMORY
    assert measured.oom is not None
    assert measured.oom.component == "experts"


def test_a_crash_speaks_before_the_network_error_in_its_wake(tmp_path: Path) -> None:
    measured = left(tmp_path, rank_row(0, 2, **WAKE), rank_row(1, 2, **FAILED), exit_code=1)
    assert measured.outcome is Outcome.CRASHED


def test_a_missing_rank_after_a_good_end_is_invalid_and_named(tmp_path: Path) -> None:
    measured = left(tmp_path, rank_row(0, 2), processes=2)
    assert measured.outcome is Outcome.INVALID
    assert "rank 1 left no measurement" in measured.reason


def test_a_probe_that_could_not_begin_is_no_failure_of_the_job(tmp_path: Path) -> None:
    log = "firstbad_probe: it needs torch in the job's environment: No module named 'torch'\n"
    measured = left(tmp_path, exit_code=1, log=log)
    assert measured.outcome is Outcome.INVALID
    assert "needs torch in the job's environment" in measured.reason


def test_an_import_that_fails_before_the_probe_is_read_from_the_log(tmp_path: Path) -> None:
    frame = f'  File "{tmp_path}/train.py", line 1, in <module>'
    log = f"Traceback (most recent call last):\n{frame}\nImportError: no x\n"
    measured = left(tmp_path, exit_code=1, log=log)
    assert (measured.outcome, measured.signature) == (
        Outcome.CRASHED,
        "ImportError: no x @ train.py:<module>",
    )


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("CUDA Error: out of memory at cumem_allocator.cpp:62\nAborted", Outcome.OUT_OF_MEMORY),
        ("terminate called after throwing an instance of 'std::bad_alloc'", Outcome.CRASHED),
        ("The server socket has failed to listen: Address already in use", Outcome.LOST),
    ],
)
def test_a_library_that_aborts_is_understood_by_its_text(tmp_path: Path, text: str, outcome: Outcome) -> None:
    assert left(tmp_path, exit_code=134, log=text).outcome is outcome


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 2},
        {"status": "great"},
        {"peak": {**rank_row()["peak"], "allocated_bytes": 101}},
        {"peak": {**rank_row()["peak"], "allocated_bytes": "100"}},
        {"steps": [{**rank_row()["steps"][0], "peak_bytes": -1}]},
        {"steps": [{**rank_row()["steps"][0], "seconds": float("nan")}]},
        {"steps": [{**rank_row()["steps"][0], "seconds": -1.0}]},
        {"data": None},
        {"time": [{"component": "kitchen", "phase": "forward", "seconds": 1.0}]},
        {"trainable": {"vision": 1.5}},
        {"notes": ["x" * 5000]},
        {"world_size": 2},
    ],
)
def test_numbers_that_cannot_be_are_not_believed(tmp_path: Path, changes: dict[str, Any]) -> None:
    measured = left(tmp_path, rank_row(**changes))
    assert measured.outcome is Outcome.INVALID
    assert "no measurement to trust: rank 0's file" in measured.reason
    assert measured.peak is None


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"not json", b"[" * 100_000, b"x" * (9 * 2**20), b"\xff\xfe"]
)
def test_a_file_that_is_no_record_is_not_believed(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "rank-0.json").write_bytes(content)
    assert left(tmp_path).outcome is Outcome.INVALID


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_what_is_no_plain_file_is_not_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "rank-0.json"
    if kind == "link":
        secret = tmp_path / "secret.json"
        secret.write_text(json.dumps(rank_row()))
        path.symlink_to(secret)
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    assert left(tmp_path).outcome is Outcome.INVALID


def test_processes_that_had_to_be_killed_are_noted(tmp_path: Path) -> None:
    measured = left(tmp_path, rank_row(), exit_code=0, left_behind_killed=2)
    assert measured.outcome is Outcome.COMPLETED
    assert "2 processes outlived the command and were killed" in measured.notes


def test_summits_and_what_stays_after_a_step_are_those_of_the_rank_of_the_peak(tmp_path: Path) -> None:
    rows = []
    for rank in range(2):
        row = rank_row(rank, 2)
        kept = [{"component": "vision", "category": "parameters", "bytes": 40 + rank}]
        rows.append(row | {"summits": [row["peak"]], "retained": [{"step": 2, "breakdown": kept}]})
    measured = left(tmp_path, *rows)
    assert measured.summits == (measured.peak,)
    assert [(kept.step, kept.breakdown.total_bytes) for kept in measured.retained] == [(2, 41)]
    assert Measurement.from_json(measured.to_json()) == measured


def test_the_busiest_rank_and_the_busiest_expert_are_told_against_the_mean(tmp_path: Path) -> None:
    """Six experts of three ranks, two layers, 50 tokens each on the mean; the fourth rank holds none."""
    rows = [rank_row(rank, 4) for rank in range(4)]
    for row, by_expert in zip(rows, ((200, 20, 80, 60), (90, 30, 60, 60), (0, 0, 0, 0), ()), strict=True):
        for step in row["steps"]:
            step |= {
                "expert_tokens": sum(by_expert),
                "expert_calls": len(by_expert),
                "most_expert_tokens": max(by_expert, default=0),
            }
    loads = [(step.rank_load, step.expert_load) for step in left(tmp_path, *rows).steps]
    assert loads == [(1.8, 4.0)] * 3
    unknown = [(step.rank_load, step.expert_load) for step in left(tmp_path / "old", rank_row()).steps]
    assert unknown == [(0.0, 0.0)] * 3


ILLEGAL = {
    **ERROR,
    "type": "AcceleratorError",
    "message": "CUDA error: an illegal memory access was encountered",
}


@pytest.mark.parametrize(
    ("changes", "result", "doubtful"),
    [
        ({"status": "failed", "error": ILLEGAL}, {"exit_code": 1}, True),
        (FAILED, {"exit_code": 1}, False),
        (None, {"exit_code": 139}, True),
        (None, {"exit_code": 3}, False),
    ],
)
def test_what_chance_causes_as_well_is_marked_and_keeps_its_place_in_the_code(
    tmp_path: Path, changes: dict[str, Any] | None, result: dict[str, Any], doubtful: bool
) -> None:
    (tmp_path / "train.py").touch()
    measured = left(tmp_path, *([] if changes is None else [rank_row(**changes)]), **result)
    assert (measured.outcome, measured.doubtful) == (Outcome.CRASHED, doubtful)
    assert Measurement.from_json(measured.to_json()).doubtful is doubtful
    if changes and doubtful:
        assert measured.signature.endswith("an illegal memory access was encountered @ train.py:<module>")


def test_a_broken_rank_speaks_before_those_that_lost_touch_with_it(tmp_path: Path) -> None:
    illegal: dict[str, Any] = {"status": "failed", "error": ILLEGAL}
    measured = left(tmp_path, rank_row(0, 2, **WAKE), rank_row(1, 2, **illegal), exit_code=1)
    assert (measured.outcome, measured.doubtful) == (Outcome.CRASHED, True)


def test_tokens_and_sequences_are_of_all_ranks_and_preparations_of_the_one_with_the_most(
    tmp_path: Path,
) -> None:
    rows = [rank_row(rank, 2) for rank in range(2)]
    for row in rows:
        for step in row["steps"]:
            step |= {"tokens": 30, "sequences": 2, "preparations": row["rank"]}
    steps = left(tmp_path, *rows).steps
    assert {(step.tokens, step.sequences, step.preparations) for step in steps} == {(60, 4, 1)}


@pytest.mark.parametrize(
    ("result", "doubtful"),
    [
        ({"signal": 9}, True),
        ({"signal": 9, "memory_kills_on_host": 1}, True),
        ({"signal": 9, "memory_kills": 1}, False),
    ],
)
def test_memory_of_the_host_is_doubtful_where_a_neighbour_may_have_taken_it(
    tmp_path: Path, result: dict[str, Any], doubtful: bool
) -> None:
    measured = left(tmp_path, **result)
    assert (measured.signature, measured.doubtful) == (HOST_MEMORY_SIGNATURE, doubtful)


def test_the_kernels_words_are_in_the_reason(tmp_path: Path) -> None:
    killed = "Memory cgroup out of memory: Killed process 19062 (python3) total-vm:323784kB, anon-rss:65152kB"
    measured = left(tmp_path, signal=9, memory_kills=1, kernel=[FAULT_OF_A_PROGRAM, killed])
    assert measured.reason.endswith(f"the kernel killed for it: {killed}")


def test_every_rank_is_kept_and_what_the_probe_could_not_see_is_told_once(tmp_path: Path) -> None:
    rows = []
    for rank in range(3):
        row = rank_row(rank, 3) | {"unseen": ["inside a CUDA graph"], "watch": {"outside_bytes": 70 + rank}}
        for step in row["steps"]:
            step |= {"image_tokens": 5 * rank, "expert_tokens": 7 * rank}
        rows.append(row)
    measured = left(tmp_path, *rows)
    assert measured.unseen == ("inside a CUDA graph",)
    assert [share.rank for share in measured.ranks] == [0, 1, 2]
    count = len(measured.steps)
    assert [share.image_tokens for share in measured.ranks] == [0, 5 * count, 10 * count]
    assert [share.expert_tokens for share in measured.ranks] == [0, 7 * count, 14 * count]
    assert [share.outside_bytes for share in measured.ranks] == [70, 71, 72]
    assert measured.peak is not None
    assert measured.peak.allocated_bytes == max(share.peak_bytes for share in measured.ranks)
    assert Measurement.from_json(measured.to_json()) == measured
