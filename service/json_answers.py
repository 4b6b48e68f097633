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
    text = json.dumps(plain(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8")


class JsonAnswer(JSONResponse):
    """The application's way to send JSON."""

    def render(self, content: Any) -> bytes:
        return encode_json(content)
