"""Which suspects are still worth speaking of: the fewest that hold most of the belief.

One measure for all that is said of a search on its way: why a trial is chosen, what it
changed, what would be answered now.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

#: The share of the belief in suspects that the suspects one speaks of hold together.
CREDIBLE_SHARE = 0.95


def credible_groups(belief: NDArray[np.float64], share: float = CREDIBLE_SHARE) -> tuple[int, ...]:
    """The fewest groups that hold this share of the belief that falls on suspects, ascending.

    ``belief`` is (G+1,) as in `posterior.Posterior`: its first and last members blame no commit and are
    left out here. Of equally likely suspects the older ones come first.
    """
    suspects = belief[1:-1]
    if not len(suspects):
        return ()
    order = np.argsort(-suspects, kind="stable")
    held = np.cumsum(suspects[order])
    # Rounding must not ask for one suspect more than there are.
    count = min(int(np.searchsorted(held, share * held[-1] - 1e-12)) + 1, len(suspects))
    return tuple(sorted(int(group) + 1 for group in order[:count]))
