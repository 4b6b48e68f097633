"""The database's clock, in SQL: what hosts compare with one another is told by one clock and not by theirs.

Leases and signs of life are written by one host and judged by another. A host whose own clock is an hour off
would otherwise take every trial away from the rest, or have all of its own taken.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Float
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement


class Clock(FunctionElement[float]):
    """Epoch seconds now, to a millisecond or better, and not as of the start of the transaction."""

    type = Float()
    inherit_cache = True


@compiles(Clock, "sqlite")
def _in_sqlite(_element: Clock, _compiler: Any, **_named: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"  # the Julian day of the epoch


@compiles(Clock, "postgresql")
def _in_postgresql(_element: Clock, _compiler: Any, **_named: Any) -> str:
    return "CAST(extract(epoch FROM clock_timestamp()) AS double precision)"
