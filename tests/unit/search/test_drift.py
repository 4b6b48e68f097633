"""A slow climb is a set with numbers, never a culprit; steps are never taken for one."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bisection.criteria import CriterionKind
from bisection.drift import find_drift
from bisection.finding import FindingKind
from bisection.steps import Profile
from tests.unit.search.drawn_lines import drive, hash_of
from tests.unit.search.drawn_values import DrawnValues, climb, hashes, steps_at


def profile_of(means: dict[int, float], noise: float = 0.01, repeats: int = 2) -> Profile:
    groups = np.array(sorted(means))
    counts = np.full(len(groups), repeats)
    return Profile(
        groups=groups,
        means=np.array([means[int(group)] for group in groups]),
        counts=counts,
        variances=noise**2 / counts,
        freedom=int((counts - 1).sum()),
    )


@pytest.mark.parametrize("workers", [1, 4])
def test_a_steady_climb_is_a_set_of_all_over_which_it_climbs(workers: int) -> None:
    line = DrawnValues(climb(61, 10), 65, noise=0.02)
    finding, ledger = drive(line, line.specification(parallel=workers, workers=workers))
    assert (finding.kind, finding.problem) == (FindingKind.SET, "drift")
    assert finding.commits == hashes(range(1, 61))
    assert len(ledger) <= (10 if workers == 1 else 18)  # where the metric is clear, no trial repeats it


def test_the_set_has_its_numbers() -> None:
    line = DrawnValues(climb(61, 10), 65)
    finding, _ = drive(line, line.specification())
    assert "by 10.00 GiB over 60 commits: from 60.00 GiB" in finding.why
    assert "No single commit carries it" in finding.why
    assert "the largest that was measured" in finding.why


def test_flat_ends_are_no_part_of_the_climb() -> None:
    values = [60.0] * 21 + climb(21, 10) + [70.0] * 20
    line = DrawnValues(values, 65, noise=0.01)
    finding, ledger = drive(line, line.specification())
    assert finding.problem == "drift"
    tried = {int(entry.trial.state.commit, 16) for entry in ledger}
    before, after = max(p for p in tried if p <= 21), min(p for p in tried if p >= 41)
    assert finding.commits == hashes(range(before + 1, after + 1))


def test_a_throughput_that_falls_slowly_is_told_as_falling() -> None:
    line = DrawnValues(climb(61, -10, base=70), 65, kind=CriterionKind.THROUGHPUT, noise=0.02)
    finding, _ = drive(line, line.specification())
    assert finding.problem == "drift"
    assert "The throughput falls little by little, by 1,00" in finding.why or "by 99" in finding.why


def test_where_peaks_are_cut_off_the_whole_one_at_the_crossing_shows_the_climb() -> None:
    line = DrawnValues(climb(41, 8), 65, kind=CriterionKind.OUT_OF_MEMORY, noise=0.01)
    finding, _ = drive(line, line.specification())
    assert (finding.kind, finding.problem) == (FindingKind.SET, "drift")
    assert hash_of(26) in finding.commits


@pytest.mark.parametrize(
    ("steps", "limit", "culprit"),
    [
        ([(20, 10)], 65, 20),
        ([(20, 6), (45, 6)], 65, 20),
        ([(20, 6), (45, 24)], 65, 20),  # a fifth of the rise, but a step
        ([(20, 24), (45, 6)], 86, 45),
        ([(15, 4), (30, 4), (50, 4)], 66, 30),
        ([(1, 10)], 65, 1),
        ([(60, 10)], 65, 60),
    ],
)
@pytest.mark.parametrize("noise", [0.0, 0.02, 0.4])
def test_steps_have_a_culprit(
    steps: list[tuple[int, float]], limit: float, culprit: int, noise: float
) -> None:
    line = DrawnValues(steps_at(61, *steps), limit, noise=noise)
    finding, _ = drive(line, line.specification())
    assert finding.kind is FindingKind.FOUND
    assert finding.commits == (hash_of(culprit),)


@pytest.mark.parametrize("step", [3, 4, 6])
@pytest.mark.parametrize("workers", [1, 3])
def test_a_step_on_a_climb_is_the_culprit_if_it_carries_a_quarter(step: float, workers: int) -> None:
    values = [value + step * (position >= 27) for position, value in enumerate(climb(61, 10 - step, base=60))]
    line = DrawnValues(values, (values[26] + values[27]) / 2, noise=0.02)
    finding, _ = drive(line, line.specification(parallel=workers, workers=workers))
    assert finding.kind is FindingKind.FOUND
    assert finding.commits == (hash_of(27),)


def test_plateaus_with_a_little_wobble_are_plateaus() -> None:
    wobble = random.Random(3)
    line = DrawnValues([value + wobble.gauss(0, 0.15) for value in steps_at(61, (33, 10))], 65, noise=0.01)
    finding, _ = drive(line, line.specification())
    assert finding.commits == (hash_of(33),)


def test_of_many_uneven_climbs_hardly_any_accuses_and_of_as_many_steps_none_is_lost() -> None:
    accused = lost = 0
    for seed in range(20):
        uneven = random.Random(seed)
        values = np.cumsum([0.0, *(uneven.expovariate(1.0) for _ in range(60))])
        drawn = DrawnValues(list(60 + 10 * values / values[-1]), 65, noise=0.3, seed=seed)
        finding, _ = drive(drawn, drawn.specification(parallel=2, workers=2))
        accused += finding.kind is FindingKind.FOUND
        culprit = 1 + seed * 3
        stepped = DrawnValues(steps_at(61, (culprit, 10)), 65, noise=1.0, seed=seed)
        finding, _ = drive(stepped, stepped.specification(parallel=2, workers=2))
        lost += finding.commits != (hash_of(culprit),)
    assert accused <= 3
    assert lost == 0


def test_without_repeats_nothing_is_said() -> None:
    means = {0: -5.5, 15: -3.0, 30: -0.5, 37: 0.7, 60: 4.5}
    assert find_drift(profile_of(means), 30, 37) is not None
    assert find_drift(profile_of(means, repeats=1), 30, 37) is None


def test_a_crossing_that_noise_hides_is_no_drift_yet() -> None:
    means = {0: -5.5, 15: -3.0, 30: -0.5, 37: 0.7, 60: 4.5}
    assert find_drift(profile_of(means, noise=1.5), 30, 37) is None


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    culprit=st.integers(1, 40),
    share=st.floats(0.3, 1.0),
    other=st.integers(1, 40),
    seed=st.integers(0, 100),
)
def test_one_or_two_steps_are_never_a_drift(culprit: int, share: float, other: int, seed: int) -> None:
    if other == culprit:
        other = culprit % 40 + 1
    values = steps_at(41, (culprit, 10 * share), (other, 10 * (1 - share)))
    line = DrawnValues(values, values[culprit] - 5 * share, noise=0.05, seed=seed)
    finding, _ = drive(line, line.specification())
    assert finding.problem != "drift"


@settings(max_examples=30, deadline=None, derandomize=True)
@given(size=st.integers(24, 80), limit=st.floats(0.1, 0.9), rise=st.floats(1, 50), seed=st.integers(0, 100))
def test_a_steady_climb_accuses_nobody_wherever_the_limit_lies(
    size: int, limit: float, rise: float, seed: int
) -> None:
    line = DrawnValues(climb(size, rise), 60 + limit * rise, noise=rise / 2000, seed=seed)
    finding, _ = drive(line, line.specification())
    assert finding.kind is not FindingKind.FOUND


def test_a_small_step_beside_a_large_one_is_no_climb_while_the_crossing_is_unsure() -> None:
    """One value above the limit by a little, where others are far above it, is not yet believed."""
    for culprit in range(4, 20, 3):
        line = DrawnValues(steps_at(61, (culprit, 6), (culprit + 12, 24)), 65, noise=0.02, seed=culprit)
        finding, _ = drive(line, line.specification(parallel=4, workers=4))
        assert finding.commits == (hash_of(culprit),)
