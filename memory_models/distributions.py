"""What no configuration tells, as distributions: how uneven a router is, and what a sample brings in images.

An estimate is made for the middle; the quantiles widen its band. The sample that fills a rank's memory is a
rare one, so the upper tail is what matters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

#: The two ends of a band that holds nine of ten.
LOW, HIGH = 0.05, 0.95


@dataclass(frozen=True)
class Distribution:
    """Values with weights, which need not sum to 1. ValueError for none, or for a negative one."""

    values: tuple[float, ...]
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.values) != len(self.weights) or not sum(self.weights) > 0 or min(self.weights) < 0:
            raise ValueError("a distribution needs a weight for each value: none negative, and one above 0")
        if min(self.values) < 0:
            raise ValueError("neither a load nor a number of patches can be negative")

    @classmethod
    def of(cls, weights: Mapping[float, float]) -> Distribution:
        """From value to weight."""
        ordered = sorted(weights.items())
        total = sum(weights.values()) or 1.0
        return cls(tuple(value for value, _ in ordered), tuple(weight / total for _, weight in ordered))

    @property
    def mean(self) -> float:
        total = sum(self.weights)
        return sum(v * w for v, w in zip(self.values, self.weights, strict=True)) / total

    def quantile(self, share: float) -> float:
        """The smallest value that at least this share of the weight does not exceed."""
        ordered = sorted(zip(self.values, self.weights, strict=True))
        need, so_far = share * sum(self.weights), 0.0
        for value, weight in ordered:
            so_far += weight
            if so_far >= need - 1e-12:
                return value
        return ordered[-1][0]

    def summed(self, count: int) -> Distribution:
        """Of the sum of ``count`` independent draws. Raises ValueError for fewer than none."""
        if count < 0:
            raise ValueError(f"{count} draws cannot be summed")
        sums: dict[float, float] = {0.0: 1.0}
        total = sum(self.weights)
        for _ in range(count):
            longer: dict[float, float] = {}
            for so_far, chance in sums.items():
                for value, weight in zip(self.values, self.weights, strict=True):
                    at = so_far + value
                    longer[at] = longer.get(at, 0.0) + chance * weight / total
            sums = longer
        return Distribution.of(sums)


def patches_of_samples(image: Distribution, images: Distribution) -> Distribution:
    """Patches of a sample, out of the patches of one image and the number of images of a sample."""
    sums: dict[float, float] = {}
    for count, weight in zip(images.values, images.weights, strict=True):
        drawn = image.summed(int(count))
        whole = sum(drawn.weights)
        for patches, chance in zip(drawn.values, drawn.weights, strict=True):
            sums[patches] = sums.get(patches, 0.0) + weight * chance / whole
    return Distribution.of(sums)


@dataclass(frozen=True, kw_only=True)
class Unknowns:
    """Distributions around the values that a job names; None where the value is taken as known."""

    #: routed rows of a rank over the balanced number, over the layers that are alive
    imbalance: Distribution | None = None
    #: patches of one sample
    patches: Distribution | None = None
