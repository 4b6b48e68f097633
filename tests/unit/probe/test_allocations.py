"""A snapshot of torch's allocator, read into bounded rows.

The dictionaries are built from the format that torch documents (`torch.cuda.memory._snapshot`): without a GPU
there is none to record.
"""

from __future__ import annotations

from typing import Any

import pytest

from firstbad_probe.allocations import MOST_ROWS, Allocation, Marks, at_peak, rows_of, words_of

KIB = 1024
DECODER = ("decoder", "forward", "language_model.decoder.layers.1")
LOSS = ("embedding_and_loss", "backward", "loss function")


def _frame(file: str, line: int, name: str) -> dict[str, Any]:
    return {"filename": file, "line": line, "name": name}


OWN = [
    _frame("/job/model.py", 7, "mlp"),
    _frame("/job/model.py", 3, "forward"),
    _frame("/job/train.py", 9, "run"),
]
FRAMES = [_frame("/site/torch/nn/modules/linear.py", 125, "forward"), *OWN, _frame("??", 0, "main")]


def _event(action: str, address: int, size: int, **more: Any) -> dict[str, Any]:
    return {"action": action, "addr": address, "size": size, "stream": 0, "frames": [], **more}


def _snapshot(trace: list[dict[str, Any]], *alive: tuple[int, int]) -> dict[str, Any]:
    """`alive` at the end: addresses and sizes, each in a segment of its own."""
    return {
        "device_traces": [[], trace],
        "segments": [
            {
                "device": 1,
                "address": address,
                "total_size": 2 * size,
                "stream": 0,
                "blocks": [
                    {"address": address, "size": size, "requested_size": size, "state": "active_allocated"},
                    {"address": address + size, "size": size, "requested_size": 0, "state": "inactive"},
                ],
            }
            for address, size in alive
        ],
    }


def _read(snapshot: dict[str, Any], marks: Marks | None = None) -> tuple[dict[str, int], int]:
    found, highest = at_peak(snapshot, 1, marks or Marks(), lambda file: file.removeprefix("/job/"))
    sums: dict[str, int] = {}
    for allocation in found:
        sums[allocation.place[0]] = sums.get(allocation.place[0], 0) + allocation.size_bytes
    return sums, highest


def test_the_highest_instant_is_found_and_its_allocations_have_their_modules() -> None:
    trace = [
        _event("alloc", 1, 4 * KIB, user_metadata=words_of(DECODER)),
        _event("alloc", 2, 8 * KIB, user_metadata=words_of(LOSS)),
        _event("free_requested", 2, 8 * KIB),
        _event("free_completed", 2, 8 * KIB),
        _event("alloc", 2, 2 * KIB, user_metadata=words_of(DECODER)),
    ]
    sums, highest = _read(_snapshot(trace, (1, 4 * KIB), (2, 2 * KIB)))
    assert highest == 12 * KIB
    assert sums == {"decoder": 4 * KIB, "embedding_and_loss": 8 * KIB}


def test_what_was_made_before_the_history_began_is_there_without_a_module() -> None:
    trace = [
        _event("free_requested", 1, 6 * KIB),
        _event("alloc", 3, KIB, user_metadata=words_of(DECODER)),
    ]
    sums, highest = _read(_snapshot(trace, (2, 16 * KIB), (3, KIB)))
    assert highest == 22 * KIB  # before the first entry
    assert sums == {"runtime": 22 * KIB}


def test_an_address_that_is_used_again_counts_once() -> None:
    trace = [
        entry
        for _ in range(5)
        for entry in (
            _event("alloc", 1, 4 * KIB, user_metadata=words_of(DECODER)),
            _event("free_requested", 1, 4 * KIB),
        )
    ]
    assert _read(_snapshot(trace)) == ({"decoder": 4 * KIB}, 4 * KIB)


def test_sizes_are_rounded_as_the_allocator_rounds() -> None:
    assert _read(_snapshot([_event("alloc", 1, 1), _event("alloc", 2, 513)], (1, 1), (2, 513)))[1] == 3 * 512


def test_an_older_torch_is_told_where_it_was_by_the_clock() -> None:
    marks = Marks()
    marks.add(100, DECODER)
    marks.add(200, LOSS)
    trace = [_event("alloc", number, KIB, time_us=at) for number, at in enumerate((50, 100, 150, 200), 1)]
    sums, _ = _read(_snapshot(trace, *((number, KIB) for number in range(1, 5))), marks)
    assert sums == {"runtime": KIB, "decoder": 2 * KIB, "embedding_and_loss": KIB}


def test_frames_are_the_jobs_own_innermost_last() -> None:
    found, _ = at_peak(
        _snapshot([_event("alloc", 1, KIB, frames=FRAMES)], (1, KIB)), 1, Marks(), lambda file: file[5:]
    )
    assert found[0].frames == ("train.py:9 run", "model.py:3 forward", "model.py:7 mlp")


def test_segments_of_another_device_and_blocks_without_addresses_are_read() -> None:
    snapshot = _snapshot([], (1, KIB))
    (segment,) = snapshot["segments"]
    for block in segment["blocks"]:
        del block["address"]  # as older releases write them
    snapshot["segments"].append({**segment, "device": 0})
    assert _read(snapshot)[1] == KIB


@pytest.mark.parametrize("places", [3, MOST_ROWS + 20])
def test_rows_are_bounded_and_lose_no_byte(places: int) -> None:
    allocations = [Allocation(DECODER, (f"model.py:{number} f",), KIB) for number in range(places)] * 2
    told = rows_of(allocations)
    assert len(told["rows"]) == min(places, MOST_ROWS)
    assert sum(row["bytes"] for row in told["rows"]) + told["left_out_bytes"] == 2 * places * KIB
    assert all(row["count"] == 2 for row in told["rows"])
