"""The SQLite database as a file that can be copied away and put back. PostgreSQL has its own tools."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import URL

from firstbad.settings import Settings

_PAGES_AT_ONCE = 1024


class BackupRefused(RuntimeError):
    """The copy cannot be made or put back; the message says why, and what to do."""


def back_up(settings: Settings, target: Path) -> int:
    """Copy the database while it is in use; returns the copy's bytes.

    The copy is of one instant, and appears under its name only when it is whole. Raises BackupRefused.
    """
    source = _sqlite_file(settings.database_url, "pg_dump --format=custom")
    if not source.exists():
        raise BackupRefused(
            f"there is no database at {source}; is FIRSTBAD_HOME the one that `firstbad up` has?"
        )
    if target.exists():
        raise BackupRefused(f"{target} exists and is not overwritten; choose another name")
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        with closing(sqlite3.connect(source)) as live, closing(sqlite3.connect(partial)) as copy:
            live.execute("PRAGMA busy_timeout=30000")
            # One transaction holds the instant while writers go on; by itself, a backup in steps would start
            # again at each of their commits.
            live.execute("BEGIN")
            live.execute("SELECT count(*) FROM sqlite_master").fetchone()
            live.backup(copy, pages=_PAGES_AT_ONCE)
            copy.execute("PRAGMA journal_mode=DELETE")
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.rename(target)
    finally:
        partial.unlink(missing_ok=True)
    return target.stat().st_size


def put_back(settings: Settings, source: Path) -> Path | None:
    """Make a copy the database; returns where the database that was there is now. Raises BackupRefused.

    Nothing of the home may be running: a worker would write its measurement under a claim of another time.
    """
    target = _sqlite_file(settings.database_url, "pg_restore --clean --if-exists")
    _check(source)
    settings.home.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (settings.home / "up.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise BackupRefused(f"`firstbad up` serves {settings.home}; stop it first") from None
        partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
        try:
            with closing(sqlite3.connect(source)) as copy, closing(sqlite3.connect(partial)) as new:
                copy.backup(new)
            partial.chmod(0o600)
            aside = _set_aside(target)
            partial.rename(target)
        finally:
            partial.unlink(missing_ok=True)
    return aside


def _sqlite_file(url: URL, otherwise: str) -> Path:
    if url.get_backend_name() != "sqlite" or not url.database:
        raise BackupRefused(
            f"the database is {url.get_backend_name()}'s; use {otherwise}, as docs/how-to/operate.md shows"
        )
    return Path(url.database).absolute()


def _check(source: Path) -> None:
    if not source.is_file():
        raise BackupRefused(f"there is no file {source}")
    try:
        with closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as copy:
            [(said,)] = copy.execute("PRAGMA integrity_check(1)")
            copy.execute("SELECT version_num FROM alembic_version").fetchone()
    except sqlite3.DatabaseError as error:
        raise BackupRefused(f"{source} is no backup of firstbad: {error}") from None
    if said != "ok":
        raise BackupRefused(f"{source} is damaged: {said}; use an older backup")


def _set_aside(target: Path) -> Path | None:
    """Move the database away with its write-ahead log, which belongs to it and to no other."""
    if not target.exists():
        return None
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")
    aside = target.with_name(f"{target.name}.before-{stamp}")
    for suffix in ("-wal", "-shm"):
        beside = target.with_name(target.name + suffix)
        if beside.exists():
            beside.rename(aside.with_name(aside.name + suffix))
    target.rename(aside)
    return aside
