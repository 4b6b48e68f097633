"""What people decide about a bisection: its GPU hours, and whether its result stands.

Who may decide what is the service's matter; here it is written down, with who, when and why.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bisection.adapters.storage.audit import token_of
from bisection.adapters.storage.bisections import Bisections, Status
from bisection.adapters.storage.database import now

APPROVED, REFUSED = "approved", "refused"

#: The event of a result that was taken back, with ``by`` and ``reason``. Whoever told others of a result
#: (a check run, a comment, a hook) tells them of this too; `BisectionRow.retraction` holds the same.
RETRACTED = "retracted"


class Decisions:
    """Each gives False if the bisection does not stand where this can be decided; nothing is written then."""

    def __init__(self, bisections: Bisections) -> None:
        self._bisections = bisections

    def approve(self, bisection_id: str, *, by: str, reason: str) -> bool:
        """A held bisection goes on."""
        told = {"by": by, "reason": reason}
        approval = {"decision": APPROVED, "at": now(), **told}
        return self._bisections.move(
            bisection_id,
            [Status.HELD],
            APPROVED,
            told,
            by=token_of(by),
            approval=approval,
            status=Status.RUNNING.value,
        )

    def refuse(self, bisection_id: str, *, by: str, reason: str) -> bool:
        """A held bisection is to end with what is known; a worker carries it out."""
        told = {"by": by, "reason": reason}
        approval = {"decision": REFUSED, "at": now(), **told}
        return self._bisections.move(
            bisection_id, [Status.HELD], REFUSED, told, by=token_of(by), approval=approval
        )

    def retract(self, bisection_id: str, *, by: str, reason: str, report: Mapping[str, Any] | None) -> bool:
        """An ended bisection's result is taken back. ``report`` is its report without the retraction."""
        told = {"by": by, "reason": reason}
        retraction = {"at": now(), **told}
        values: dict[str, Any] = {"retraction": retraction}
        if report is not None:
            values["report"] = {**report, "retraction": retraction}
        return self._bisections.move(bisection_id, [Status.ENDED], RETRACTED, told, by=token_of(by), **values)
