"""Remember who approved a bisection's GPU hours, and who took its result back"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("bisections", sa.Column("approval", sa.JSON(), nullable=True))
    op.add_column("bisections", sa.Column("retraction", sa.JSON(), nullable=True))


def downgrade() -> None:
    op.drop_column("bisections", "retraction")
    op.drop_column("bisections", "approval")
