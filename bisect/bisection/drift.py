"""Whether the values climb little by little, so that no single commit carries the crossing of the limit.

Here lives the test of drift against a few steps, on numbers of states. That an answer
follows from it, and how it reads, is the matter of `answers` and `narration`.

A culprit must carry a share of the rise from one end to the other: undoing a commit that
carries less than a quarter leaves more than three quarters of what was reported. But a small
share alone is no drift: beside a step of 24 GiB one of 6 GiB is still a step. So two things
must hold: the states around the limit differ by clearly less than `LEAST_SHARE` of the rise,
and a steady climb explains the values much better than a few steps do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bisection.steps import Profile, levels

Floats = NDArray[np.float64]

#: The share of the rise that a culprit carries, unless the rest lies in other steps.
LEAST_SHARE = 0.25
#: How much better the climb must explain the values before it is believed, as a logarithm: a thousandfold.
#: Gradual climbs are rarer than steps, and three levels can lie on a line by chance.
LEAST_LOG_ODDS = math.log(1000)
#: The same where the alternative is to name a commit: a wrong accusation is worse than a set.
LEAST_LOG_ODDS_NAMING = math.log(20)
#: Repeats of states before the noise is known well enough to tell a climb from it.
LEAST_FREEDOM = 2
#: How unevenly a climb may climb: what one commit adds varies by so many times its mean.
UNEVENNESS = (1.0, 3.0)
#: How much a level wobbles, as a share of the rise: small changes that are neither step nor noise.
WOBBLE = 0.03


@dataclass(frozen=True, kw_only=True)
class Drift:
    """A climb from ``first`` to ``last``, both measured states, that crosses the limit after ``lower``."""

    first: int
    last: int
    start: float  #: the distance from the limit at ``first``
    end: float  #: and at ``last``
    lower: int  #: the states around the limit
    upper: int
    crossing: float  #: what lies between them
    largest: tuple[int, int, float]  #: two states as near to each other as measured, and their difference

    @property
    def rise(self) -> float:
        """From ``first`` to ``last``, for the worse."""
        return self.end - self.start


def find_drift(profile: Profile, lower: int, upper: int, *, naming: bool = False) -> Drift | None:
    """The drift across the limit, which lies after state ``lower`` and up to ``upper``; None where a step is
    as good an explanation, or too little is known.

    ``naming`` says that ``upper`` is about to be named as the culprit. Noise may then still hide how much it
    carries; the mean of what was measured decides, and a climb need only be clearly likelier.
    """
    low, high = profile.index(lower), profile.index(upper)
    if low is None or high is None or profile.freedom < LEAST_FREEDOM or profile.rise <= 0:
        return None
    crossing = float(profile.means[high] - profile.means[low])
    error = rise_error = 0.0
    if not naming:
        slack = 2 * np.sqrt(profile.variances)
        if profile.means[low] > slack[low] or profile.means[high] < -slack[high]:
            return None  # where the limit is crossed is not known yet
        # Student's t for one in forty, nearly: 4 at two degrees of freedom, 2 at many.
        error = 2 * (1 + 2 / profile.freedom) * math.sqrt(profile.variances[high] + profile.variances[low])
        # The ends are often single values, and their noise makes a rise look larger.
        rise_error = math.sqrt(profile.variances[0] + profile.variances[-1])
    if crossing + error >= LEAST_SHARE * (profile.rise - rise_error):
        return None
    started = _leaves(profile, profile.means - profile.means[0])
    ended = _leaves(profile, (profile.means[-1] - profile.means)[::-1])
    first, last = min(started, low), max(len(profile.means) - 1 - ended, high)
    if log_odds(profile.between(first, last), upper) < (LEAST_LOG_ODDS_NAMING if naming else LEAST_LOG_ODDS):
        return None
    return Drift(
        first=int(profile.groups[first]),
        last=int(profile.groups[last]),
        start=float(profile.means[first]),
        end=float(profile.means[last]),
        lower=lower,
        upper=upper,
        crossing=crossing,
        largest=_largest(profile, first, last),
    )


def log_odds(profile: Profile, culprit: int) -> float:
    """log p(values | a climb) - log p(values | a step at the culprit, and as many others as are seen).

    The profile begins and ends where the climb does. Both are normal densities of the means, with the rise R
    and the length N as scales:

    climb:  increments of d states are normal, with mean R d/N and variance d (k R/N)^2: commits that add up,
            each varying by k times what it adds in the mean, averaged over `UNEVENNESS`;
    steps:  a level of its own between every two steps, normal with spread R; the log of the number of ways
            to place the steps is its price.
    Both wobble by `WOBBLE` R beside the noise.
    """
    rise = abs(profile.rise)
    if len(profile.means) < 3 or rise == 0:
        return 0.0
    place = (profile.groups - profile.groups[0]).astype(float)
    length = float(place[-1])
    values = profile.means - profile.means[0]
    own = np.diag(profile.variances + (WOBBLE * rise) ** 2)
    pace = (rise / length) ** 2 * np.minimum.outer(place, place)
    climbing = [_log_density(values - rise * place / length, own + rise**2 + k**2 * pace) for k in UNEVENNESS]
    steps = levels(profile, culprit)
    level = np.searchsorted(np.array([step.upper for step in steps]), profile.groups, side="right")
    few = own + rise**2 * (level[:, None] == level[None, :])
    ways = math.log(math.comb(len(values) - 1, len(steps)))
    return float(np.logaddexp.reduce(climbing)) - math.log(len(climbing)) - _log_density(values, few) + ways


def _log_density(values: Floats, covariance: Floats) -> float:
    """Of a normal distribution around 0, without the constant."""
    _, log_det = np.linalg.slogdet(covariance)
    return float(-(log_det + values @ np.linalg.solve(covariance, values)) / 2)


def _leaves(profile: Profile, climbed: Floats) -> int:
    """The last index at which a climb, counted from its end of the range, has not begun."""
    begun = np.flatnonzero(climbed > WOBBLE * profile.rise + 2 * np.sqrt(profile.variances.max()))
    return int(begun[0]) - 1 if len(begun) else len(climbed) - 1


def _largest(profile: Profile, first: int, last: int) -> tuple[int, int, float]:
    """The largest difference between neighbouring measured states, among those that lie closest together."""
    apart = np.diff(profile.groups)[first:last]
    deltas = np.diff(profile.means)[first:last]
    best = first + max(range(len(deltas)), key=lambda k: (-apart[k], deltas[k]))
    return int(profile.groups[best]), int(profile.groups[best + 1]), float(deltas[best - first])
