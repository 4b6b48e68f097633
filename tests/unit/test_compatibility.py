"""The page of what was run with what: as generated, and nothing claimed that was not run."""

from __future__ import annotations

import json
from typing import get_args

import pytest

from benchmarks.compatibility import PAGE, RUNS, UNTESTED, page
from bisection.adapters.containers import Container
from firstbad.shipped_profiles import names
from workers.containers import UNTESTED as UNTESTED_RUNTIMES

RUN = {"bridge": "9.9", "core": "9.9", "torch": "9", "python": "3", "device": "cuda"}
RAN = {
    **RUN,
    "transformers": "9",
    "job": "x",
    "command": "y",
    "date": "2026-01-01",
    "result": "stops at import",
}


def test_the_page_is_what_would_be_written_today() -> None:
    entered = json.loads(RUNS.read_text())
    assert PAGE.read_text() == page(entered["runs"], entered["launchers"]), (
        "run python -m benchmarks.compatibility"
    )


def test_the_doctor_and_the_page_call_the_same_runtimes_untested() -> None:
    rows = json.loads(RUNS.read_text())["launchers"]
    runtimes = get_args(Container.model_fields["runtime"].annotation)
    tried = {name for name in runtimes for row in rows if row["result"] and name in row["container"].lower()}
    assert set(runtimes) - tried == UNTESTED_RUNTIMES


def test_what_was_not_run_is_untested_and_so_is_every_shipped_profile() -> None:
    lines = page([{**RUN, "result": None}]).splitlines()
    assert sum(UNTESTED in line for line in lines) == 1 + len(names())


def test_a_run_shows_where_it_stopped_and_a_profile_that_ran_is_no_longer_untested() -> None:
    shown = page([{**RAN, "profile": names()[0]}])
    assert "stops at import" in shown
    assert f"`{names()[0]}` | 8 | 8 | 2 | 2025-11 script | stops at import |" in shown


@pytest.mark.parametrize("field", ["job", "date", "command", "transformers"])
def test_a_result_without_what_makes_it_believable_is_refused(field: str) -> None:
    with pytest.raises(ValueError, match=f"no {field}"):
        page([{**RAN, field: ""}])
