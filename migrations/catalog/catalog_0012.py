"""Retention policies of columns, and legal holds of rows.

Released holds stay, so that the catalog says who held a row and when.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic.operations import Operations
from sqlalchemy.dialects import mysql

revision = "catalog_0012"
down_revision = "catalog_0011"
branch_labels = None
depends_on = None


def _ascii(length: int) -> mysql.VARCHAR:
    return mysql.VARCHAR(length, charset="ascii", collation="ascii_bin")


def _stamp(name: str) -> sa.Column[Any]:
    return sa.Column(name, mysql.DATETIME(fsp=6), nullable=False, server_default=sa.text("(UTC_TIMESTAMP(6))"))


def upgrade(op: Operations) -> None:
    """Create the tables."""
    options: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_row_format": "DYNAMIC"}
    op.create_table(
        "retention_policy",
        sa.Column("column_name", _ascii(64), primary_key=True, nullable=False),
        sa.Column("keep_days", sa.Integer(), nullable=True),
        sa.Column("keep_versions", sa.Integer(), nullable=True),
        sa.Column("set_by", mysql.VARCHAR(255), nullable=False),
        _stamp("set_at"),
        **options,
    )
    op.create_table(
        "legal_hold",
        sa.Column("hold_id", mysql.BIGINT(unsigned=True), primary_key=True, autoincrement=True, nullable=False),
        sa.Column("row_key", mysql.BINARY(16), nullable=False),
        sa.Column("held_by", mysql.VARCHAR(255), nullable=False),
        sa.Column("reason", _ascii(64), nullable=False),
        _stamp("held_at"),
        sa.Column("released_at", mysql.DATETIME(fsp=6), nullable=True),
        sa.Column("released_by", mysql.VARCHAR(255), nullable=True),
        sa.UniqueConstraint("row_key", "hold_id", name="legal_hold_row"),
        **options,
    )
