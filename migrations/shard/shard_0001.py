"""A shard: its cells, and what says which shard it is."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic.operations import Operations
from sqlalchemy.dialects import mysql

revision = "shard_0001"
down_revision = None
branch_labels: tuple[str, ...] = ("shard",)
depends_on = None


def _ascii(length: int) -> mysql.VARCHAR:
    return mysql.VARCHAR(length, charset="ascii", collation="ascii_bin")


def upgrade(op: Operations) -> None:
    """Create the two tables."""
    options: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_row_format": "DYNAMIC"}
    op.create_table(
        "cell",
        sa.Column("added_id", mysql.BIGINT(unsigned=True), autoincrement=True, nullable=False),
        sa.Column("row_key", sa.BINARY(16), nullable=False),
        sa.Column("column_name", _ascii(64), nullable=False),
        sa.Column("ref_key", mysql.BIGINT(), nullable=False),
        sa.Column("body", mysql.MEDIUMBLOB(), nullable=False),
        sa.Column("created_at", mysql.DATETIME(fsp=6), server_default=sa.text("(UTC_TIMESTAMP(6))"), nullable=False),
        sa.PrimaryKeyConstraint("added_id"),
        sa.UniqueConstraint("row_key", "column_name", "ref_key", name="cell_key"),
        **options,
    )
    op.create_table(
        "shard_identity",
        sa.Column("only_row", mysql.TINYINT(), autoincrement=False, nullable=False),
        sa.Column("datastore", _ascii(64), nullable=False),
        sa.Column("shard", sa.Integer(), nullable=False),
        sa.Column("shard_count", sa.Integer(), nullable=False),
        sa.Column("placement", _ascii(32), nullable=False),
        sa.Column("format", mysql.SMALLINT(), nullable=False),
        sa.PrimaryKeyConstraint("only_row"),
        sa.CheckConstraint("only_row = 1", name="shard_identity_only_row"),
        **options,
    )
