"""Remember runs job by job, keep deliveries until they are settled, and announce results from an outbox"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_LATER = ("repository", "status", "report", "outcomes", "run", "tries", "due_at", "released")


def upgrade() -> None:
    op.create_table(
        "job_runs",
        sa.Column("source", sa.String(length=160), nullable=False),
        sa.Column("workflow", sa.String(length=200), nullable=False),
        sa.Column("branch", sa.String(length=255), nullable=False),
        sa.Column("job", sa.String(length=300), nullable=False),
        sa.Column("run", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("conclusion", sa.String(length=16), nullable=False),
        sa.Column("head_sha", sa.String(length=40), nullable=False),
        sa.Column("signature", sa.String(length=300), nullable=False),
        sa.Column("url", sa.String(length=500), nullable=False),
        sa.Column("bisection_id", sa.String(length=32), nullable=True),
        sa.Column("seen_at", sa.String(length=32), nullable=False),
        sa.PrimaryKeyConstraint("source", "workflow", "branch", "job", "run", name=op.f("pk_job_runs")),
    )
    op.create_index(op.f("ix_job_runs_bisection_id"), "job_runs", ["bisection_id"], unique=False)
    op.execute(
        "INSERT INTO job_runs (source, workflow, branch, job, run, attempt, conclusion, head_sha, "
        "signature, url, bisection_id, seen_at) SELECT repository, workflow, branch, '', run_id, 1, "
        "'success', head_sha, '', '', NULL, seen_at FROM green_runs"
    )
    op.drop_table("green_runs")
    op.add_column("deliveries", sa.Column("repository", sa.String(length=64), nullable=True))
    op.add_column(
        "deliveries", sa.Column("status", sa.String(length=16), nullable=False, server_default="settled")
    )
    op.add_column("deliveries", sa.Column("report", sa.JSON(), nullable=True))
    op.add_column("deliveries", sa.Column("outcomes", sa.JSON(), nullable=True))
    op.add_column("deliveries", sa.Column("run", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("deliveries", sa.Column("tries", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("deliveries", sa.Column("due_at", sa.Float(), nullable=False, server_default="0"))
    op.add_column(
        "deliveries", sa.Column("released", sa.Boolean(), nullable=False, server_default=sa.false())
    )
    op.create_index(
        op.f("ix_deliveries_status_repository_run"),
        "deliveries",
        ["status", "repository", "run"],
        unique=False,
    )
    op.create_table(
        "announcements",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("bisection_id", sa.String(length=32), nullable=False),
        sa.Column("channel", sa.String(length=16), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("retracted", sa.Boolean(), nullable=False),
        sa.Column("place", sa.JSON(), nullable=True),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("due_at", sa.Float(), nullable=False),
        sa.Column("fence", sa.Integer(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("created_at", sa.String(length=32), nullable=False),
        sa.Column("updated_at", sa.String(length=32), nullable=False),
        sa.ForeignKeyConstraint(
            ["bisection_id"], ["bisections.id"], name=op.f("fk_announcements_bisection_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_announcements")),
        sa.UniqueConstraint("bisection_id", "channel", name=op.f("uq_announcements_bisection_id_channel")),
    )
    op.create_index(
        op.f("ix_announcements_status_due_at"), "announcements", ["status", "due_at"], unique=False
    )


def downgrade() -> None:
    op.drop_table("announcements")
    op.drop_index(op.f("ix_deliveries_status_repository_run"), table_name="deliveries")
    for name in reversed(_LATER):
        op.drop_column("deliveries", name)
    op.create_table(
        "green_runs",
        sa.Column("repository", sa.String(length=140), nullable=False),
        sa.Column("workflow", sa.String(length=200), nullable=False),
        sa.Column("branch", sa.String(length=255), nullable=False),
        sa.Column("run_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("head_sha", sa.String(length=40), nullable=False),
        sa.Column("seen_at", sa.String(length=32), nullable=False),
        sa.PrimaryKeyConstraint("repository", "workflow", "branch", "run_id", name=op.f("pk_green_runs")),
    )
    op.execute(
        "INSERT INTO green_runs (repository, workflow, branch, run_id, head_sha, seen_at) "
        "SELECT source, workflow, branch, run, head_sha, seen_at FROM job_runs "
        "WHERE conclusion = 'success' AND job = ''"
    )
    op.drop_index(op.f("ix_job_runs_bisection_id"), table_name="job_runs")
    op.drop_table("job_runs")
