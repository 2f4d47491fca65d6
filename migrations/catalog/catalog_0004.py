"""Dictionaries of zstd, and what each column's new bodies are written in."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic.operations import Operations
from sqlalchemy.dialects import mysql

revision = "catalog_0004"
down_revision = "catalog_0003"
branch_labels = None
depends_on = None


def _ascii(length: int) -> mysql.VARCHAR:
    return mysql.VARCHAR(length, charset="ascii", collation="ascii_bin")


def upgrade(op: Operations) -> None:
    """Create the two tables."""
    options: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_row_format": "DYNAMIC"}
    now = sa.text("(UTC_TIMESTAMP(6))")
    op.create_table(
        "dictionary",
        sa.Column("dictionary_id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("digest", sa.BINARY(32), nullable=False),
        sa.Column("content", mysql.MEDIUMBLOB(), nullable=True),
        sa.Column("size_bytes", sa.Integer(), nullable=False),
        sa.Column("source", mysql.MEDIUMTEXT(), nullable=False),
        sa.Column("created_at", mysql.DATETIME(fsp=6), nullable=False, server_default=now),
        sa.Column("retired_at", mysql.DATETIME(fsp=6), nullable=True),
        sa.Column("removed_at", mysql.DATETIME(fsp=6), nullable=True),
        sa.PrimaryKeyConstraint("dictionary_id"),
        mysql_auto_increment="32768",
        **options,
    )
    op.create_table(
        "column_codec",
        sa.Column("column_name", _ascii(64), nullable=False),
        sa.Column("codec", _ascii(64), nullable=False),
        sa.Column("level", sa.Integer(), nullable=True),
        sa.Column("dictionary_id", sa.Integer(), nullable=True),
        sa.Column("set_at", mysql.DATETIME(fsp=6), nullable=False, server_default=now),
        sa.PrimaryKeyConstraint("column_name"),
        **options,
    )
