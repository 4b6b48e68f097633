"""Signatures as Standard Webhooks (standardwebhooks.com) describe them, made and checked. No I/O.

The signed content is `ID.TIMESTAMP.BODY`; the signature is `v1,` and the base64 of its HMAC-SHA256. A
secret that starts with `whsec_` is base64 after that, as the specification has it; any other is taken as
it is, so that `openssl dgst -hmac` in a shell script can use it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

_PREFIX = b"whsec_"


def secrets_in(content: bytes) -> tuple[bytes, ...]:
    """Of a secret's file, one a line; all are valid at once, so that one is rotated without a gap."""
    return tuple(line.strip() for line in content.splitlines() if line.strip())


def signature(secret: bytes, message_id: str, timestamp: str, body: bytes) -> str:
    """The header `webhook-signature`."""
    content = f"{message_id}.{timestamp}.".encode(errors="surrogatepass") + body
    return "v1," + base64.b64encode(hmac.new(_key(secret), content, hashlib.sha256).digest()).decode()


def is_signed(secret: bytes, message_id: str, timestamp: str, body: bytes, header: str) -> bool:
    """Whether one of the header's signatures, separated by spaces, was made over exactly this.

    An empty secret signs nothing: anybody knows it. Whether the time is near is the caller's to ask.
    """
    if not (secret and message_id and timestamp):
        return False
    expected = signature(secret, message_id, timestamp, body).encode()
    given = [one.encode(errors="replace") for one in header.split(" ")]
    return any(hmac.compare_digest(expected, one) for one in given)


def _key(secret: bytes) -> bytes:
    if not secret.startswith(_PREFIX):
        return secret
    try:
        return base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        return secret
