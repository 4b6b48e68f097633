"""What is believed of one line of states after its trials, and what more trials would make of that.

Here the verdicts or measured values of a ledger meet the flake rates that suit them.
The arithmetic is `posterior`'s, the noise of values `values`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from bisection.posterior import CAUTIOUS_RATES, VALUE_RATES, VERDICT_RATES, Posterior, update
from bisection.values import Values

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

#: How surely a trial that is still running is imagined to be on its side, where values are measured.
IMAGINED_SURENESS = 0.995


@dataclass(frozen=True, kw_only=True)
class Belief:
    """The belief in every hypothesis, twice: as it is stated, and as it has to hold if trials flake much."""

    log_prior: Floats  #: (G+1,)
    groups: Integers  #: (n,) the state of each observation
    looks_bad: Floats  #: (n,) how surely each one was on the bad side
    valued: bool  #: whether values were measured, or only verdicts
    posterior: Posterior

    @cached_property
    def cautious(self) -> Posterior:
        """The belief if trials flake much. Values carry their noise with them: there it is the same."""
        if self.valued:
            return self.posterior
        return update(self.log_prior, self.groups, self.looks_bad, CAUTIOUS_RATES)

    @classmethod
    def of_verdicts(cls, log_prior: Floats, groups: Integers, bad: Floats) -> Belief:
        """From plain verdicts."""
        return cls._from(log_prior, groups, bad, valued=False)

    @classmethod
    def of_values(cls, log_prior: Floats, values: Values) -> Belief:
        """From values: each verdict is weighed by its distance from the limit against the spread.

        Which values belong to bad states is first taken from their verdicts and then, once, from the
        belief that follows: near the limit a verdict alone would put noise into the wrong class.
        """
        first = update(log_prior, values.groups, values.sureness(values.bad), VALUE_RATES)
        believed_bad = first.bad()[values.groups] > 0.5
        return cls._from(log_prior, values.groups, values.sureness(believed_bad), valued=True)

    @classmethod
    def _from(cls, log_prior: Floats, groups: Integers, looks_bad: Floats, *, valued: bool) -> Belief:
        return cls(
            log_prior=log_prior,
            groups=groups,
            looks_bad=looks_bad,
            valued=valued,
            posterior=update(log_prior, groups, looks_bad, VALUE_RATES if valued else VERDICT_RATES),
        )

    def if_all_agree(self, running: Sequence[int]) -> Belief:
        """The belief once the trials that run, given by their states, brought what is expected most."""
        if not running:
            return self
        bad = self.posterior.bad()[list(running)] >= 0.5
        sure = IMAGINED_SURENESS if self.valued else 1.0
        return self._from(
            self.log_prior,
            np.concatenate([self.groups, np.array(running, dtype=np.int64)]),
            np.concatenate([self.looks_bad, np.where(bad, sure, 1 - sure)]),
            valued=self.valued,
        )
