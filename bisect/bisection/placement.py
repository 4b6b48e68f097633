"""Where the next trial tells most for its cost, given what is known and what is still running.

Here lives the choice of the next state. It works on numbers of states and
beliefs, and knows neither commits nor answers.

The value of a trial is the information that it is expected to give about the first
bad state, averaged over what the running trials may bring. Two trials of one round
thus share the work: the second one is placed where it tells most after the first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bisection.posterior import Posterior

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

#: Combinations of running trials' outcomes that are kept; beyond five running trials the least likely go.
COMBINATIONS = 32


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """Belief in every hypothesis, split by what the running trials may bring.

    ``joint`` (m, G+1): probability of each combination of outcomes together with each hypothesis, sum 1.
    """

    joint: Floats
    false_negative: float
    false_positive: float

    @classmethod
    def of(cls, posterior: Posterior) -> Outlook:
        """Nothing is running."""
        return cls(
            joint=posterior.belief[None, :],
            false_negative=posterior.false_negative,
            false_positive=posterior.false_positive,
        )

    def with_running(self, group: int) -> Outlook:
        """One more trial is running, at this state."""
        fails = np.full(self.joint.shape[1], self.false_positive)
        fails[: group + 1] = 1 - self.false_negative
        split = np.concatenate([self.joint * fails, self.joint * (1 - fails)])
        if len(split) > COMBINATIONS:
            likeliest = np.sort(np.argsort(-split.sum(axis=1), kind="stable")[:COMBINATIONS])
            split = split[likeliest] / split[likeliest].sum()
        return Outlook(joint=split, false_negative=self.false_negative, false_positive=self.false_positive)

    def information(self, groups: Integers) -> Floats:
        """Bits that a trial at each of these states is expected to give.

        I = sum over combinations of P * [H(q) - f H(fn) - (1-f) H(fp)], with f the chance that the state is
        bad and q = f (1-fn) + (1-f) fp the chance that the trial fails.
        """
        chance = self.joint.sum(axis=1, keepdims=True)
        bad = np.cumsum(self.joint, axis=1)[:, groups] / chance
        fails = bad * (1 - self.false_negative) + (1 - bad) * self.false_positive
        known_noise = bad * _entropy(self.false_negative) + (1 - bad) * _entropy(self.false_positive)
        bits = (chance * (_entropy(fails) - known_noise)).sum(axis=0)
        return np.asarray(np.maximum(bits, 0.0))


def _entropy(chance: Floats | float) -> Floats:
    """Bits of a yes-or-no question, elementwise."""
    p = np.clip(chance, 1e-12, 1 - 1e-12)
    return np.asarray(-(p * np.log2(p) + (1 - p) * np.log2(1 - p)))
