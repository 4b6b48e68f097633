"""Sweeps beside bisections, and how many remedies are to be proven"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    kind = sa.Column("kind", sa.String(length=16), nullable=False, server_default="bisection")
    op.add_column("bisections", kind)
    op.add_column("bisections", sa.Column("prove", sa.Integer(), nullable=False, server_default="0"))


def downgrade() -> None:
    op.drop_column("bisections", "prove")
    op.drop_column("bisections", "kind")
