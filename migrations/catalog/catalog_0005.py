"""Followers of the change feed: whether each is to run, and the processes that do their work."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic.operations import Operations
from sqlalchemy.dialects import mysql

revision = "catalog_0005"
down_revision = "catalog_0004"
branch_labels = None
depends_on = None


def _ascii(length: int) -> mysql.VARCHAR:
    return mysql.VARCHAR(length, charset="ascii", collation="ascii_bin")


def upgrade(op: Operations) -> None:
    """Create the two tables."""
    options: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_row_format": "DYNAMIC"}
    op.create_table(
        "follower_setting",
        sa.Column("name", _ascii(80), nullable=False),
        sa.Column("wanted", _ascii(16), nullable=False),
        sa.Column("spec", mysql.MEDIUMTEXT(), nullable=False),
        sa.Column("created_at", mysql.DATETIME(fsp=6), nullable=False, server_default=sa.text("(UTC_TIMESTAMP(6))")),
        sa.PrimaryKeyConstraint("name"),
        **options,
    )
    op.create_table(
        "follower_worker",
        sa.Column("worker", mysql.VARCHAR(255), nullable=False),
        sa.Column("followers", mysql.MEDIUMTEXT(), nullable=False),
        sa.Column("lease_until", mysql.DATETIME(fsp=6), nullable=False),
        sa.Column("figures", mysql.MEDIUMTEXT(), nullable=False),
        sa.PrimaryKeyConstraint("worker"),
        **options,
    )
