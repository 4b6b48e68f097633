"""Culprits that only carry the fault: opened down to where it began, by real workers in real repositories."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.client import Client
from tests.e2e.installation import Installation, finish
from tests.e2e.nested import Nested


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    installation = Installation(tmp_path_factory.mktemp("descents") / "home")
    installation.up()
    yield installation
    installation.down()


@pytest.fixture
def client(installation: Installation) -> Iterator[Client]:
    server = installation.wait_for_server()
    with Client(server.url, server.token) as client:
        yield client


@pytest.fixture
def nested(installation: Installation, tmp_path: Path) -> Nested:
    return Nested(installation, tmp_path)


def bisect(client: Client, good: Any, bad: Any, **more: Any) -> dict[str, Any]:
    return finish(client, {"profile": "nested", "good": good, "bad": bad, **more})


def levels(report: dict[str, Any]) -> list[str]:
    return [level["level"] for level in report["finding"]["descent"]]


def test_a_moved_pin_is_opened_two_deep_and_its_ends_are_not_measured_again(
    client: Client, nested: Nested
) -> None:
    #  training  a a B a      B moves the library by 6 commits, the fourth of which moves the kernel by 8
    kernel = [
        nested.commit(f"kernel {n}", scene=nested.kernel, bytes=300 if n >= 5 else 100) for n in range(9)
    ]
    library = [
        nested.commit(f"library {n}", scene=nested.library, bytes=100, pin=kernel[8 if n >= 4 else 0])
        for n in range(7)
    ]
    commits = [
        nested.commit(f"training {n}", bytes=700 + n, pin=library[6 if n >= 3 else 0]) for n in range(3)
    ]
    bump = nested.commit("Move the library", pin=library[6])
    last = nested.commit("training 4", bytes=704)
    report = bisect(client, commits[0], last)
    finding = report["finding"]
    assert (finding["kind"], finding["commits"]) == ("found", [bump]), finding
    assert levels(report) == ["pin", "pin"], finding
    outer, inner = finding["descent"]
    assert outer["commits"] == [library[4]]
    assert inner["commits"] == [kernel[5]]
    assert (inner["path"], inner["repository"]) == ("vendor/library/vendor/kernel", "kernel")
    assert len(report["trials"]) <= 40
