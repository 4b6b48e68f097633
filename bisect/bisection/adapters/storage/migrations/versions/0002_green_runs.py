"""Remember workflow runs that succeeded"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
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


def downgrade() -> None:
    op.drop_table("green_runs")
