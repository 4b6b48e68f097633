"""The steady beats of a worker process: its presence, its trial's lease, the reconciler.

Threads that do one thing at intervals and survive whatever goes wrong with it once, such as a
database that is away for a while: what they miss, the next beat makes good.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable

import structlog
from sqlalchemy.exc import SQLAlchemyError

from bisection.adapters.storage.claims import HEARTBEAT_SECONDS, Beat, Claim, Claims

log = structlog.get_logger(__name__)


class Pulse:
    """Calls ``beat`` every so many seconds until it is stopped."""

    def __init__(self, name: str, seconds: float, beat: Callable[[], None]) -> None:
        self._beat = beat
        self._seconds = seconds
        self._stopping = threading.Event()
        # What the starter's lines carry (bisection, trial), the thread's carry too.
        self._thread = threading.Thread(
            target=contextvars.copy_context().run, args=(self._run,), name=name, daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout=10)

    def _run(self) -> None:
        while True:
            try:
                self._beat()
            except SQLAlchemyError as error:
                log.warning("beat missed", beat=self._thread.name, error=str(error))
            except Exception:  # a beat that stops for good would be noticed by nobody
                log.exception("beat missed", beat=self._thread.name)
            if self._stopping.wait(self._seconds):
                return


class Lease:
    """Keeps one claim alive while its trial runs, and learns when to stop.

    Used as a context manager. ``lost`` turns True when the trial was cancelled or
    another worker has it; then nothing more may be written under the claim.
    """

    def __init__(self, claims: Claims, claim: Claim) -> None:
        self._claims = claims
        self._claim = claim
        self._said: str | None = None
        self._text = ""
        self.verdict = Beat.CONTINUE
        self._pulse = Pulse("lease", HEARTBEAT_SECONDS, self._renew)

    def __enter__(self) -> Lease:
        self._pulse.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._pulse.stop()

    @property
    def lost(self) -> bool:
        return self.verdict is not Beat.CONTINUE

    def say(self, text: str) -> None:
        """Progress for whoever watches; sent with the next beat."""
        self._text = text

    def _renew(self) -> None:
        text = self._text if self._text != self._said else None
        if not self.lost:
            self.verdict = self._claims.beat(self._claim, text)
            self._said = self._text
