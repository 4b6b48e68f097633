"""Numbers as people read them: bytes with their unit, counted nouns, and the judgements made of them."""

from __future__ import annotations

import re

import pytest

from bisection.criteria import Criterion, CriterionKind, judge
from bisection.measurement import Measurement, Outcome, OutOfMemory
from bisection.quantities import counted, show_bytes
from memory_models.breakdown import Category, Component, MemoryBreakdown
from tests.unit.report import samples

LIMIT = Criterion(kind=CriterionKind.PEAK_MEMORY, threshold=398.0 * 2**20)


def with_peak(allocated_bytes: int) -> Measurement:
    cells = {(Component.EXPERTS, Category.ACTIVATIONS): allocated_bytes}
    peak = samples.peak()
    return samples.measurement(
        peak=type(peak)(
            **{**peak.__dict__, "allocated_bytes": allocated_bytes, "breakdown": MemoryBreakdown(cells=cells)}
        )
    )


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0.0 MiB"),
        (512, "512 B"),
        (4096, "4.0 KiB"),
        (2**20 // 4, "0.2 MiB"),
        (445_545_984, "424.9 MiB"),
        (3 * 2**29, "1.50 GiB"),
    ],
)
def test_bytes_are_told_in_the_unit_in_which_they_are_not_nothing(count: int, shown: str) -> None:
    assert show_bytes(count) == shown
    assert show_bytes(count, signed=True) == f"+{shown}"


def test_one_of_a_kind_is_told_in_the_singular() -> None:
    assert [counted(n, "trial") for n in (0, 1, 2, 1024)] == [
        "0 trials",
        "1 trial",
        "2 trials",
        "1,024 trials",
    ]


def test_a_peak_is_judged_in_words_with_units() -> None:
    assert judge(LIMIT, with_peak(445_545_984)).why == "the peak of 424.9 MiB is above 398.0 MiB"
    assert judge(LIMIT, with_peak(300 * 2**20)).why == "the peak of 300.0 MiB is within 398.0 MiB"


def test_a_peak_that_reads_like_the_limit_is_told_with_its_margin() -> None:
    at = 398 * 2**20
    assert judge(LIMIT, with_peak(at + 512)).why == "the peak of 398.0 MiB is above 398.0 MiB by 512 B"
    assert judge(LIMIT, with_peak(at)).why == "the peak of 398.0 MiB is within 398.0 MiB"


def test_a_refusal_is_judged_in_words_with_units() -> None:
    refused = samples.refused("0" * 40).evolve(
        outcome=Outcome.OUT_OF_MEMORY,
        oom=OutOfMemory(
            component="experts",
            phase="forward",
            requested_bytes=16_777_216,
            allocated_bytes=390_294_016,
            reserved_bytes=390_294_016,
        ),
    )
    why = judge(LIMIT, refused).why
    assert why == "the allocator refused 16.0 MiB in experts, forward, with 372.2 MiB allocated"
    assert not re.search(r"\d{5}", why)
