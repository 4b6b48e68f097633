"""What all tests share: a clean environment, and skips that fail where nothing may be missing."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from bisection.adapters.storage.database import Database
from tests.postgresql import PostgreSQL, binaries


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow tests last: a fault that a quick test shows is then shown first.

    Side by side they come first, so that no process is left alone with them at the end.
    """
    slowest = ("e2e/test_demo", "test_slurm", "test_interr") if "PYTEST_XDIST_WORKER" in os.environ else ()
    items.sort(
        key=lambda item: (
            not any(word in item.nodeid for word in slowest),
            "e2e" in item.nodeid,
            "slurm" in item.nodeid,
            "probe" in item.nodeid,
        )
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI a skipped test is a failure, unless it needs a GPU, which CI never has."""
    report = yield
    if report.skipped and os.environ.get("CI") and "tests/gpu" not in item.nodeid:
        report.outcome = "failed"
    return report


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's own FIRSTBAD_* settings must not reach a test."""
    settings = ("HOME", "PORT", "DATABASE_URL", "BROKER_URL", "CATALOGUE", "URL", "TOKEN", "PUBLIC_URL")
    for name in (*settings, "KEEP_LOGS", "KEEP_ARTIFACTS", "KEEP_BISECTIONS"):
        monkeypatch.delenv(f"FIRSTBAD_{name}", raising=False)


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQL]:
    """A server for the tests of this process. Skips where PostgreSQL is not installed."""
    if binaries() is None:
        pytest.skip("PostgreSQL is not installed")
    server = PostgreSQL()
    try:
        yield server
    finally:
        server.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of a migrated database, once of each kind that the product runs on."""
    if request.param == "postgresql":
        server: PostgreSQL = request.getfixturevalue("postgresql")
        return server.migrated_database()
    url = f"sqlite:///{tmp_path}/firstbad.sqlite"
    database = Database(url)
    database.migrate()
    database.close()
    return url
