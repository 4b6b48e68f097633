"""Two lists of allocations, and the places at which they differ."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisection.allocations import MOST_CHANGES, AllocationTable, allocation_delta
from bisection.json_shapes import decode_fields, encode_fields
from bisection.rendering.html import render_html
from bisection.rendering.markdown import render_markdown
from bisection.rendering.terminal import render_text
from bisection.report import CulpritReport, build_report
from tests.unit.report import samples

MIB = 2**20


def _table(*rows: tuple[str, str, int], left_out: int = 0) -> AllocationTable:
    listed = [
        {
            "component": component,
            "path": "layers.1",
            "frames": [frame],
            "bytes": size,
            "count": 1,
            "phase": "x",
        }
        for component, frame, size in rows
    ]
    total = sum(size for _, _, size in rows) + left_out
    row = {"version": 1, "rank": 0, "allocated_bytes": total, "left_out_bytes": left_out, "notes": []}
    return AllocationTable.from_json(json.loads(json.dumps(row | {"rows": listed})))


def test_a_place_that_moved_to_another_line_is_the_same_place() -> None:
    delta = allocation_delta(
        _table(("experts", "moe.py:10 forward", 4 * MIB)), _table(("experts", "moe.py:17 forward", 9 * MIB))
    )
    (change,) = delta.changes
    assert (change.delta_bytes, change.frames, delta.other_bytes) == (5 * MIB, ("moe.py:17 forward",), 0)


def test_the_same_line_in_another_component_is_another_place() -> None:
    frame = "linear.py:3 forward"
    delta = allocation_delta(_table(("vision", frame, MIB)), _table(("decoder", frame, MIB)))
    assert {(change.component, change.delta_bytes) for change in delta.changes} == {
        ("vision", -MIB),
        ("decoder", MIB),
    }


PLACES = st.lists(
    st.tuples(st.sampled_from(["vision", "experts"]), st.integers(0, 40), st.integers(0, MIB)), max_size=60
)


@given(PLACES, PLACES, st.integers(0, MIB))
def test_changes_and_the_rest_sum_to_the_difference_of_the_peaks(
    before: list[tuple[str, int, int]], after: list[tuple[str, int, int]], left_out: int
) -> None:
    old, new = (
        _table(*((component, f"a.py:1 f{place}", size) for component, place, size in rows), left_out=out)
        for rows, out in ((before, 0), (after, left_out))
    )
    delta = allocation_delta(old, new)
    assert len(delta.changes) <= MOST_CHANGES
    assert sum(change.delta_bytes for change in delta.changes) + delta.other_bytes == (
        new.allocated_bytes - old.allocated_bytes
    )
    assert decode_fields(type(delta), json.loads(json.dumps(encode_fields(delta)))) == delta


@pytest.mark.parametrize(
    "row",
    [
        None,
        [],
        {"version": 2, "rows": []},
        {"version": 1},
        {"version": 1, "rank": 0, "allocated_bytes": -1, "rows": [], "left_out_bytes": 0, "notes": []},
        {"version": 1, "rank": 0, "allocated_bytes": 1, "rows": [7], "left_out_bytes": 0, "notes": []},
        {"version": 1, "rank": 0, "allocated_bytes": 1, "rows": [], "left_out_bytes": 0, "notes": [3]},
        {"version": 1, "rank": 0, "allocated_bytes": 1.5, "rows": [], "left_out_bytes": 0, "notes": []},
    ],
)
def test_what_is_not_the_probes_file_is_refused(row: Any) -> None:
    with pytest.raises(ValueError, match=r"alloc|number|text"):
        AllocationTable.from_json(row)


def test_the_report_shows_the_places_where_both_commits_were_run_in_the_full_mode() -> None:
    sample = samples.experts()
    before = _table(("experts", "moe.py:10 forward", 4 * MIB), ("vision", "tower.py:2 <script>", MIB))
    after = _table(("experts", "moe.py:17 forward", 9 * MIB), ("vision", "tower.py:2 <script>", 2 * MIB))
    one = replace(sample.evidence, culprit_allocations=after)
    both = replace(one, parent_allocations=before)
    for evidence, shown in ((one, False), (both, True)):
        report = build_report(sample.spec, sample.ledger, sample.finding, evidence)
        assert CulpritReport.from_json(json.loads(json.dumps(report.to_json()))) == report
        for text in (render_text(report), render_markdown(report), render_html(report)):
            assert ("moe.py:17 forward in layers.1" in text) is shown
        assert "tower.py:2 <script>" not in render_html(report)
