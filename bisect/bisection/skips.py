"""Which states can probably not be tested: untestable states come in blocks, or scattered, or both.

Here lives the model of skips on one line of states. It says how likely a state is
untestable and which stretches have been probed enough; it knows nothing of good
and bad, of which a skip is no evidence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

#: Shares of untestable states, and over how many states being untestable spreads (below one: not at all).
SHARES = np.array([0.01, 0.05, 0.15, 0.3, 0.5])
SHARE_WEIGHTS = np.array([0.35, 0.25, 0.18, 0.14, 0.08])
LENGTHS = np.array([0.2, 4.0, 20.0, 100.0, 400.0])
#: Trials spent inside a stretch between two untestable states before it is believed to be one block: two
#: more than it has halvings, within these bounds. Each halving of the line is one more chance that
#: scattered skips look like a block: with five for all lengths, one answer in eighty had hundreds of
#: commits too many.
FEWEST_PROBES, MOST_PROBES = 4, 9
#: How likely untestable a state must be for its stretch to be left alone after the probes.
CLOSED_ABOVE = 0.96
#: How finely the edges of such a block are found, as a share of its length.
EDGE_SHARE = 0.15


def untestable_chance(size: int, testable: Sequence[int], untestable: Sequence[int]) -> Floats:
    """(size,) the chance that each state is untestable; exactly 0 or 1 where it is known.

    A two-state Markov chain along the line, with share r and length L:
    P(skip at i+d | skip at i) = r + (1-r) exp(-d/L), P(skip at i+d | testable at i) = r - r exp(-d/L).
    Between two known states i is conditioned on both; r and L are a mixture over a grid, weighted by how well
    each pair explains what is known. One scattered skip hardly warns of its neighbours' neighbours, a block
    found twice is taken for a block in between.
    """
    chance = np.empty(size)
    if not untestable:
        chance[:] = _typical_share(len(testable))
        chance[list(testable)] = 0.0
        return chance
    known = sorted([(place, 0) for place in testable] + [(place, 1) for place in untestable])
    places = np.array([place for place, _ in known])
    skipped = np.array([skip for _, skip in known])
    share, length = (grid.ravel() for grid in np.meshgrid(SHARES, LENGTHS, indexing="ij"))
    weight = np.repeat(SHARE_WEIGHTS, len(LENGTHS)) / len(LENGTHS)

    evidence = np.where(skipped[0], share, 1 - share)
    if len(places) > 1:
        steps = _step(share, length, skipped[:-1], np.diff(places))
        evidence = evidence * np.where(skipped[1:][None, :], steps, 1 - steps).prod(axis=1)
    weight = weight * evidence
    weight /= weight.sum()
    likely = weight > 0.02
    share, length, weight = share[likely], length[likely], weight[likely] / weight[likely].sum()

    everywhere = np.arange(size)
    after = np.searchsorted(places, everywhere, side="right")  # index of the next known state
    left, right = np.maximum(after - 1, 0), np.minimum(after, len(places) - 1)
    to_here = _step(share, length, skipped[left], np.abs(everywhere - places[left]))
    has_right = (after < len(places)) & (after > 0)
    distance = np.abs(places[right] - everywhere)
    right_if_skip = _likelihood(share, length, 1, skipped[right], distance)
    right_if_testable = _likelihood(share, length, 0, skipped[right], distance)
    both = to_here * right_if_skip / (to_here * right_if_skip + (1 - to_here) * right_if_testable)
    chance = weight @ np.where(has_right[None, :], both, to_here)
    chance[places] = skipped
    return np.asarray(chance)


def _step(share: Floats, length: Floats, skipped: NDArray[np.int64], distance: NDArray[np.int64]) -> Floats:
    """(K, n) chance of a skip, ``distance`` states away from a known one, for each of K grid points."""
    fade = np.exp(-distance[None, :] / length[:, None])
    return np.asarray(share[:, None] + (skipped[None, :] - share[:, None]) * fade)


def _likelihood(
    share: Floats, length: Floats, here: int, skipped: NDArray[np.int64], distance: NDArray[np.int64]
) -> Floats:
    """(K, n) chance of what is known ``distance`` away, if this state is (1) or is not (0) a skip."""
    skip = _step(share, length, np.full(len(distance), here), distance)
    return np.where(skipped[None, :] == 1, skip, 1 - skip)


def _typical_share(testable_seen: int) -> float:
    """The share to expect while no skip was seen: the grid, weighted by a run of testable states."""
    weight = SHARE_WEIGHTS * (1 - SHARES) ** testable_seen
    return float(weight @ SHARES / weight.sum())


def closed(size: int, testable: Sequence[int], untestable: Sequence[int], chance: Floats) -> Bools:
    """(size,) whether a state is out of reach: known untestable, or inside a block that was probed enough.

    A stretch between two untestable states with no testable one between them is closed once enough states
    inside it proved untestable too, where the rest is likely to be. Its edges stay open, to be narrowed down,
    until they are as fine as a seventh of the block: an answer of 300 commits gains nothing from
    four more trials that make it 280. The ends of the line are never given up untried.
    """
    shut = np.zeros(size, dtype=bool)
    shut[list(untestable)] = True
    bounds = [-1, *testable, size]
    for before, after in pairwise(bounds):
        inside = [place for place in untestable if before < place < after]
        if len(inside) < FEWEST_PROBES + 2:
            continue
        first, last = inside[0], inside[-1]
        probed = len(inside) >= _probes(last + 1 - first) + 2
        if probed and (chance[first : last + 1] > CLOSED_ABOVE).all():
            edge = int(EDGE_SHARE * (last + 1 - first))
            first = before + 1 if first - before - 1 <= edge else first
            last = after - 1 if after - last - 1 <= edge else last
            shut[first : last + 1] = True
    shut[[end for end in (0, size - 1) if end not in untestable]] = False
    return shut


def _probes(length: int) -> int:
    """How many states of a stretch must prove untestable between the outermost two."""
    return min(max(math.ceil(math.log2(length)) + 2, FEWEST_PROBES), MOST_PROBES)
