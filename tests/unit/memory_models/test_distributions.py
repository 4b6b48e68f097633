"""What nobody knows beforehand, as distributions that widen the band and never move the estimate."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_models.distributions import Distribution, Unknowns, patches_of_samples
from memory_models.estimation import RankEstimate, estimate
from memory_models.job import TrainingJob
from tests.unit.memory_models.jobs import qwen_30b

weights = st.dictionaries(st.integers(0, 50), st.floats(0.01, 10), min_size=1, max_size=6)


def worst(job: TrainingJob, unknowns: Unknowns) -> RankEstimate:
    return estimate(replace(job, unknowns=unknowns)).worst


def test_an_uneven_router_widens_the_band_upwards_only() -> None:
    job = qwen_30b()
    plain = estimate(job).worst
    wide = worst(job, Unknowns(imbalance=Distribution.of({1.0: 0.5, 1.2: 0.4, 1.8: 0.1})))
    assert wide.allocated_bytes == plain.allocated_bytes
    assert wide.low_bytes == plain.low_bytes
    assert wide.high_bytes > plain.high_bytes


def test_image_loads_on_both_sides_widen_both_ends() -> None:
    job = qwen_30b()
    plain = estimate(job).worst
    wide = worst(job, Unknowns(patches=Distribution.of({256: 0.2, 4096: 0.6, 16384: 0.2})))
    assert wide.low_bytes < plain.low_bytes
    assert wide.high_bytes > plain.high_bytes
    high = estimate(replace(job, batch=replace(job.batch, images=replace(job.batch.images, patches=16384))))
    assert wide.high_bytes > high.worst.allocated_bytes


def test_a_certain_value_widens_nothing() -> None:
    job = qwen_30b()
    known = Unknowns(imbalance=Distribution.of({1.0: 1}), patches=Distribution.of({4096: 3}))
    plain, same = estimate(job).worst, worst(job, known)
    assert (same.low_bytes, same.high_bytes) == (plain.low_bytes, plain.high_bytes)


def test_patches_of_a_sample_are_those_of_its_images() -> None:
    image, images = Distribution.of({100: 1, 300: 1}), Distribution.of({0: 1, 2: 1})
    sample = patches_of_samples(image, images)
    assert dict(zip(sample.values, sample.weights, strict=True)) == pytest.approx(
        {0: 0.5, 200: 0.125, 400: 0.25, 600: 0.125}
    )
    assert sample.mean == pytest.approx(image.mean * images.mean)


@given(weights, st.integers(0, 4))
def test_a_sum_of_draws_has_the_mean_of_its_draws(held: dict[float, float], count: int) -> None:
    one = Distribution.of(held)
    assert one.summed(count).mean == pytest.approx(count * one.mean)
    assert max(one.summed(count).values) <= count * max(one.values)


@given(weights)
def test_quantiles_rise_and_stay_within_the_values(held: dict[float, float]) -> None:
    one = Distribution.of(held)
    found = [one.quantile(share / 10) for share in range(1, 11)]
    assert found == sorted(found)
    assert set(found) <= set(one.values)


def test_quantiles_are_those_of_drawing() -> None:
    one = Distribution.of({1: 0.9, 5: 0.1})
    drawn = sorted(random.Random(0).choices(one.values, one.weights, k=10_000))
    assert one.quantile(0.5) == drawn[5_000] == 1
    assert one.quantile(0.95) == drawn[9_500] == 5


@pytest.mark.parametrize("held", [{}, {1.0: 0.0}, {1.0: -1.0, 2.0: 3.0}, {-1.0: 1.0}])
def test_what_is_no_distribution_is_refused(held: dict[float, float]) -> None:
    with pytest.raises(ValueError, match=r"weight|negative"):
        Distribution.of(held)
