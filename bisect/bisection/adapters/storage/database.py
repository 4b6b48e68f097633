"""The connection to the database: transactions that do not lose updates, and migration.

SQLite runs with a write-ahead log, every write transaction starts with BEGIN
IMMEDIATE and is flushed to the disk before it is acknowledged. With a deferred
BEGIN, concurrent writers fail with "database is locked" whatever the timeout;
with the default journal, updates were lost without an error.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import URL, Connection, create_engine, event, make_url
from sqlalchemy.engine import Engine

from bisection.adapters.storage import json_text

_WRITES = "firstbad_writes"
_BUSY_SECONDS = 30
#: A worker that freezes, or whose host vanishes, within a transaction holds its locks no longer than this.
_IDLE_SECONDS = 30
#: libpq's names. A server that vanished is noticed within half a minute: the kernel's own patience is a
#: quarter of an hour for what was sent, and two hours for an answer that is awaited.
_POSTGRESQL_NETWORK = {
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "25000",
}


def now() -> str:
    """UTC, ISO 8601, with microseconds so that text order is time order."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def new_id() -> str:
    return secrets.token_hex(8)


class Database:
    """Opens lazily; safe to share between threads, not across a fork."""

    def __init__(self, url: str | URL) -> None:
        self.url = make_url(url)
        self._is_sqlite = self.url.get_backend_name() == "sqlite"
        # What the operator's URL says of the network is theirs to know better.
        network = {name: value for name, value in _POSTGRESQL_NETWORK.items() if name not in self.url.query}
        arguments: Mapping[str, Any] = {"timeout": _BUSY_SECONDS} if self._is_sqlite else network
        self._engine = create_engine(
            self.url,
            connect_args=dict(arguments),
            pool_pre_ping=True,
            json_serializer=json.dumps if self._is_sqlite else json_text.write,
        )
        # SQLite's writers poll for the lock, at growing pauses: the threads of one process queue up instead.
        self._turn: AbstractContextManager[object] = threading.Lock() if self._is_sqlite else nullcontext()
        if self._is_sqlite:
            _configure_sqlite(self._engine)
        else:
            _configure_postgresql(self._engine)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """One consistent view; nothing may be written."""
        with self._engine.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Commits at the end of the block, rolls back on an exception."""
        with (
            self._turn,
            self._engine.connect().execution_options(**{_WRITES: True}) as connection,
            connection.begin(),
        ):
            yield connection

    def migrate(self, revision: str = "head") -> None:
        """Bring the schema to a version, the newest one; safe to call from several processes at once.

        A schema that is newer than this code is left as it is: while a new version is rolled out, and after
        it was rolled back, older processes go on. So a migration may add, and nothing else, to what the
        release before it reads and writes.
        """
        configuration = _migrations()
        with self.write() as connection:
            if _is_newer(connection):
                return
            configuration.attributes["connection"] = connection
            command.upgrade(configuration, revision)

    def migrate_back(self, revision: str) -> None:
        """Take the schema back to an older version. What only the newer ones can hold is gone."""
        configuration = _migrations()
        with self.write() as connection:
            configuration.attributes["connection"] = connection
            command.downgrade(configuration, revision)

    def is_migrated(self) -> bool:
        """Whether the schema is the newest that this code knows, or newer. Raises if there is no answer."""
        newest = ScriptDirectory.from_config(_migrations()).get_current_head()
        with self.read() as connection:
            current = MigrationContext.configure(connection).get_current_revision()
            return current == newest or _is_newer(connection)

    def close(self) -> None:
        self._engine.dispose()


def _is_newer(connection: Connection) -> bool:
    """Revisions are numbers of four digits, in one line."""
    newest = ScriptDirectory.from_config(_migrations()).get_current_head()
    current = MigrationContext.configure(connection).get_current_revision()
    assert newest is not None
    return current is not None and current > newest


def _migrations() -> Config:
    folder = Path(__file__).parent / "migrations"
    configuration = Config()
    configuration.set_main_option("script_location", str(folder).replace("%", "%%"))
    return configuration


def _configure_sqlite(engine: Engine) -> None:
    @event.listens_for(engine, "connect")
    def on_connect(connection: Any, _record: object) -> None:
        # The driver's own transaction handling begins too late; we say BEGIN ourselves.
        connection.isolation_level = None
        for pragma in (
            "journal_mode=WAL",
            "synchronous=FULL",
            "foreign_keys=ON",
            f"busy_timeout={_BUSY_SECONDS * 1000}",
        ):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def on_begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get(_WRITES)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _configure_postgresql(engine: Engine) -> None:
    @event.listens_for(engine, "connect")
    def on_connect(connection: Any, _record: object) -> None:
        for setting, value in (
            ("idle_in_transaction_session_timeout", f"{_IDLE_SECONDS}s"),
            ("tcp_keepalives_idle", "10s"),
            ("tcp_keepalives_interval", "5s"),
            ("tcp_keepalives_count", "3"),
            ("tcp_user_timeout", "25s"),
        ):
            connection.execute(f"SET {setting} = '{value}'")
        connection.commit()
