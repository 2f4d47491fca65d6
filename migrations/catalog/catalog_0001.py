"""The catalog: the datastore, its clusters and nodes, and which shards are where."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic.operations import Operations
from sqlalchemy.dialects import mysql

revision = "catalog_0001"
down_revision = None
branch_labels: tuple[str, ...] = ("catalog",)
depends_on = None


def _ascii(length: int) -> mysql.VARCHAR:
    return mysql.VARCHAR(length, charset="ascii", collation="ascii_bin")


def upgrade(op: Operations) -> None:
    """Create the four tables."""
    options: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_row_format": "DYNAMIC"}
    now = sa.text("(UTC_TIMESTAMP(6))")
    op.create_table(
        "datastore",
        sa.Column("only_row", mysql.TINYINT(), autoincrement=False, nullable=False),
        sa.Column("name", _ascii(64), nullable=False),
        sa.Column("shard_count", sa.Integer(), nullable=False),
        sa.Column("placement", _ascii(32), nullable=False),
        sa.Column("format", mysql.SMALLINT(), nullable=False),
        sa.Column("ready", mysql.TINYINT(), nullable=False),
        sa.Column("created_at", mysql.DATETIME(fsp=6), server_default=now, nullable=False),
        sa.PrimaryKeyConstraint("only_row"),
        sa.CheckConstraint("only_row = 1", name="datastore_only_row"),
        **options,
    )
    op.create_table(
        "cluster",
        sa.Column("name", _ascii(64), nullable=False),
        sa.Column("created_at", mysql.DATETIME(fsp=6), server_default=now, nullable=False),
        sa.PrimaryKeyConstraint("name"),
        **options,
    )
    op.create_table(
        "node",
        sa.Column("node_id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("cluster", _ascii(64), nullable=False),
        sa.Column("role", _ascii(16), nullable=False),
        sa.Column("host", mysql.VARCHAR(255), nullable=True),
        sa.Column("port", sa.Integer(), nullable=True),
        sa.Column("socket", mysql.VARCHAR(255), nullable=True),
        sa.PrimaryKeyConstraint("node_id"),
        sa.ForeignKeyConstraint(["cluster"], ["cluster.name"], name="node_cluster"),
        **options,
    )
    op.create_table(
        "shard_range",
        sa.Column("first_shard", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("last_shard", sa.Integer(), nullable=False),
        sa.Column("cluster", _ascii(64), nullable=False),
        sa.PrimaryKeyConstraint("first_shard"),
        sa.ForeignKeyConstraint(["cluster"], ["cluster.name"], name="shard_range_cluster"),
        **options,
    )
