"""Changes a column's type and takes the rest away again."""

from __future__ import annotations

import sqlalchemy as sa
from alembic.operations import Operations

revision = "shard_later_2"
down_revision = "shard_later_1"
branch_labels = None
depends_on = None


def upgrade(op: Operations) -> None:
    """Do it."""
    op.alter_column("cell", "later", existing_type=sa.Integer(), type_=sa.BigInteger(), existing_nullable=True)
    op.drop_column("cell", "gone")
    op.drop_index("cell_later", "cell")
    op.drop_table("later")
