"""The measured values of a search: how far each lies from its limit, and how surely it is bad.

Here observations become numbers: distances in the metric's unit, freed of what is the
worker's and not the state's. `spread` has the noise, `worker_effect` the offsets, `steps`
what the values tell of more than one step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bisection.criteria import CriterionKind
from bisection.evidence import Observation
from bisection.spread import PRIOR_SCALE, fit_spread
from bisection.worker_effect import worker_effect

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

#: No distance from the limit is more; its square is still a number.
_FARTHEST = 1e100

#: Standard errors from which an offset is clear enough to overrule a verdict.
CLEAR = 3.0


def worse(kind: CriterionKind) -> float:
    """The sign of a change of the metric for the worse: more bytes, fewer tokens a second."""
    return -1.0 if kind in (CriterionKind.THROUGHPUT, CriterionKind.METRIC_BELOW) else 1.0


@dataclass(frozen=True, kw_only=True)
class Values:
    """All parallel, in order of arrival. A distance is positive on the bad side, NaN without a value."""

    groups: NDArray[np.int64]
    bad: Bools  #: by the verdict; where the worker's offset is clear, by what is left of the value without it
    overruled: Bools  #: whether that is another side than the verdict's
    distances: Floats  #: from the limit, without the worker's offset
    offsets: Floats  #: of the worker, which was subtracted
    doubt: Floats  #: variance of that offset
    kind: CriterionKind
    limit: float  #: in the metric's unit; NaN while no value is known

    @classmethod
    def of(cls, kind: CriterionKind, seen: Sequence[Observation]) -> Values:
        sign = worse(kind)
        distances = np.array(
            [
                sign * (item.value - item.limit)
                if item.value is not None and item.limit is not None
                else np.nan
                for item in seen
            ],
            dtype=float,
        )
        # Squares are taken of them: a value that is absurdly far is as far as this.
        distances = np.clip(distances, -_FARTHEST, _FARTHEST)
        groups = np.array([item.group for item in seen], dtype=np.int64)
        names = {name: number for number, name in enumerate(sorted({item.worker for item in seen}))}
        known = np.abs(distances[np.isfinite(distances)])
        guess = PRIOR_SCALE * float(np.median(known)) if len(known) else 0.0
        effect = worker_effect(distances, groups, np.array([names[item.worker] for item in seen]), guess)
        verdicts = np.array([item.bad for item in seen], dtype=bool)
        left, doubt = distances - effect.offsets, CLEAR * np.sqrt(effect.variances)
        clear = (np.abs(effect.offsets) > doubt) & (np.abs(left) > doubt)
        bad = np.where(clear, left > 0, verdicts)
        return cls(
            groups=groups,
            bad=bad,
            overruled=bad != verdicts,
            distances=left,
            offsets=effect.offsets,
            doubt=effect.variances,
            kind=kind,
            limit=next((item.limit for item in seen if item.limit is not None), float("nan")),
        )

    def at(self, distance: float) -> float:
        """The metric's value at a distance from the limit."""
        return self.limit + worse(self.kind) * distance

    def sureness(self, believed_bad: Bools) -> Floats:
        """(n,) how surely each observation was on the bad side: its verdict where no value tells more.

        ``believed_bad`` says which of them belong to bad states.
        """
        sure = self.bad.astype(float)
        spread = fit_spread(self.distances, self.groups, believed_bad)
        if spread is None:
            return sure
        # A trial that the allocator cut off has no value: it was at the bad level at least.
        at_least = np.where(self.bad, spread.half, -spread.half)
        reached = np.where(np.isnan(self.distances), at_least, self.distances)
        return np.asarray(1 / (1 + np.exp(-spread.log_odds(reached, self.doubt))))
