"""Fuzzing of all readers: a bounded, seeded run; and one for as long as is wanted.

    FIRSTBAD_FUZZ_SECONDS=600 pytest tests/fuzz -m long      # so long for each reader

What it finds is printed with the input. Each find becomes a test below, or one beside its reader's.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.fuzz.readers import READERS, Reader

_EXAMPLES = 60
_SECONDS = float(os.environ.get("FIRSTBAD_FUZZ_SECONDS", "600"))
_CHECKS = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)


def tried(reader: Reader, examples: int, start: int) -> None:
    """Raises whatever the reader raises and may not."""

    @seed(start)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=_CHECKS,
        phases=(Phase.generate, Phase.shrink),
    )
    @given(st.data())
    def once(data: st.DataObject) -> None:
        drawn = data.draw(reader.inputs)
        with suppress(*reader.refusals):
            reader.read(drawn)

    once()


@pytest.mark.parametrize("name", READERS)
def test_a_reader_refuses_what_it_cannot_use_and_never_breaks(name: str) -> None:
    tried(READERS[name], max(_EXAMPLES // READERS[name].cost, 4), start=7)


@pytest.mark.long
@pytest.mark.parametrize("name", READERS)
def test_a_reader_never_breaks_however_long_it_is_tried(name: str) -> None:
    ends = time.monotonic() + _SECONDS
    start = time.time_ns()
    while time.monotonic() < ends:
        start += 1
        tried(READERS[name], 2000 // READERS[name].cost, start)
