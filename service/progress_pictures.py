"""Pictures of searches that run, each drawn once for everybody who watches.

Drawing replays the search, which for a long range takes seconds; it changes only when a trial is done.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

from bisection.adapters.storage.bisections import BisectionRow
from bisection.adapters.storage.trials import TrialRow, Trials
from bisection.rendering.progress_pictures import progress_pictures

Pictures = tuple[tuple[str, str], ...]  #: for a desktop and for a phone

#: Pictures of more bisections than people watch at once; each is some tens of kilobytes.
_KEPT = 32


class ProgressPictures:
    """Of the bisections that were looked at last."""

    def __init__(self) -> None:
        self._drawn: OrderedDict[str, tuple[tuple[int, int], Pictures]] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, row: BisectionRow, trials: Sequence[TrialRow]) -> Pictures:
        """Empty before the range is known, and before its first trial is done."""
        spec = row.specification
        if spec is None:
            return ()
        ledger = Trials.ledger(trials)
        standing = (len(ledger), len(spec.levels))
        with self._lock:  # also around the drawing: of many who watch, one draws
            known = self._drawn.get(row.id)
            if known is None or known[0] != standing:
                known = (standing, progress_pictures(spec, ledger))
                self._drawn[row.id] = known
            self._drawn.move_to_end(row.id)
            while len(self._drawn) > _KEPT:
                self._drawn.popitem(last=False)
            return known[1]
