"""What fuzzing found, one test each."""

from __future__ import annotations

from typing import Any

import pytest

from bisection.ledger import LedgerEntry
from tests.unit.report import samples


@pytest.mark.parametrize("spoilt", [None, [], "x", 7, {"data": None}, {"steps": [[]]}, {"state": None}])
def test_a_ledger_entry_of_another_shape_is_told_to_be_none(spoilt: Any) -> None:
    row = samples.experts().ledger[0].to_json()
    measurement = {**row["measurement"], **spoilt} if isinstance(spoilt, dict) else spoilt
    with pytest.raises(ValueError, match="not a"):
        LedgerEntry.from_json({**row, "measurement": measurement})
