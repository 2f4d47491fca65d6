"""The tables of a shard."""

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
    """Create the tables."""
    options: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_row_format": "DYNAMIC"}
    now, zero, number = sa.text("(UTC_TIMESTAMP(6))"), sa.text("0"), mysql.BIGINT(unsigned=True)
    op.create_table(
        "cell",
        sa.Column("added_id", number, autoincrement=True, nullable=False),
        sa.Column("row_key", sa.BINARY(16), nullable=False),
        sa.Column("column_name", _ascii(64), nullable=False),
        sa.Column("ref_key", mysql.BIGINT(), nullable=False),
        sa.Column("body", mysql.MEDIUMBLOB(), nullable=False),
        sa.Column("created_at", mysql.DATETIME(fsp=6), server_default=now, nullable=False),
        sa.PrimaryKeyConstraint("added_id"),
        sa.UniqueConstraint("row_key", "column_name", "ref_key", name="cell_key"),
        **options,
    )
    op.create_table(
        "cold_file",
        sa.Column("file_id", number, autoincrement=False, nullable=False),
        sa.Column("generation", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("incarnation", _ascii(32), nullable=False),
        sa.Column("token", _ascii(16), nullable=False),
        sa.Column("state", _ascii(16), nullable=False),
        sa.Column("first_id", number, nullable=False),
        sa.Column("last_id", number, nullable=False),
        sa.Column("cells", number, server_default=zero, nullable=False),
        sa.Column("text_bytes", number, server_default=zero, nullable=False),
        sa.Column("file_bytes", number, server_default=zero, nullable=False),
        sa.Column("sha256", _ascii(64), server_default=sa.text("''"), nullable=False),
        sa.Column("erased_event", number, nullable=False),
        sa.Column("created_at", mysql.DATETIME(fsp=6), server_default=now, nullable=False),
        sa.Column("changed_at", mysql.DATETIME(fsp=6), server_default=now, nullable=False),
        sa.PrimaryKeyConstraint("file_id", "generation"),
        **options,
    )
    op.create_table(
        "erased_cell",
        sa.Column("event_id", number, autoincrement=False, nullable=False),
        sa.Column("added_id", number, nullable=False),
        sa.Column("erasure", number, nullable=False),
        sa.Column("body_bytes", sa.Integer(), nullable=False),
        sa.Column("entry_shards", mysql.MEDIUMTEXT(), nullable=True),
        sa.Column("erased_at", mysql.DATETIME(fsp=6), server_default=now, nullable=False),
        sa.PrimaryKeyConstraint("event_id"),
        sa.UniqueConstraint("erasure", "event_id", name="erased_cell_erasure"),
        **options,
    )
    op.create_table(
        "follower",
        sa.Column("name", _ascii(80), nullable=False),
        sa.Column("location", number, nullable=False),
        sa.Column("worker", mysql.VARCHAR(255), nullable=True),
        sa.Column("epoch", number, server_default=zero, nullable=False),
        sa.Column("state", _ascii(16), server_default=sa.text("'running'"), nullable=False),
        sa.Column("attempts", sa.Integer(), server_default=zero, nullable=False),
        sa.Column("retry_at", mysql.DATETIME(fsp=6), nullable=True),
        sa.Column("message", mysql.MEDIUMTEXT(), nullable=True),
        sa.Column("moved_at", mysql.DATETIME(fsp=6), server_default=now, nullable=False),
        sa.Column("erased_event", number, server_default=zero, nullable=False),
        sa.PrimaryKeyConstraint("name"),
        **options,
    )
    op.create_table(
        "parked",
        sa.Column("name", _ascii(80), nullable=False),
        sa.Column("added_id", number, autoincrement=False, nullable=False),
        sa.Column("row_key", sa.BINARY(16), nullable=False),
        sa.Column("column_name", _ascii(64), nullable=False),
        sa.Column("ref_key", mysql.BIGINT(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("error", mysql.MEDIUMTEXT(), nullable=False),
        sa.Column("parked_at", mysql.DATETIME(fsp=6), server_default=now, nullable=False),
        sa.Column("replay", mysql.TINYINT(), server_default=zero, nullable=False),
        sa.PrimaryKeyConstraint("name", "added_id"),
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
        sa.CheckConstraint("only_row = 1", name="shard_identity_only_row"),
        sa.PrimaryKeyConstraint("only_row"),
        **options,
    )
