"""Shards that are moved to another cluster: from where, to where, and how far each is."""

from __future__ import annotations

import sqlalchemy as sa
from alembic.operations import Operations
from sqlalchemy.dialects import mysql

revision = "catalog_0009"
down_revision = "catalog_0008"
branch_labels = None
depends_on = None


def _ascii(length: int) -> mysql.VARCHAR:
    return mysql.VARCHAR(length, charset="ascii", collation="ascii_bin")


def upgrade(op: Operations) -> None:
    """Create the table."""
    op.create_table(
        "shard_move",
        sa.Column("job_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("shard", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("source", _ascii(64), nullable=False),
        sa.Column("target", _ascii(64), nullable=False),
        sa.Column("phase", _ascii(16), nullable=False),
        sa.Column("token", _ascii(16), nullable=True),
        sa.Column("settled_id", mysql.BIGINT(unsigned=True), nullable=False, server_default=sa.text("0")),
        sa.Column("verified_id", mysql.BIGINT(unsigned=True), nullable=False, server_default=sa.text("0")),
        sa.Column("fence_id", mysql.BIGINT(unsigned=True), nullable=True),
        sa.Column("fence_rows", mysql.BIGINT(unsigned=True), nullable=True),
        sa.Column("target_server", mysql.VARCHAR(255), nullable=True),
        sa.Column("pause_s", mysql.DOUBLE(), nullable=True),
        sa.PrimaryKeyConstraint("job_id", "shard"),
        mysql_engine="InnoDB",
        mysql_row_format="DYNAMIC",
    )
