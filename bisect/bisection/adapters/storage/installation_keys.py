"""Keys that all workers of an installation share: made once, never shown."""

from __future__ import annotations

import secrets

from sqlalchemy import insert, select
from sqlalchemy.exc import IntegrityError

from bisection.adapters.storage.database import Database
from bisection.adapters.storage.keeping_schema import installation_keys

_PSEUDONYMS = "pseudonyms"
_BYTES = 32


class InstallationKeys:
    """Reads a key, and makes it at its first use."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def pseudonyms(self) -> bytes:
        """The key of the pseudonyms that stand for names which must not leave a worker."""
        found = self._read()
        if found is None:
            row = {"name": _PSEUDONYMS, "value": secrets.token_bytes(_BYTES)}
            try:
                with self._database.write() as connection:
                    connection.execute(insert(installation_keys).values(row))
            except IntegrityError:
                pass  # another worker was first: its key is everybody's
            found = self._read()
        assert found is not None
        return found

    def _read(self) -> bytes | None:
        query = select(installation_keys.c.value).where(installation_keys.c.name == _PSEUDONYMS)
        with self._database.read() as connection:
            return connection.execute(query).scalar_one_or_none()
