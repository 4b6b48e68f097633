"""Who may do what: tokens, of which only digests are kept."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import and_, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from bisection.adapters.storage.audit import OPERATOR, record
from bisection.adapters.storage.database import Database, new_id, now
from bisection.adapters.storage.schema import tokens

PREFIX = "fb_"


class Scope(StrEnum):
    """What a token allows."""

    READ = "read"  #: see everything but the audit log
    AUDIT = "audit"  #: read the audit log
    WRITE = "write"  #: start, confirm and cancel bisections, and take results back
    APPROVE = "approve"  #: allow or refuse GPU hours above a profile's limit
    ADMIN = "admin"  #: make and revoke tokens; includes the others


@dataclass(frozen=True, kw_only=True)
class Caller:
    """Whom a token stands for."""

    id: str
    name: str
    scopes: frozenset[Scope]

    def may(self, scope: Scope) -> bool:
        return scope in self.scopes or Scope.ADMIN in self.scopes


@dataclass(frozen=True, kw_only=True)
class Issued:
    """What may be told of a token."""

    id: str
    name: str
    scopes: tuple[str, ...]
    created_at: str
    expires_at: str | None
    revoked_at: str | None

    @property
    def is_in_force(self) -> bool:
        return self.revoked_at is None and (self.expires_at is None or self.expires_at > _now())

    @property
    def stands(self) -> str:
        """In words, as of now."""
        if self.revoked_at:
            return f"revoked {self.revoked_at[:10]}"
        if self.expires_at is None:
            return "in force"
        return f"{'in force until' if self.is_in_force else 'ended'} {self.expires_at[:16]}"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "scopes": list(self.scopes), "in_force": self.is_in_force}


def _now() -> str:
    return datetime.now(UTC).isoformat()


def _digest(token: str) -> str:
    # A token has 256 random bits: a plain digest cannot be reversed by guessing.
    return hashlib.sha256(token.encode()).hexdigest()


class Tokens:
    """Issues, looks up and revokes tokens."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def issue(self, name: str, scopes: frozenset[Scope], *, lifetime: timedelta | None = None) -> str:
        """A new token. It is shown once, here, and cannot be read again."""
        token = PREFIX + secrets.token_urlsafe(32)
        self.register(token, name, scopes, lifetime=lifetime)
        return token

    def register(
        self, token: str, name: str, scopes: frozenset[Scope], *, lifetime: timedelta | None = None
    ) -> None:
        """Make a token known that exists already; a second time changes nothing."""
        expires = (datetime.now(UTC) + lifetime).isoformat() if lifetime else None
        row = {
            "id": new_id(),
            "name": name,
            "digest": _digest(token),
            "scopes": sorted(scope.value for scope in scopes),
            "created_at": now(),
            "expires_at": expires,
        }
        try:
            with self._database.write() as connection:
                connection.execute(insert(tokens).values(row))
                told = {"name": name, "scopes": row["scopes"], "expires_at": expires}
                record(connection, by=OPERATOR, action="token_issued", subject=str(row["id"]), told=told)
        except IntegrityError:
            return

    def caller(self, token: str) -> Caller | None:
        """None for a token that is unknown, expired or revoked."""
        query = select(tokens.c.id, tokens.c.name, tokens.c.scopes).where(
            and_(
                tokens.c.digest == _digest(token),
                tokens.c.revoked_at.is_(None),
                or_(
                    tokens.c.expires_at.is_(None),
                    tokens.c.expires_at > datetime.now(UTC).isoformat(),
                ),
            )
        )
        with self._database.read() as connection:
            row = connection.execute(query).first()
        if row is None:
            return None
        return Caller(id=row.id, name=row.name, scopes=frozenset(Scope(s) for s in row.scopes))

    def revoke(self, token_id: str) -> bool:
        with self._database.write() as connection:
            revoked = connection.execute(
                update(tokens)
                .where(tokens.c.id == token_id, tokens.c.revoked_at.is_(None))
                .values(revoked_at=now())
            ).rowcount
            if revoked:
                record(connection, by=OPERATOR, action="token_revoked", subject=token_id, told={})
        return bool(revoked)

    def all(self) -> list[Issued]:
        """The newest first."""
        columns = [tokens.c[name] for name in Issued.__dataclass_fields__]
        query = select(*columns).order_by(tokens.c.created_at.desc(), tokens.c.id)
        with self._database.read() as connection:
            rows = connection.execute(query).all()
        return [Issued(**{**row._mapping, "scopes": tuple(row.scopes)}) for row in rows]

    def rotate(self, token_id: str, *, lifetime: timedelta | None, grace: timedelta) -> str | None:
        """A new token like the old one, which ends after ``grace``. None where that is not in force."""
        old = next((row for row in self.all() if row.id == token_id and row.is_in_force), None)
        if old is None:
            return None
        token = self.issue(old.name, frozenset(Scope(word) for word in old.scopes), lifetime=lifetime)
        if not grace:
            self.revoke(token_id)
            return token
        ends = (datetime.now(UTC) + grace).isoformat()
        with self._database.write() as connection:
            connection.execute(
                update(tokens)
                .where(
                    tokens.c.id == token_id, or_(tokens.c.expires_at.is_(None), tokens.c.expires_at > ends)
                )
                .values(expires_at=ends)
            )
        return token
