"""What a profile's runs cannot be judged by is refused at once, and again by the worker that resolves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from bisection.adapters.catalogue import Catalogue
from bisection.criteria import CriterionKind
from service.intake import BisectionRequest, normalise
from service.problems import Problem
from workers.resolution import criterion_of

SPEED = {"kind": "throughput", "threshold": 650.0}


def catalogue(folder: Path, **fields: Any) -> Catalogue:
    profile = {
        "name": "tiny",
        "repository": "nightly",
        "environment": {"kind": "interpreter", "python": "/usr/bin/python3"},
        "launch": [{"command": ["{python}", "train.py"]}],
        **fields,
    }
    for kind, row in (
        ("profiles", profile),
        ("repositories", {"name": "nightly", "url": "file:///srv/nightly"}),
    ):
        (folder / kind).mkdir()
        (folder / kind / f"{row['name']}.yaml").write_text(yaml.safe_dump(row))
    return Catalogue(folder)


@pytest.mark.parametrize("asked", [True, False])
def test_speed_on_mock_data_is_refused_whether_the_request_or_the_profile_asks_for_it(
    tmp_path: Path, asked: bool
) -> None:
    registered = catalogue(tmp_path, data={"kind": "mock"}, **({} if asked else {"criterion": SPEED}))
    row = {"profile": "tiny", "good": "v1", "bad": "main", **({"criterion": SPEED} if asked else {})}
    with pytest.raises(Problem) as refusal:
        normalise(BisectionRequest.model_validate(row), registered)
    (error,) = refusal.value.errors
    assert error.field == "criterion.kind"
    assert "throughput means nothing on mock data" in error.message
    assert "real data" in error.repair
    with pytest.raises(ValueError, match="means nothing on mock data"):
        criterion_of({"criterion": SPEED} if asked else {}, registered.profile("tiny"))


@pytest.mark.parametrize(
    ("kind", "criterion"), [("real", SPEED), ("mock", {"kind": "crash"}), ("mock", {"kind": "out_of_memory"})]
)
def test_what_the_data_suffice_for_is_taken(tmp_path: Path, kind: str, criterion: dict[str, Any]) -> None:
    registered = catalogue(tmp_path, data={"kind": kind}, capacity_bytes=2**36)
    row = {"profile": "tiny", "good": "v1", "bad": "main", "criterion": criterion}
    stored, profile = normalise(BisectionRequest.model_validate(row), registered)
    assert criterion_of(stored, profile).kind is CriterionKind(criterion["kind"])
