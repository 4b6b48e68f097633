"""Where the regression is likely to have begun, before any trial.

Here lives the prior over the hypotheses of `posterior`. It may look at a commit's
paths, pins and keys, never at a measurement.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bisection.states import Line

Floats = NDArray[np.float64]

#: Of reported regressions, the share where no commit is to blame: a flake, the machine, the data.
NO_CULPRIT = 0.1
#: The share where the good end was bad all along.
GOOD_END_IS_BAD = 0.03


def log_prior(line: Line) -> Floats:
    """(G+1,) logarithm of the prior: `GOOD_END_IS_BAD`, the first bad states, `NO_CULPRIT`."""
    suspects = len(line) - 1
    weight = np.full(suspects, (1 - NO_CULPRIT - GOOD_END_IS_BAD) / suspects)
    return np.asarray(np.log(np.concatenate([[GOOD_END_IS_BAD], weight, [NO_CULPRIT]])))
