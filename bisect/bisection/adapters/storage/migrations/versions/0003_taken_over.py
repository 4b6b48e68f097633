"""Take measurements over from other bisections"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("trials", sa.Column("reuse_key", sa.String(length=64), nullable=True))
    op.add_column("trials", sa.Column("source_trial", sa.String(length=32), nullable=True))
    op.add_column("trials", sa.Column("retracted_at", sa.String(length=32), nullable=True))
    op.create_index(op.f("ix_trials_reuse_key"), "trials", ["reuse_key"], unique=False)
    op.create_index(
        op.f("ix_trials_bisection_id_source_trial"), "trials", ["bisection_id", "source_trial"], unique=True
    )


def downgrade() -> None:
    op.drop_index(op.f("ix_trials_bisection_id_source_trial"), table_name="trials")
    op.drop_index(op.f("ix_trials_reuse_key"), table_name="trials")
    op.drop_column("trials", "retracted_at")
    op.drop_column("trials", "source_trial")
    op.drop_column("trials", "reuse_key")
