"""The tables of what comes in from a CI and what is said of results. See `schema` for the others."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
)

from bisection.adapters.storage.schema import metadata

# What a CI reported, kept until a worker has decided upon it, and after that as the record of why.
deliveries = Table(
    "deliveries",
    metadata,
    Column("id", String(100), primary_key=True),
    Column("received_at", String(32), nullable=False),
    Column("event", String(60), nullable=False),
    Column("result", Text, nullable=False),
    Column("bisection_id", String(32)),
    Column("repository", String(64)),  # registered name
    Column("status", String(16), nullable=False, server_default="settled"),
    Column("report", JSON),  # RunReport
    Column("outcomes", JSON),  # one for each job
    # Older runs are decided upon first: a failure's range starts at the green run before it.
    Column("run", BigInteger, nullable=False, server_default="0"),
    Column("tries", Integer, nullable=False, server_default="0"),
    Column("due_at", Float, nullable=False, server_default="0"),  # epoch seconds
    Column("released", Boolean, nullable=False, server_default=false()),  # somebody lifted the day's limits
    Index(None, "status", "repository", "run"),
)

# The newest attempt of every job of every run that was seen.
job_runs = Table(
    "job_runs",
    metadata,
    Column("source", String(160), primary_key=True),  # whose run numbers these are
    Column("workflow", String(200), primary_key=True),
    Column("branch", String(255), primary_key=True),
    Column("job", String(300), primary_key=True),
    Column("run", BigInteger, primary_key=True, autoincrement=False),
    Column("attempt", Integer, nullable=False),
    Column("conclusion", String(16), nullable=False),
    Column("head_sha", String(40), nullable=False),
    Column("signature", String(300), nullable=False),
    Column("url", String(500), nullable=False),
    Column("bisection_id", String(32)),  # that looks for the reason of the failure
    Column("seen_at", String(32), nullable=False),
    Index(None, "bisection_id"),
)

# The outbox: what is to be said of a result, where, and whether it was.
announcements = Table(
    "announcements",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("bisection_id", String(32), ForeignKey("bisections.id"), nullable=False),
    Column("channel", String(16), nullable=False),
    Column("status", String(16), nullable=False),
    Column("retracted", Boolean, nullable=False),  # whether the retraction was said, too
    Column("place", JSON),  # where it stands: ids that the other side gave
    Column("tries", Integer, nullable=False),
    Column("due_at", Float, nullable=False),  # epoch seconds; in the future while somebody works on it
    Column("fence", Integer, nullable=False),  # each claim increments it; only the newest may write
    Column("why", Text, nullable=False),
    Column("created_at", String(32), nullable=False),
    Column("updated_at", String(32), nullable=False),
    UniqueConstraint("bisection_id", "channel"),
    Index(None, "status", "due_at"),
)
