"""What fuzzing found, one test each."""

from __future__ import annotations

from typing import Any

import pytest

from bisection.adapters import standard_webhooks
from bisection.ledger import LedgerEntry
from service import github
from tests.unit.report import samples


@pytest.mark.parametrize("spoilt", [None, [], "x", 7, {"data": None}, {"steps": [[]]}, {"state": None}])
def test_a_ledger_entry_of_another_shape_is_told_to_be_none(spoilt: Any) -> None:
    row = samples.experts().ledger[0].to_json()
    measurement = {**row["measurement"], **spoilt} if isinstance(spoilt, dict) else spoilt
    with pytest.raises(ValueError, match="not a"):
        LedgerEntry.from_json({**row, "measurement": measurement})


@pytest.mark.parametrize("header", ["\ud800", "v1,\udcff", "sha256=\ud800"])
def test_a_signature_that_is_no_text_signs_nothing(header: str) -> None:
    assert not standard_webhooks.is_signed(b"secret", "id", "1", b"", header)
    assert not standard_webhooks.is_signed(b"secret", header, header, b"", "v1,")
    assert not github.is_signed(b"", header, b"secret")
