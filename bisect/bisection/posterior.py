"""The posterior over where the regression began, with both flake rates unknown.

Here lives the Bayesian arithmetic of one line of states, in numpy. It knows of
groups and observations by number only: not of commits, budgets or answers.

Hypothesis ``c`` says that state ``g`` is bad if and only if ``c <= g``, for c in
0..G over G states: c = 0 is "the good end is already bad", c = G is "nothing in
the range is bad", all others name the first bad state.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class RateGrid:
    """Pairs of flake rates and the weight of each pair.

    A false negative is a bad state that passes, a false positive a good state that fails. Both rates are
    unknown and constant within a bisection; the posterior is a mixture over the pairs.
    """

    false_negative: Floats  #: (R,)
    false_positive: Floats  #: (R,)
    log_weight: Floats  #: (R,)

    @classmethod
    def product(cls, negatives: dict[float, float], positives: dict[float, float]) -> RateGrid:
        """Every pair of two marginals (rate to weight), taken as independent."""
        pairs = [(fn, fp, wn * wp) for fn, wn in negatives.items() for fp, wp in positives.items()]
        fn, fp, weight = (np.array(column) for column in zip(*pairs, strict=True))
        return cls(false_negative=fn, false_positive=fp, log_weight=np.log(weight / weight.sum()))

    @classmethod
    def mixture(cls, *parts: tuple[float, RateGrid]) -> RateGrid:
        """Several grids, each with its share."""
        return cls(
            false_negative=np.concatenate([grid.false_negative for _, grid in parts]),
            false_positive=np.concatenate([grid.false_positive for _, grid in parts]),
            log_weight=np.concatenate([grid.log_weight + np.log(share) for share, grid in parts]),
        )


_DETERMINISTIC = RateGrid.product({0.001: 1.0}, {0.001: 1.0})
_ORDINARY = RateGrid.product({0.03: 0.25, 0.07: 0.35, 0.13: 0.4}, {0.004: 0.4, 0.012: 0.4, 0.03: 0.2})
_NOISY = RateGrid.product(
    {0.06: 0.17, 0.12: 0.26, 0.2: 0.26, 0.32: 0.21, 0.45: 0.08, 0.6: 0.02},
    {0.02: 0.2, 0.05: 0.33, 0.1: 0.33, 0.18: 0.14},
)
#: For verdicts that are yes or no: most failures are plain bugs that fail each time, some flake now and
#: then, a quarter flake much, and then in both directions. The grid reaches the rates that occur: outside
#: one that ended at .4 a true rate of .5 brought 90 % right answers. Its most extreme rates weigh little,
#: since they cost trials at all others.
VERDICT_RATES = RateGrid.mixture((0.3, _DETERMINISTIC), (0.45, _ORDINARY), (0.25, _NOISY))
#: What an answer has to withstand as well: that trials flake much, unless they look deterministic. Averaged
#: over all rates a belief may be right and yet too sure for those who have flaky trials.
CAUTIOUS_RATES = RateGrid.mixture(
    (0.07, _DETERMINISTIC),
    (
        0.93,
        RateGrid.product(
            {0.1: 0.29, 0.2: 0.29, 0.32: 0.28, 0.45: 0.14}, {0.01: 0.18, 0.05: 0.36, 0.11: 0.36, 0.2: 0.1}
        ),
    ),
)
#: For measured values. Their noise is in `spread`; what is left here are gross mistakes, which are rare.
VALUE_RATES = RateGrid.product(
    {0.001: 0.85, 0.03: 0.06, 0.1: 0.04, 0.3: 0.03, 0.6: 0.02},
    {0.001: 0.85, 0.03: 0.08, 0.1: 0.05, 0.22: 0.02},
)


@dataclass(frozen=True, kw_only=True)
class Posterior:
    """Belief in every hypothesis, and the flake rates that go with each."""

    belief: Floats  #: (G+1,), sums to 1
    false_negative: Floats  #: (G+1,) posterior mean if the hypothesis holds
    false_positive: Floats  #: (G+1,) posterior mean if the hypothesis holds

    def bad(self) -> Floats:
        """(G,) belief that each state is bad: the sum over all hypotheses up to it."""
        return np.cumsum(self.belief[:-1])


def update(log_prior: Floats, groups: Integers, looks_bad: Floats, rates: RateGrid) -> Posterior:
    """The posterior after observations.

    ``log_prior`` (G+1,); ``groups`` (n,) the state of each observation; ``looks_bad`` (n,) how surely it
    was on the bad side of the limit: 1 or 0 for a plain verdict, between them for a noisy value.

    With rates (fn, fp) an observation a has likelihood (1-fn) a + fn (1-a) in a bad state and
    fp a + (1-fp) (1-a) in a good one. The likelihood of c is a step function with a step at each observed
    state, so the grid is evaluated on the n+1 steps and only then spread over the hypotheses.
    """
    order = np.argsort(groups, kind="stable")
    places, a = groups[order], looks_bad[order][None, :]
    fn, fp = rates.false_negative[:, None], rates.false_positive[:, None]
    if_bad = np.log((1 - fn) * a + fn * (1 - a))
    if_good = np.log(fp * a + (1 - fp) * (1 - a))
    steps = np.zeros((len(rates.log_weight), len(places) + 1))
    np.cumsum(if_good - if_bad, axis=1, out=steps[:, 1:])
    steps += if_bad.sum(axis=1)[:, None] + rates.log_weight[:, None]

    step_of = np.searchsorted(places, np.arange(len(log_prior)), side="left")  # observations before c
    highest = steps.max(axis=0)
    by_rate = np.exp(steps - highest)
    likelihood = by_rate.sum(axis=0)
    log_belief = log_prior + (highest + np.log(likelihood))[step_of]
    belief = np.exp(log_belief - log_belief.max())
    return Posterior(
        belief=belief / belief.sum(),
        false_negative=(rates.false_negative @ by_rate / likelihood)[step_of],
        false_positive=(rates.false_positive @ by_rate / likelihood)[step_of],
    )
