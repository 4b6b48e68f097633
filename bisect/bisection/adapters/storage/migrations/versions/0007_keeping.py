"""What was removed, and the installation's own keys"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "removals",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("at", sa.String(length=32), nullable=False),
        sa.Column("bisection_id", sa.String(length=32), nullable=False),
        sa.Column("what", sa.String(length=16), nullable=False),
        sa.Column("by", sa.String(length=200), nullable=False),
        sa.Column("counts", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_removals")),
    )
    op.create_index(op.f("ix_removals_bisection_id_id"), "removals", ["bisection_id", "id"], unique=False)
    op.create_table(
        "installation_keys",
        sa.Column("name", sa.String(length=40), nullable=False),
        sa.Column("value", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_installation_keys")),
    )


def downgrade() -> None:
    op.drop_table("installation_keys")
    op.drop_index(op.f("ix_removals_bisection_id_id"), table_name="removals")
    op.drop_table("removals")
