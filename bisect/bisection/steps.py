"""The levels that the measured values form along the line, and the steps between them.

Here lives what the values say beside the one step that is looked for: that they rise a
second time, or fall again. It works on numbers of states, and knows neither commits nor
answers. Distances are positive on the bad side, so a rise is a step for the worse whatever
the metric.

    70           o--o----o        three levels, two steps: one between d and e,
    65      o-o                   one between b and c
    60  o-o
        a b c d  e  f    g
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from bisection.values import Values

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

#: A difference below this share of the whole rise is not told as a step of its own: what commits usually add
#: or save would otherwise fill the report.
SMALLEST_SHARE = 0.1
#: Student's t for a chance of one in a thousand, by degrees of freedom from 1 on; the last one for all above.
#: Some ten pairs are compared in one search.
CRITICAL = (318.3, 22.3, 10.2, 7.2, 5.9, 5.2, 4.8, 4.5, 4.3, 4.1, 4.0, 3.9, 3.9, 3.8, 3.7, 3.7, 3.6, 3.6)


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The mean value of each measured state, in the order of the line."""

    groups: Integers  #: (K,) ascending
    means: Floats  #: (K,) distance from the limit, positive on the bad side
    counts: Integers  #: (K,) values behind each mean
    variances: Floats  #: (K,) of the means: noise, and doubt of the workers' offsets
    freedom: int  #: degrees of freedom behind the noise: repeats of states

    @classmethod
    def of(cls, values: Values) -> Profile:
        """The noise is the scatter of values within states, pooled; without any repeat it is unknown."""
        known = np.isfinite(values.distances)
        distances, doubt = values.distances[known], values.doubt[known]
        groups, state = np.unique(values.groups[known], return_inverse=True)
        counts = np.bincount(state, minlength=len(groups))
        means = np.bincount(state, distances, len(groups)) / counts
        freedom = int((counts - 1).sum())
        squares = float(((distances - means[state]) ** 2).sum())
        noise = squares / freedom if freedom else 0.0
        variances = noise / counts + np.bincount(state, doubt, len(groups)) / counts**2
        return cls(groups=groups, means=means, counts=counts, variances=variances, freedom=freedom)

    @property
    def span(self) -> float:
        """From the lowest to the highest mean."""
        return float(np.ptp(self.means)) if len(self.means) else 0.0

    @property
    def rise(self) -> float:
        """From the first to the last measured state."""
        return float(self.means[-1] - self.means[0]) if len(self.means) else 0.0

    def index(self, group: int) -> int | None:
        """Where a state stands in the profile; None without a value of it."""
        found = np.flatnonzero(self.groups == group)
        return int(found[0]) if len(found) else None

    def between(self, first: int, last: int) -> Profile:
        """The part from one index to another, both included; what is known of the noise stays."""
        part = slice(first, last + 1)
        return replace(
            self,
            groups=self.groups[part],
            means=self.means[part],
            counts=self.counts[part],
            variances=self.variances[part],
        )

    def critical(self) -> float:
        """How many standard errors a difference must have to be taken for one; infinite without a repeat."""
        return CRITICAL[min(self.freedom, len(CRITICAL)) - 1] if self.freedom else float("inf")


@dataclass(frozen=True, kw_only=True)
class Step:
    """One difference between neighbouring levels. It lies in the states after ``lower``, up to ``upper``."""

    lower: int  #: the last measured state of the level before
    upper: int  #: the first measured state of the level after
    delta: float  #: between the means of the two levels; positive: for the worse
    middle: float  #: halfway between them, as a distance from the limit
    first: int  #: the first measured state of the level before
    last: int  #: the last measured state of the level after


@dataclass(frozen=True, kw_only=True)
class _Flat:
    """Neighbouring states on one level, as indices into the profile: ``first`` to ``last``."""

    first: int
    last: int
    mean: float
    variance: float


def levels(profile: Profile, culprit: int | None = None) -> tuple[Step, ...]:
    """The steps between the levels of the profile, oldest first; the culprit's own is among them.

    Neighbours that do not differ are joined, the most alike first, until every pair left differs by more than
    noise explains and by more than `SMALLEST_SHARE` of the range of all values. The culprit and the state
    before it are never joined. Without any repeat nothing is known of the noise, and there are no steps.
    """
    if len(profile.groups) < 2 or not profile.freedom:
        return ()
    flats = [
        _Flat(first=k, last=k, mean=float(mean), variance=float(variance))
        for k, (mean, variance) in enumerate(zip(profile.means, profile.variances, strict=True))
    ]
    smallest = SMALLEST_SHARE * profile.span
    while len(flats) > 1:
        likeness = [_likeness(profile, a, b, smallest) for a, b in pairwise(flats)]
        if culprit is not None:
            for k, (a, b) in enumerate(pairwise(flats)):
                if profile.groups[a.last] < culprit <= profile.groups[b.first]:
                    likeness[k] = 0.0
        closest = int(np.argmax(likeness))
        if likeness[closest] < 1:
            break
        flats[closest : closest + 2] = [_joined(profile, flats[closest], flats[closest + 1])]
    return tuple(_between(profile, a, b) for a, b in pairwise(flats))


def _between(profile: Profile, a: _Flat, b: _Flat) -> Step:
    return Step(
        lower=int(profile.groups[a.last]),
        upper=int(profile.groups[b.first]),
        delta=b.mean - a.mean,
        middle=(a.mean + b.mean) / 2,
        first=int(profile.groups[a.first]),
        last=int(profile.groups[b.last]),
    )


def _likeness(profile: Profile, a: _Flat, b: _Flat, smallest: float) -> float:
    """How many times the difference fits into what noise and habit explain; from 1 on they are one level."""
    difference = abs(b.mean - a.mean)
    explained = max(smallest, profile.critical() * float(np.sqrt(a.variance + b.variance)))
    return explained / difference if difference > 0 else np.inf


def _joined(profile: Profile, a: _Flat, b: _Flat) -> _Flat:
    counts = profile.counts[a.first : b.last + 1]
    share = counts / counts.sum()
    inside = slice(a.first, b.last + 1)
    return _Flat(
        first=a.first,
        last=b.last,
        mean=float(share @ profile.means[inside]),
        variance=float(share**2 @ profile.variances[inside]),
    )
