"""The arithmetic of belief against a brute-force enumeration, and the parts that feed it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from bisection.placement import Outlook
from bisection.posterior import VERDICT_RATES, RateGrid, update
from bisection.skips import CLOSED_ABOVE, closed, untestable_chance
from bisection.spread import LARGEST_LOG_ODDS, fit_spread

UNIFORM = np.log(np.full(9, 1 / 9))  # 8 states, 9 hypotheses


def brute_force(log_prior: np.ndarray, groups: list[int], bad: list[bool], rates: RateGrid) -> np.ndarray:
    """The posterior by summing over every hypothesis and every pair of rates, one observation at a time."""
    belief = np.exp(log_prior).copy()
    for c in range(len(belief)):
        total = 0.0
        for fn, fp, log_weight in zip(
            rates.false_negative, rates.false_positive, rates.log_weight, strict=True
        ):
            likelihood = np.exp(log_weight)
            for group, failed in zip(groups, bad, strict=True):
                fails = 1 - fn if c <= group else fp
                likelihood *= fails if failed else 1 - fails
            total += likelihood
        belief[c] *= total
    return np.asarray(belief / belief.sum())


@pytest.mark.parametrize("seed", range(5))
def test_the_posterior_is_bayes_rule_over_hypotheses_and_rates(seed: int) -> None:
    random = np.random.default_rng(seed)
    groups = random.integers(0, 8, size=7)
    bad = random.random(7) < 0.5
    posterior = update(UNIFORM, groups, bad.astype(float), VERDICT_RATES)
    expected = brute_force(UNIFORM, list(groups), list(bad), VERDICT_RATES)
    np.testing.assert_allclose(posterior.belief, expected, atol=1e-12)


def test_without_evidence_the_posterior_is_the_prior() -> None:
    posterior = update(UNIFORM, np.array([], dtype=np.int64), np.array([]), VERDICT_RATES)
    np.testing.assert_allclose(posterior.belief, np.exp(UNIFORM))


def test_hundreds_of_observations_stay_finite() -> None:
    groups = np.repeat(np.arange(8), 100)
    posterior = update(UNIFORM, groups, (groups >= 5).astype(float), VERDICT_RATES)
    assert np.isfinite(posterior.belief).all()
    assert posterior.belief[5] > 0.999


def test_contradictory_trials_teach_the_flake_rates() -> None:
    groups = np.array([6] * 10 + [1] * 10)
    bad = np.array([True] * 6 + [False] * 4 + [False] * 10)
    posterior = update(UNIFORM, groups, bad.astype(float), VERDICT_RATES)
    assert posterior.false_negative[4] > 0.25
    assert posterior.false_positive[4] < 0.1


def test_information_is_what_brute_force_expects_from_a_trial() -> None:
    groups, bad = np.array([2, 6]), np.array([False, True])
    rates = RateGrid.product({0.1: 1.0}, {0.02: 1.0})
    posterior = update(UNIFORM, groups, bad.astype(float), rates)
    information = Outlook.of(posterior).information(np.arange(8))
    for state in range(8):
        gained = entropy(posterior.belief)
        for outcome in (False, True):
            after = brute_force(UNIFORM, [*groups, state], [*bad, outcome], rates)
            fails = np.where(np.arange(9) <= state, 0.9, 0.02)
            chance = (posterior.belief * (fails if outcome else 1 - fails)).sum()
            gained -= chance * entropy(after)
        assert information[state] == pytest.approx(gained, abs=1e-9)


def test_information_beside_a_running_trial_averages_over_its_results() -> None:
    rates = RateGrid.product({0.1: 1.0}, {0.02: 1.0})
    posterior = update(UNIFORM, np.array([], dtype=np.int64), np.array([]), rates)
    outlook = Outlook.of(posterior).with_running(3, 0.0)
    both = 0.0
    for results in itertools.product((False, True), repeat=2):
        after = brute_force(UNIFORM, [3, 5], list(results), rates)
        chance = np.exp(UNIFORM)
        for state, result in zip((3, 5), results, strict=True):
            fails = np.where(np.arange(9) <= state, 0.9, 0.02)
            chance = chance * (fails if result else 1 - fails)
        both += chance.sum() * entropy(after)
    alone = Outlook.of(posterior).information(np.array([3]))[0]
    joint = entropy(np.exp(UNIFORM)) - both
    assert alone + outlook.information(np.array([5]))[0] == pytest.approx(joint, abs=1e-9)


def entropy(belief: np.ndarray) -> float:
    return float(-(belief * np.log2(np.maximum(belief, 1e-300))).sum())


def test_a_metric_with_a_tiny_spread_is_sure_and_one_with_a_wide_spread_is_not() -> None:
    groups, bad = np.arange(8), np.arange(8) >= 4
    level = np.where(bad, 5.0, -5.0)
    noise = np.array([0.1, -0.1, 0.05, 0.0, -0.05, 0.1, 0.0, -0.1])
    tight = fit_spread(level + noise, groups, bad)
    wide = fit_spread(level + 40 * noise, groups, bad)
    assert tight is not None
    assert wide is not None
    at = np.array([5.0])
    assert tight.log_odds(at)[0] == LARGEST_LOG_ODDS
    assert 1 < wide.log_odds(at)[0] < 7


def test_a_value_at_the_limit_tells_nothing_and_far_beyond_it_no_less_than_at_the_level() -> None:
    spread = fit_spread(np.array([-3.0, -5.0, 4.0, 6.0]), np.arange(4), np.array([0, 0, 1, 1], dtype=bool))
    assert spread is not None
    odds = spread.log_odds(np.array([0.0, spread.half, 100 * spread.half]))
    assert odds[0] == pytest.approx(0)
    assert odds[2] == pytest.approx(odds[1])


def test_drift_between_states_is_noise_until_repeats_show_that_it_is_not() -> None:
    drifting = np.array([-9.0, -5.0, -1.0, 5.0])
    once = fit_spread(drifting, np.arange(4), drifting > 0)
    again = fit_spread(np.repeat(drifting, 2), np.repeat(np.arange(4), 2), np.repeat(drifting, 2) > 0)
    assert once is not None
    assert again is not None
    assert again.scale < once.scale / 1.5


def test_two_skips_far_apart_with_none_testable_between_are_taken_for_a_block() -> None:
    chance = untestable_chance(1001, [0, 100, 900, 1000], [300, 400, 500, 600, 700])
    assert chance[450] > 0.85
    assert chance[50] < 0.3
    assert chance[300] == 1
    assert chance[100] == 0


def test_scattered_skips_do_not_condemn_their_neighbours() -> None:
    testable = [place for place in range(60) if place % 3]
    chance = untestable_chance(200, testable, list(range(0, 60, 3)))
    assert chance[63] < 0.6
    assert chance[150] < 0.5


def test_a_block_is_closed_after_enough_probes_inside_and_its_edges_stay_open() -> None:
    testable, untestable = [0, 200, 800, 1000], [300, 330, 350, 400, 450, 500, 550, 600, 625, 650, 700]
    chance = np.where((np.arange(1001) >= 300) & (np.arange(1001) <= 700), CLOSED_ABOVE + 0.05, 0.3)
    shut = closed(1001, testable, untestable, chance)
    assert shut[300:701].all()
    assert not shut[201:300].any()
    assert not closed(1001, testable, untestable[1:], chance)[375]


def test_a_short_stretch_is_closed_after_fewer_probes_and_an_end_never_untried() -> None:
    chance = np.ones(101)
    untestable = [3, 4, 5, 6, 7, 8, 10]
    shut = closed(101, [11, 100], untestable, chance)
    assert shut[3:11].all()
    assert not shut[0]
    assert closed(101, [11, 100], [0, *untestable], chance)[0]


def test_edges_are_found_no_finer_than_the_block_deserves() -> None:
    untestable = [300, 330, 350, 400, 450, 500, 550, 600, 625, 650, 700]
    chance = np.ones(1001)
    shut = closed(1001, [0, 290, 705, 1000], untestable, chance)
    assert shut[291:705].all()
    assert not shut[290]


def test_one_good_value_that_noise_put_at_the_limit_does_not_blind_the_search() -> None:
    """Ten values far on the bad side and their noise show how far out the one good state really lies."""
    distances = np.array([0.01, 5.0, 7.0, 6.0, 4.0, 8.0, 5.0, 6.5, 5.5, 7.5])
    groups = np.array([0, *range(10, 19)])
    spread = fit_spread(distances, groups, groups > 0)
    assert spread is not None
    assert spread.log_odds(np.array([6.0]))[0] > 1
