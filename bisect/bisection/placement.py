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
#: Below this chance it is not worth thinking about what follows if a running trial cannot be judged.
RARELY_UNTESTABLE = 0.1
#: A running trial is never given up for sure, even of a state that could not be tested before.
MOST_UNTESTABLE = 0.99


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """Belief in every hypothesis, split by what the running trials may bring.

    ``joint`` (m, G+1): probability of each combination of outcomes together with each hypothesis, sum 1.
    """

    joint: Floats
    false_negative: Floats  #: (G+1,) if the hypothesis holds
    false_positive: Floats  #: (G+1,) if the hypothesis holds

    @classmethod
    def of(cls, posterior: Posterior) -> Outlook:
        """Nothing is running."""
        return cls(
            joint=posterior.belief[None, :],
            false_negative=posterior.false_negative,
            false_positive=posterior.false_positive,
        )

    def with_running(self, group: int, untestable: float) -> Outlook:
        """One more trial is running, at this state, which is untestable with this chance."""
        fails = self.false_positive.copy()
        fails[: group + 1] = 1 - self.false_negative[: group + 1]
        untestable = min(untestable, MOST_UNTESTABLE)
        parts = [self.joint * fails * (1 - untestable), self.joint * (1 - fails) * (1 - untestable)]
        if untestable > RARELY_UNTESTABLE:
            parts.append(self.joint * untestable)
        split = np.concatenate(parts)
        split /= split.sum()
        if len(split) > COMBINATIONS:
            likeliest = np.sort(np.argsort(-split.sum(axis=1), kind="stable")[:COMBINATIONS])
            split = split[likeliest] / split[likeliest].sum()
        return Outlook(joint=split, false_negative=self.false_negative, false_positive=self.false_positive)

    def information(self, groups: Integers) -> Floats:
        """Bits that a trial at each of these states is expected to give.

        I(g) = sum over combinations of P * H(q_g) - sum over c of P(c) * H(rate_c), where q_g is the chance
        that the trial fails, and rate_c the chance of the surprising result if c holds: fn_c where c makes
        the state bad, fp_c elsewhere. Running sums over c give all states at once.
        """
        chance = self.joint.sum(axis=1, keepdims=True)
        if_bad = np.cumsum(self.joint * (1 - self.false_negative), axis=1)[:, groups]
        if_good = self.joint * self.false_positive
        if_good = if_good.sum(axis=1, keepdims=True) - np.cumsum(if_good, axis=1)[:, groups]
        belief = self.joint.sum(axis=0)
        noise_if_bad = np.cumsum(belief * _entropy(self.false_negative))[groups]
        noise_if_good = belief * _entropy(self.false_positive)
        noise_if_good = noise_if_good.sum() - np.cumsum(noise_if_good)[groups]
        result = (chance * _entropy((if_bad + if_good) / chance)).sum(axis=0)
        return np.asarray(np.maximum(result - noise_if_bad - noise_if_good, 0.0))


def _entropy(chance: Floats) -> Floats:
    """Bits of a yes-or-no question, elementwise."""
    p = np.clip(chance, 1e-12, 1 - 1e-12)
    return np.asarray(-(p * np.log2(p) + (1 - p) * np.log2(1 - p)))
