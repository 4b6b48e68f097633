"""JSON as every reader takes it: what a training job wrote may hold what JSON does not know.

Python writes NaN and infinities as words that neither PostgreSQL nor a browser reads, and SQLite stores them
all the same. Odd values become the nearest that JSON knows, so that they cannot cost a measurement.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

#: Half a surrogate pair; and NUL, which PostgreSQL's text does not hold.
_UNSTORABLE = re.compile("[\ud800-\udfff\0]")


def plain(value: Any) -> Any:
    """A JSON value with null for what is not finite, and U+FFFD for NUL and half a surrogate pair."""
    if isinstance(value, str):
        return _UNSTORABLE.sub("\ufffd", value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def write(value: Any) -> str:
    return json.dumps(plain(value), allow_nan=False)
