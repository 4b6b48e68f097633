"""How far each worker's values lie off, learned from states that several workers measured.

Here lives the node effect of a metric: a slow node, a card with another allocator.
It knows values, states and workers by number, and nothing of good and bad.

    value = level of the state + offset of the worker + noise

Every state has a level of its own, without any prior. A worker that measured bad
states only can therefore not hide a regression in its offset: only what two workers
found at one and the same state tells their offsets apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

#: Spread of the offsets over the noise of one value, and how likely each is before any value. Most pools are
#: alike: over planted culprits without any offset, a third of the weight on alike cost two more trials.
RATIOS = np.array([0.0, 0.5, 1.0, 2.0, 4.0, 8.0])
RATIO_WEIGHTS = np.array([0.7, 0.06, 0.06, 0.06, 0.06, 0.06])
#: Weight of the starting guess of the noise, in measurements, as in `spread`.
GUESS_WEIGHT = 1.0
#: Degrees of freedom of the Student-t noise, by which a grossly wrong value is weighed less.
FREEDOM = 4.0
REWEIGHTINGS = 3


@dataclass(frozen=True, kw_only=True)
class WorkerEffect:
    """What to subtract from each value, and how unsure that is. Zero where nothing is known."""

    offsets: Floats  #: (n,) in the metric's unit
    variances: Floats  #: (n,) of the offsets, in the unit's square


def worker_effect(values: Floats, groups: Integers, workers: Integers, noise_guess: float) -> WorkerEffect:
    """The offset of the worker behind each value; NaN values take no part.

    Offsets are normal around 0 with ``r`` times the noise as their spread. For each ``r`` of a grid the
    levels, the offsets and the noise integrate out in closed form (the noise with an inverse gamma prior
    around ``noise_guess``, so that offsets are Student-t); the answer is the mean over the grid, weighted by
    how well each ``r`` explains the values. Without a state that two workers measured it is 0 for all.

    Only differences of workers can be measured, so the middle one of them is taken to be right: the
    limit was set for an ordinary node.
    """
    nothing = WorkerEffect(offsets=np.zeros(len(values)), variances=np.zeros(len(values)))
    use = np.isfinite(values) & _shared(values, groups, workers)
    if not use.any() or noise_guess <= 0:
        return nothing
    names, which = np.unique(workers, return_inverse=True)
    _, state = np.unique(groups[use], return_inverse=True)
    member = np.eye(len(names))[which[use]]
    seen = np.isin(np.arange(len(names)), which[use])
    size = np.bincount(state)
    freedom = float((size - 1).sum())
    weight = np.ones(len(state))
    for _ in range(REWEIGHTINGS):
        y = _centred(values[use][:, None], state, weight)[:, 0]
        x = _centred(member, state, weight)
        mean, variance, noise = _averaged(x, y, weight, seen, freedom, noise_guess)
        weight = (FREEDOM + 1) / (FREEDOM + (y - x @ mean) ** 2 / noise)
    mean[seen] -= np.median(mean[seen])
    return WorkerEffect(offsets=mean[which], variances=variance[which])


def _shared(values: Floats, groups: Integers, workers: Integers) -> NDArray[np.bool_]:
    """(n,) whether another worker measured the same state."""
    known = np.isfinite(values)
    same_state = groups[:, None] == groups[None, :]
    return np.asarray((same_state & (workers[:, None] != workers[None, :]) & known[None, :]).any(axis=1))


def _centred(columns: Floats, state: Integers, weight: Floats) -> Floats:
    """(n, k) without the weighted mean of each state."""
    total = np.bincount(state, weight)
    sums = np.stack([np.bincount(state, weight * column) for column in columns.T], axis=1)
    return np.asarray(columns - (sums / total[:, None])[state])


def _averaged(
    x: Floats, y: Floats, weight: Floats, seen: NDArray[np.bool_], freedom: float, noise_guess: float
) -> tuple[Floats, Floats, float]:
    """(W,) mean and variance of the offsets from the mean of the seen workers, and the noise's variance.

    With A = X'WX, b = X'Wy and K = A + I/r^2: offsets K^-1 b; the rest y'Wy - b'K^-1 b;
    evidence -1/2 log det(I + r^2 A) - (GUESS_WEIGHT + freedom)/2 log(guess + rest).
    """
    a, b = x.T @ (weight[:, None] * x), x.T @ (weight * y)
    total = float(weight @ y**2)
    count = a.shape[0]
    contrast = np.eye(count) - seen / seen.sum()
    evidence, means, variances, noises = [], [], [], []
    for ratio in RATIOS:
        inverse = np.linalg.inv(a + np.eye(count) / ratio**2) if ratio else np.zeros((count, count))
        mean = inverse @ b
        rest = GUESS_WEIGHT * noise_guess**2 + max(0.0, total - float(b @ mean))
        _, log_det = np.linalg.slogdet(np.eye(count) + ratio**2 * a)
        evidence.append(-log_det / 2 - (GUESS_WEIGHT + freedom) / 2 * np.log(rest))
        noises.append(rest / (GUESS_WEIGHT + freedom))
        means.append(contrast @ mean)
        variances.append(noises[-1] * np.diag(contrast @ inverse @ contrast.T))
    share = RATIO_WEIGHTS * np.exp(np.array(evidence) - max(evidence))
    share /= share.sum()
    mean = share @ np.array(means)
    variance = share @ (np.array(variances) + (np.array(means) - mean) ** 2)
    return mean, variance, float(share @ np.array(noises))
