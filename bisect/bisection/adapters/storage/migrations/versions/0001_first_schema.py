"""The first schema"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "bisections",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("created_at", sa.String(length=32), nullable=False),
        sa.Column("updated_at", sa.String(length=32), nullable=False),
        sa.Column("ended_at", sa.String(length=32), nullable=True),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("request", sa.JSON(), nullable=False),
        sa.Column("profile", sa.JSON(), nullable=False),
        sa.Column("source", sa.String(length=200), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=True),
        sa.Column("plan", sa.JSON(), nullable=True),
        sa.Column("finding", sa.JSON(), nullable=True),
        sa.Column("report", sa.JSON(), nullable=True),
        sa.Column("cancel_requested", sa.Boolean(), nullable=False),
        sa.Column("idempotency_key", sa.String(length=200), nullable=True),
        sa.Column("request_digest", sa.String(length=64), nullable=False),
        sa.Column("failure_key", sa.String(length=300), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_bisections")),
        sa.UniqueConstraint("failure_key", name=op.f("uq_bisections_failure_key")),
        sa.UniqueConstraint("idempotency_key", name=op.f("uq_bisections_idempotency_key")),
    )
    op.create_index(op.f("ix_bisections_created_at_id"), "bisections", ["created_at", "id"], unique=False)
    op.create_index(op.f("ix_bisections_status"), "bisections", ["status"], unique=False)
    op.create_table(
        "deliveries",
        sa.Column("id", sa.String(length=100), nullable=False),
        sa.Column("received_at", sa.String(length=32), nullable=False),
        sa.Column("event", sa.String(length=60), nullable=False),
        sa.Column("result", sa.Text(), nullable=False),
        sa.Column("bisection_id", sa.String(length=32), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_deliveries")),
    )
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.String(length=32), nullable=False),
        sa.Column("expires_at", sa.String(length=32), nullable=True),
        sa.Column("revoked_at", sa.String(length=32), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
        sa.UniqueConstraint("digest", name=op.f("uq_tokens_digest")),
    )
    op.create_table(
        "workers",
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("queue", sa.String(length=100), nullable=False),
        sa.Column("started_at", sa.String(length=32), nullable=False),
        sa.Column("seen_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_workers")),
    )
    op.create_index(op.f("ix_workers_queue_seen_at"), "workers", ["queue", "seen_at"], unique=False)
    op.create_table(
        "events",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("bisection_id", sa.String(length=32), nullable=False),
        sa.Column("at", sa.String(length=32), nullable=False),
        sa.Column("kind", sa.String(length=40), nullable=False),
        sa.Column("payload", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["bisection_id"], ["bisections.id"], name=op.f("fk_events_bisection_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
    )
    op.create_index(op.f("ix_events_bisection_id_id"), "events", ["bisection_id", "id"], unique=False)
    op.create_table(
        "trials",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("bisection_id", sa.String(length=32), nullable=False),
        sa.Column("key", sa.String(length=40), nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("trial", sa.JSON(), nullable=False),
        sa.Column("queue", sa.String(length=100), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("created_at", sa.String(length=32), nullable=False),
        sa.Column("queued_at", sa.Float(), nullable=False),
        sa.Column("published_at", sa.Float(), nullable=True),
        sa.Column("claim", sa.Integer(), nullable=False),
        sa.Column("worker", sa.String(length=200), nullable=True),
        sa.Column("lease_until", sa.Float(), nullable=True),
        sa.Column("started_at", sa.String(length=32), nullable=True),
        sa.Column("ended_at", sa.String(length=32), nullable=True),
        sa.Column("progress", sa.Text(), nullable=False),
        sa.Column("sequence", sa.Integer(), nullable=True),
        sa.Column("measurement", sa.JSON(), nullable=True),
        sa.ForeignKeyConstraint(["bisection_id"], ["bisections.id"], name=op.f("fk_trials_bisection_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_trials")),
        sa.UniqueConstraint("bisection_id", "key", name=op.f("uq_trials_bisection_id_key")),
        sa.UniqueConstraint("bisection_id", "sequence", name=op.f("uq_trials_bisection_id_sequence")),
    )
    op.create_index(op.f("ix_trials_status_lease_until"), "trials", ["status", "lease_until"], unique=False)
    op.create_table(
        "artifacts",
        sa.Column("trial_id", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["trial_id"], ["trials.id"], name=op.f("fk_artifacts_trial_id")),
        sa.PrimaryKeyConstraint("trial_id", "name", name=op.f("pk_artifacts")),
    )


def downgrade() -> None:
    op.drop_table("artifacts")
    op.drop_index(op.f("ix_trials_status_lease_until"), table_name="trials")
    op.drop_table("trials")
    op.drop_index(op.f("ix_events_bisection_id_id"), table_name="events")
    op.drop_table("events")
    op.drop_index(op.f("ix_workers_queue_seen_at"), table_name="workers")
    op.drop_table("workers")
    op.drop_table("tokens")
    op.drop_table("deliveries")
    op.drop_index(op.f("ix_bisections_status"), table_name="bisections")
    op.drop_index(op.f("ix_bisections_created_at_id"), table_name="bisections")
    op.drop_table("bisections")
