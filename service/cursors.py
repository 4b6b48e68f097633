"""Cursors of keyset pages: where a list goes on, as an opaque word.

A cursor holds the moment and the id of the last row that was seen, so that pages neither overlap nor skip
while rows are added.
"""

from __future__ import annotations

import base64
import binascii
import re

from service.intake import invalid
from service.problems import FieldError

_CURSOR = re.compile(r"([0-9T:.+-]{20,40}) ([0-9a-f]{16})")


def write_cursor(moment: str, row_id: str) -> str:
    return base64.urlsafe_b64encode(f"{moment} {row_id}".encode()).decode().rstrip("=")


def read_cursor(cursor: str | None) -> tuple[str, str] | None:
    """The moment and the id; None for the first page. Raises Problem for what is no cursor."""
    if cursor is None:
        return None
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        found = _CURSOR.fullmatch(base64.b64decode(padded.encode(), altchars=b"-_", validate=True).decode())
    except (binascii.Error, UnicodeError):
        found = None
    if found is None:
        error = FieldError(
            field="cursor", message="is not one of this service", repair="pass 'next' of the page before"
        )
        raise invalid([error])
    return found[1], found[2]
