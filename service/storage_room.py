"""Is there room to write? What a full disk looks like to a service that stores in SQLite.

A small write in a transaction that is rolled back succeeds on a full disk, as it
reuses pages of the log; so the free bytes are asked. A database that is elsewhere
(PostgreSQL) says so itself when a write fails.
"""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

from sqlalchemy.engine import URL, make_url

#: The write-ahead log grows to 4 MiB before it is folded back, and a trial leaves some MiB of artifacts.
LEAST_FREE_BYTES = 16 * 2**20
_POSTGRESQL_DISK_FULL = "53100"


def is_full(error: BaseException | None) -> bool:
    """Whether the database's driver says that its disk is full."""
    full_sqlite = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
    return full_sqlite or getattr(error, "sqlstate", None) == _POSTGRESQL_DISK_FULL


def lacks_room(database_url: str | URL) -> bool:
    """Whether less than LEAST_FREE_BYTES are free beside the SQLite file; False for other databases."""
    url = make_url(database_url)
    if url.get_backend_name() != "sqlite" or not url.database or url.database == ":memory:":
        return False
    try:
        return shutil.disk_usage(Path(url.database).absolute().parent).free < LEAST_FREE_BYTES
    except OSError:
        return False  # no such folder: the database itself says more
