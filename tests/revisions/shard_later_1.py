"""Adds columns, indexes and a table: of each operation that may find its work done, one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic.operations import Operations

revision = "shard_later_1"
down_revision = "shard_0001"
branch_labels = None
depends_on = None


def upgrade(op: Operations) -> None:
    """Make them."""
    op.add_column("cell", sa.Column("later", sa.Integer(), nullable=True))
    op.add_column("cell", sa.Column("gone", sa.Integer(), nullable=True))
    op.create_index("cell_later", "cell", ["later"])
    op.create_table(
        "later", sa.Column("n", sa.Integer(), primary_key=True), sa.Column("m", sa.Integer()), mysql_engine="InnoDB"
    )
    op.create_unique_constraint("later_m", "later", ["m"])
