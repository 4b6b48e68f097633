"""How the service writes JSON: whatever was stored can be sent.

What a training job wrote may have reached the database before anybody refused it.
An answer that cannot be written would fail for ever. Nothing here knows what is sent.
"""

from __future__ import annotations

import json
from typing import Any

from fastapi.responses import JSONResponse

from bisection.adapters.storage.json_text import plain


def encode_json(value: Any) -> bytes:
    """Compact UTF-8 of any value that `json.loads` can give."""
    try:
        return _encode(value)
    except ValueError:  # not a finite number, or half a surrogate pair: rare, and looking for it takes long
        return _encode(plain(value))


def _encode(value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8")


class JsonAnswer(JSONResponse):
    """The application's way to send JSON."""

    def render(self, content: Any) -> bytes:
        return encode_json(content)
