"""Levels of a profile: joined where noise and habit explain the difference, kept where they do not."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bisection.criteria import CriterionKind
from bisection.evidence import Observation
from bisection.steps import SMALLEST_SHARE, Profile, levels
from bisection.values import Values


def profile_of(rows: list[tuple[int, float]]) -> Profile:
    """Of rows of state and value, in any order."""
    observations = [
        Observation(group=group, bad=value > 0, worker="w", value=value, limit=0.0) for group, value in rows
    ]
    return Profile.of(Values.of(CriterionKind.PEAK_MEMORY, observations))


def test_the_profile_has_means_and_the_noise_of_repeats() -> None:
    profile = profile_of([(7, 5.0), (2, -5.0), (2, -5.2), (7, 5.2), (7, 5.4)])
    assert profile.groups.tolist() == [2, 7]
    np.testing.assert_allclose(profile.means, [-5.1, 5.2])
    assert profile.freedom == 3
    np.testing.assert_allclose(profile.variances, np.array([0.1 / 3 / 2, 0.1 / 3 / 3]))


def test_a_second_rise_is_a_step_of_its_own() -> None:
    profile = profile_of([(0, -5.0), (19, -5.0), (19, -5.01), (20, 1.0), (20, 1.02), (40, 1.0), (60, 7.0)])
    steps = levels(profile, 20)
    assert [(step.lower, step.upper, round(step.delta)) for step in steps] == [(19, 20, 6), (40, 60, 6)]


def test_a_fall_and_a_second_rise_are_seen() -> None:
    rows = [(0, -5), (9, -5), (9, -5.01), (10, 5), (10, 5.01), (20, -5), (30, 5), (60, 5)]
    steps = levels(profile_of([(group, float(value)) for group, value in rows]), 10)
    assert [step.delta > 0 for step in steps] == [True, False, True]
    assert [(step.lower, step.upper) for step in steps] == [(9, 10), (10, 20), (20, 30)]


def test_what_noise_explains_is_no_step() -> None:
    noisy = [(0, -5.0), (9, -6.0), (9, -4.0), (10, 4.0), (10, 6.0), (30, 5.5), (60, 7.5)]
    assert [(step.lower, step.upper) for step in levels(profile_of(noisy), 10)] == [(9, 10)]


def test_without_a_repeat_there_are_no_steps() -> None:
    assert levels(profile_of([(0, -5.0), (10, 5.0), (60, 50.0)])) == ()


rows_of_values = st.lists(st.tuples(st.integers(0, 30), st.floats(-100, 100)), min_size=2, max_size=25)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(rows=rows_of_values, culprit=st.integers(1, 30))
def test_steps_come_in_order_meet_and_are_never_small_but_at_the_culprit(
    rows: list[tuple[int, float]], culprit: int
) -> None:
    profile = profile_of(rows)
    steps = levels(profile, culprit)
    for before, after in itertools.pairwise(steps):
        assert before.lower < before.upper <= after.lower < after.upper
    smallest = SMALLEST_SHARE * np.ptp(profile.means)
    assert all(abs(step.delta) >= smallest or step.lower < culprit <= step.upper for step in steps)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    at=st.sets(st.integers(1, 40), min_size=1, max_size=3),
    measured=st.sets(st.integers(0, 40), min_size=2, max_size=20),
    sizes=st.lists(st.sampled_from([-8.0, 5.0, 8.0]), min_size=3, max_size=3),
)
def test_planted_steps_are_found_between_the_states_that_were_measured(
    at: set[int], measured: set[int], sizes: list[float]
) -> None:
    planted = dict(zip(sorted(at), sizes, strict=False))
    values = {g: sum(size for place, size in planted.items() if place <= g) for g in measured}
    found = levels(profile_of([(g, value) for g, value in values.items() for _ in range(2)]))
    steps = [(step.lower, step.upper, round(step.delta, 6)) for step in found]
    places = sorted(measured)
    expected = [
        (a, b, values[b] - values[a]) for a, b in itertools.pairwise(places) if values[a] != values[b]
    ]
    assert steps == expected
