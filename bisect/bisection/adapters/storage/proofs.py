"""Asking for proofs of remedies: of a bisection that still runs, or of one that has ended already."""

from __future__ import annotations

from bisection.adapters.storage.bisections import Bisections, Status


class Proofs:
    """Gives False if the bisection does not stand where it can be asked; nothing is written then."""

    def __init__(self, bisections: Bisections) -> None:
        self._bisections = bisections

    def ask(self, bisection_id: str, count: int, *, by: str = "") -> bool:
        """The best ``count`` remedies are tried at the culprit. One that has ended is opened again for that;
        its answer and its report stand until a worker writes the new report.
        """
        told = {"count": count}
        waiting = [Status.RESOLVING, Status.PLANNED, Status.HELD, Status.RUNNING, Status.VERIFYING]
        if self._bisections.move(bisection_id, waiting, "proofs_asked", told, by=by, prove=count):
            return True
        return self._bisections.move(
            bisection_id,
            [Status.ENDED],
            "proofs_asked",
            told,
            by=by,
            prove=count,
            status=Status.VERIFYING.value,
            ended_at=None,
            cancel_requested=False,
        )
