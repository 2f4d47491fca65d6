"""The ledger of erasures: four tables, empty until something is erased."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic.operations import Operations
from sqlalchemy.dialects import mysql

revision = "catalog_0013"
down_revision = "catalog_0012"
branch_labels = None
depends_on = None


def _ascii(length: int) -> mysql.VARCHAR:
    return mysql.VARCHAR(length, charset="ascii", collation="ascii_bin")


def upgrade(op: Operations) -> None:
    """Create the tables."""
    options: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_row_format": "DYNAMIC"}
    now, number, zero = sa.text("(UTC_TIMESTAMP(6))"), mysql.BIGINT(unsigned=True), sa.text("0")
    op.create_table(
        "erasure",
        sa.Column("erasure_id", number, autoincrement=True, nullable=False),
        sa.Column("token", sa.BINARY(16), nullable=False),
        sa.Column("kind", _ascii(16), nullable=False),
        sa.Column("scope", mysql.MEDIUMTEXT(), nullable=False),
        sa.Column("reason", _ascii(64), nullable=False),
        sa.Column("requested_by", mysql.VARCHAR(255), nullable=False),
        sa.Column("intended_at", mysql.DATETIME(fsp=6), nullable=False, server_default=now),
        sa.Column("executed_at", mysql.DATETIME(fsp=6), nullable=True),
        sa.Column("acknowledged_at", mysql.DATETIME(fsp=6), nullable=True),
        sa.Column("verified_at", mysql.DATETIME(fsp=6), nullable=True),
        sa.Column("notes", mysql.MEDIUMTEXT(), nullable=True),
        sa.PrimaryKeyConstraint("erasure_id"),
        sa.UniqueConstraint("token", name="erasure_token"),
        **options,
    )
    op.create_table(
        "erasure_key",
        sa.Column("erasure_id", number, autoincrement=False, nullable=False),
        sa.Column("shard", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("row_key", sa.BINARY(16), nullable=False),
        sa.Column("column_name", _ascii(64), nullable=False),
        sa.Column("ref_key", mysql.BIGINT(), autoincrement=False, nullable=False),
        sa.PrimaryKeyConstraint("erasure_id", "shard", "row_key", "column_name", "ref_key"),
        **options,
    )
    op.create_table(
        "erasure_shard",
        sa.Column("erasure_id", number, autoincrement=False, nullable=False),
        sa.Column("shard", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("cells", number, nullable=False, server_default=zero),
        sa.Column("body_bytes", number, nullable=False, server_default=zero),
        sa.Column("last_event", number, nullable=False, server_default=zero),
        sa.Column("executed_at", mysql.DATETIME(fsp=6), nullable=True),
        sa.PrimaryKeyConstraint("erasure_id", "shard"),
        **options,
    )
    op.create_table(
        "erasure_follower",
        sa.Column("erasure_id", number, autoincrement=False, nullable=False),
        sa.Column("name", _ascii(80), nullable=False),
        sa.Column("acknowledged_at", mysql.DATETIME(fsp=6), nullable=False, server_default=now),
        sa.PrimaryKeyConstraint("erasure_id", "name"),
        **options,
    )
