"""The tables, but for those in `nightly_schema`. A change needs a migration in ``migrations/versions``.

Times are UTC ISO 8601 text (they sort as text), leases are epoch seconds, JSON
shapes are versioned by the rooms that own them.
"""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)

bisections = Table(
    "bisections",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("created_at", String(32), nullable=False),
    Column("updated_at", String(32), nullable=False),
    Column("ended_at", String(32)),
    Column("status", String(16), nullable=False),
    # Incremented with every change that a search decision depends on.
    Column("version", Integer, nullable=False, default=0),
    Column("request", JSON, nullable=False),
    Column("profile", JSON, nullable=False),  # as it was when the bisection was created
    Column("source", String(200), nullable=False),
    Column("spec", JSON),
    Column("plan", JSON),
    Column("finding", JSON),
    Column("report", JSON),
    Column("cancel_requested", Boolean, nullable=False, default=False),
    Column("approval", JSON),  # of more GPU hours than its profile allows: who, when, why
    Column("retraction", JSON),  # of its result: who, when, why
    Column("idempotency_key", String(200)),
    Column("request_digest", String(64), nullable=False),
    # One open bisection per failure: repository, workflow and failing commit of a webhook.
    Column("failure_key", String(300)),
    Column("kind", String(16), nullable=False, server_default="bisection"),  # or a sweep: it owns trials too
    Column("prove", Integer, nullable=False, server_default="0"),  # remedies to try at the culprit
    UniqueConstraint("idempotency_key"),
    UniqueConstraint("failure_key"),
    Index(None, "created_at", "id"),
    Index(None, "status"),
)

trials = Table(
    "trials",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("bisection_id", String(32), ForeignKey("bisections.id"), nullable=False),
    Column("key", String(40), nullable=False),  # state and attempt: a trial exists once
    Column("ordinal", Integer, nullable=False),  # order of creation within the bisection
    Column("trial", JSON, nullable=False),
    Column("queue", String(100), nullable=False),
    Column("status", String(16), nullable=False),
    Column("created_at", String(32), nullable=False),
    Column("queued_at", Float, nullable=False),  # epoch seconds
    Column("published_at", Float),  # epoch seconds of the last hint sent
    # The fence: each claim increments it, and only the holder of the current one may write.
    Column("claim", Integer, nullable=False, default=0),
    Column("worker", String(200)),
    Column("lease_until", Float),
    Column("started_at", String(32)),
    Column("ended_at", String(32)),
    Column("progress", Text, nullable=False, default=""),
    # Place in the ledger; the rows that have one are the ledger.
    Column("sequence", Integer),
    Column("measurement", JSON),
    # Equal for equal content, job and overrides: what one bisection measured may count in another.
    Column("reuse_key", String(64)),
    # The trial of another bisection that was taken over as this one, at most once.
    Column("source_trial", String(32)),
    Column("retracted_at", String(32)),
    UniqueConstraint("bisection_id", "key"),
    UniqueConstraint("bisection_id", "sequence"),
    Index(None, "status", "lease_until"),
    Index(None, "reuse_key"),
    Index(None, "bisection_id", "source_trial", unique=True),
)

artifacts = Table(
    "artifacts",
    metadata,
    Column("trial_id", String(32), ForeignKey("trials.id"), primary_key=True),
    Column("name", String(100), primary_key=True),
    Column("content", LargeBinary, nullable=False),
)

events = Table(
    "events",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("bisection_id", String(32), ForeignKey("bisections.id"), nullable=False),
    Column("at", String(32), nullable=False),
    Column("kind", String(40), nullable=False),
    Column("payload", JSON, nullable=False),
    Index(None, "bisection_id", "id"),
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("name", String(100), nullable=False),
    Column("digest", String(64), nullable=False),  # SHA-256 of the token; the token is not kept
    Column("scopes", JSON, nullable=False),
    Column("created_at", String(32), nullable=False),
    Column("expires_at", String(32)),
    Column("revoked_at", String(32)),
    UniqueConstraint("digest"),
)

workers = Table(
    "workers",
    metadata,
    Column("name", String(200), primary_key=True),
    Column("queue", String(100), nullable=False),
    Column("started_at", String(32), nullable=False),
    Column("seen_at", Float, nullable=False),  # epoch seconds
    Index(None, "queue", "seen_at"),
)
