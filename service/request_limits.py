"""How many requests a token may make: a bucket of them, which fills again with time.

Each process of the service counts for itself: with several behind one address, a token may make so many
requests at each. The limit keeps a loop that went wrong from starving everybody else; it is no account.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

#: Buckets beyond so many are looked through for full ones, which say no more than absent ones do.
_MANY = 1000


class Buckets:
    """One bucket a name. Safe to share between threads.

    ``per_second`` requests come back each second, up to ``burst``; 0 a second: no limit.
    """

    def __init__(
        self, *, per_second: float, burst: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._per_second = per_second
        self._burst = burst
        self._clock = clock
        self._lock = threading.Lock()
        self._filled: dict[str, float] = {}  #: the moment at which a bucket is full again

    def wait_seconds(self, name: str) -> float:
        """Take one request out; 0.0, or how long it is until there is one. Then nothing is taken."""
        if not self._per_second:
            return 0.0
        with self._lock:
            now = self._clock()
            full_at = max(self._filled.get(name, now), now) + 1 / self._per_second
            wait = full_at - now - self._burst / self._per_second
            if wait > 1e-9:
                return wait
            if len(self._filled) > _MANY:
                self._filled = {known: at for known, at in self._filled.items() if at > now}
            self._filled[name] = full_at
            return 0.0
