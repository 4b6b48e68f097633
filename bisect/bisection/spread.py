"""How sure a measured value makes its verdict: the spread of the values against their distance to the limit.

Here lives the noise model of a metric (peak bytes, useful tokens a second), and
nothing that knows of commits. Values enter as distances from the limit, positive
on the bad side, so that a limit stays what separates good from bad however much
the values drift on either side of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

#: Weight of the starting guess of the noise, in measurements: one, so that two or three values outweigh it.
PRIOR_WEIGHT = 1.0
#: The starting guess: half the distance from the limit, so that a first value counts like a fair verdict.
PRIOR_SCALE = 0.5
#: Degrees of freedom from which a level may lie further out than its values: one good value that noise put
#: at the limit would else say that good and bad hardly differ, and no trial could tell anything any more.
SURE_OF_NOISE = 2
#: No value is surer than this of its side; what a metric cannot tell (wrong data, wrong node) remains.
LARGEST_LOG_ODDS = 9.0


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Two levels at equal distance around the limit, and Student-t noise on both.

    ``half`` is the distance of either level from the limit, ``scale`` the noise, both in the metric's
    unit; ``freedom`` the degrees of freedom behind ``scale``.
    """

    half: float
    scale: float
    freedom: float

    def log_odds(self, distances: Floats, doubt: Floats | float = 0.0) -> Floats:
        """log p(value | bad) - log p(value | good) of each distance. ``doubt`` is the variance, value by
        value, that comes on top of the noise: of a worker's offset.

        Student-t densities around +half and -half:
        l(x) = (nu+1)/2 * [log(1 + ((x+h)/s)^2/nu) - log(1 + ((x-h)/s)^2/nu)].
        A value beyond a level is never taken for less than one at the level: being worse than bad is no
        evidence for good, which the heavy tails would otherwise make of it.
        """
        size = np.abs(distances)
        variance = self.scale**2 + doubt
        odds = np.maximum(
            self._odds(np.minimum(size, self.half), variance),
            self._odds(np.minimum(size, 2 * self.half), variance),
        )
        return np.sign(distances) * np.minimum(odds, LARGEST_LOG_ODDS)

    def _odds(self, size: Floats, variance: Floats | float) -> Floats:
        from_good = (size + self.half) ** 2 / variance / self.freedom
        from_bad = (size - self.half) ** 2 / variance / self.freedom
        return np.asarray((self.freedom + 1) / 2 * (np.log1p(from_good) - np.log1p(from_bad)))


def fit_spread(distances: Floats, groups: NDArray[np.int64], bad: Bools) -> Spread | None:
    """The spread of finite distances, given which of them belong to bad states; None without any value.

    The noise is the scatter within the good and within the bad values, pooled. Where states differ, that
    contains their drift and errs to the safe side; once states were repeated, the scatter within states
    takes over as soon as it has three degrees of freedom.
    """
    known = np.isfinite(distances)
    distances, groups, bad = distances[known], groups[known], bad[known]
    sides = [np.abs(distances[side]) for side in (bad, ~bad) if side.any()]
    half = min((float(np.median(side)) for side in sides), default=0.0)
    if half <= 0:
        return None
    squares, freedom = _scatter(distances, bad.astype(np.int64))
    within_squares, within_freedom = _scatter(distances, groups)
    if within_freedom >= 3:
        squares, freedom = within_squares, within_freedom
    variance = (squares + PRIOR_WEIGHT * (PRIOR_SCALE * half) ** 2) / (freedom + PRIOR_WEIGHT)
    scale = float(np.sqrt(variance))
    if freedom >= SURE_OF_NOISE:
        half = min(float(np.median(side)) + scale / np.sqrt(len(side)) for side in sides)
    return Spread(half=half, scale=scale, freedom=freedom + PRIOR_WEIGHT)


def _scatter(values: Floats, labels: NDArray[np.int64]) -> tuple[float, int]:
    """Sum of squares around the mean of each label, and its degrees of freedom."""
    squares, freedom = 0.0, 0
    for label in np.unique(labels):
        members = values[labels == label]
        squares += float(((members - members.mean()) ** 2).sum())
        freedom += len(members) - 1
    return squares, freedom
