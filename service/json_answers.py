"""How the service writes JSON: whatever was stored can be sent.

What a training job wrote may have reached the database before anybody refused it.
An answer that cannot be written would fail for ever, so odd values become the
nearest that JSON knows. Nothing here knows what is sent.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from fastapi.responses import JSONResponse

_SURROGATE = re.compile("[\ud800-\udfff]")


def sendable(value: Any) -> Any:
    """A JSON value with null for what is not finite, and U+FFFD for half a surrogate pair."""
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {sendable(key): sendable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [sendable(item) for item in value]
    return value


def encode_json(value: Any) -> bytes:
    """Compact UTF-8 of any value that `json.loads` can give."""
    text = json.dumps(sendable(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8")


class JsonAnswer(JSONResponse):
    """The application's way to send JSON."""

    def render(self, content: Any) -> bytes:
        return encode_json(content)
