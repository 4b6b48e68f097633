"""A genuine delivery is told from a forged one."""

from __future__ import annotations

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.github import is_signed


def signature_of(body: bytes, secret: bytes) -> str:
    return "sha256=" + hmac.new(secret, body, hashlib.sha256).hexdigest()


def test_githubs_own_example_is_genuine() -> None:
    """The values of GitHub's documentation of webhook signatures."""
    signature = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    assert is_signed(b"Hello, World!", signature, b"It's a Secret to Everybody")


@given(st.binary(max_size=200), st.binary(min_size=1, max_size=40), st.binary(min_size=1, max_size=20))
def test_any_change_of_body_or_secret_is_noticed(body: bytes, secret: bytes, more: bytes) -> None:
    signature = signature_of(body, secret)
    assert is_signed(body, signature, secret)
    assert not is_signed(body + more, signature, secret)
    if (secret + more).rstrip(b"\0") != secret.rstrip(b"\0"):  # HMAC pads short keys with zeros
        assert not is_signed(body, signature, secret + more)


@pytest.mark.parametrize("signature", ["", "sha256=", "sha256=ü", "SHA256=", "\udcff"])
def test_what_is_no_signature_is_refused_quietly(signature: str) -> None:
    assert not is_signed(b"body", signature, b"secret")


def test_an_empty_secret_signs_nothing() -> None:
    assert not is_signed(b"body", signature_of(b"body", b""), b"")
