"""A backup is made while everything runs, and a half-done bisection goes on from it."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from firstbad.database_files import BackupRefused, back_up, put_back
from firstbad.settings import read_settings
from service.client import Client
from tests.e2e.installation import PATIENCE_SECONDS, Installation, Training, wait_until
from tests.postgresql import PostgreSQL, binaries

_SIZES = [900] * 3 + [1100] * 2
_CULPRIT = 3


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    installation = Installation(tmp_path / "home")
    yield installation
    installation.down()


def half_done(installation: Installation, training: Training) -> tuple[str, list[str]]:
    """A bisection of a running server that has measured something and not ended; its commits."""
    hashes = training.commits(*({"bytes": size, "seconds": 0.3} for size in _SIZES))
    server = installation.up(workers=1)
    with Client(server.url, server.token) as client:
        request = {"profile": "small", "good": hashes[0], "bad": hashes[-1]}
        bisection = client.create(request)["id"]
        wait_until(lambda: len(_done(client, bisection)) >= 2, "no trial ends")
        assert client.get(bisection)["status"] == "running"
    return bisection, hashes


def _done(client: Client, bisection: str) -> dict[str, str]:
    """Finished trials, and when each ended."""
    return {t["id"]: t["ended_at"] for t in client.get(bisection)["trials"] if t["status"] == "done"}


def goes_on(installation: Installation, bisection: str, hashes: list[str], kept: int) -> None:
    """The server finds the culprit, and what was measured before the backup is not measured again."""
    server = installation.up(workers=1)
    with Client(server.url, server.token) as client:
        before = _done(client, bisection)
        assert len(before) >= kept
        row = client.wait(bisection, timeout_seconds=PATIENCE_SECONDS)
        assert (row["status"], row["finding"]["commits"]) == ("ended", [hashes[_CULPRIT]])
        assert before.items() <= _done(client, bisection).items()


def test_a_bisection_goes_on_from_a_backup_of_sqlite(installation: Installation, tmp_path: Path) -> None:
    training = Training(installation, tmp_path / "training")
    bisection, hashes = half_done(installation, training)
    copy = tmp_path / "copy.sqlite"
    made = installation.firstbad("backup", str(copy))
    assert made.returncode == 0, made.stderr
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    refused = installation.firstbad("restore", str(copy))
    assert refused.returncode == 1
    assert "stop it first" in refused.stderr

    installation.down()
    database = installation.home / "firstbad.sqlite"
    database.write_bytes(b"the disk wrote something else")
    restored = installation.firstbad("restore", str(copy))
    assert restored.returncode == 0, restored.stderr
    aside = min(installation.home.glob("firstbad.sqlite.before-*"), key=lambda path: len(path.name))
    assert aside.read_bytes() == b"the disk wrote something else"
    goes_on(installation, bisection, hashes, kept=2)


@pytest.mark.long
def test_a_bisection_goes_on_from_a_dump_of_postgresql(installation: Installation, tmp_path: Path) -> None:
    """The commands are those of docs/how-to/operate.md."""
    if binaries() is None:
        pytest.skip("no PostgreSQL is installed")
    server = PostgreSQL()
    try:
        url = server.new_database()
        installation.environment["FIRSTBAD_DATABASE_URL"] = url
        training = Training(installation, tmp_path / "training")
        bisection, hashes = half_done(installation, training)
        dump = tmp_path / "firstbad.dump"
        plain = url.replace("postgresql+psycopg://", "postgresql://")
        tool("pg_dump", "--format=custom", f"--file={dump}", plain)
        installation.down()

        restored = server.new_database()
        plain = restored.replace("postgresql+psycopg://", "postgresql://")
        tool(
            "pg_restore",
            "--exit-on-error",
            "--single-transaction",
            "--no-owner",
            f"--dbname={plain}",
            str(dump),
        )
        installation.environment["FIRSTBAD_DATABASE_URL"] = restored
        goes_on(installation, bisection, hashes, kept=2)
        installation.down()
    finally:
        server.close()


def tool(name: str, *arguments: str) -> None:
    folder = binaries()
    assert folder is not None
    done = subprocess.run([folder / name, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_what_is_no_backup_is_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    settings = read_settings({"FIRSTBAD_HOME": str(tmp_path / "home")})
    settings.home.mkdir()
    database = settings.home / "firstbad.sqlite"
    database.write_bytes(b"as it was")
    (tmp_path / "text").write_text("no database at all, but long enough to be read as one by somebody" * 20)
    with closing(sqlite3.connect(tmp_path / "other.sqlite")) as other:
        other.execute("CREATE TABLE cats (name)")
    for name, why in (
        ("text", "is no backup of firstbad"),
        ("other.sqlite", "is no backup of firstbad"),
        ("none", "there is no file"),
    ):
        with pytest.raises(BackupRefused, match=why):
            put_back(settings, tmp_path / name)
    assert os.listdir(settings.home) == ["firstbad.sqlite"]
    assert database.read_bytes() == b"as it was"


def test_a_backup_overwrites_nothing_and_asks_for_its_own_tool_elsewhere(tmp_path: Path) -> None:
    environment = {"FIRSTBAD_HOME": str(tmp_path)}
    settings = read_settings(environment)
    with pytest.raises(BackupRefused, match="there is no database at"):
        back_up(settings, tmp_path / "copy")
    sqlite3.connect(tmp_path / "firstbad.sqlite").close()
    (tmp_path / "copy").write_text("dear to somebody")
    with pytest.raises(BackupRefused, match="exists and is not overwritten"):
        back_up(settings, tmp_path / "copy")
    assert (tmp_path / "copy").read_text() == "dear to somebody"
    elsewhere = {**environment, "FIRSTBAD_DATABASE_URL": "postgresql+psycopg://firstbad@db/firstbad"}
    with pytest.raises(BackupRefused, match="use pg_dump --format=custom"):
        back_up(read_settings(elsewhere), tmp_path / "other")
