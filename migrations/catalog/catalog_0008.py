"""Secondary indexes: what each is made of, and whether it may be asked.

Rows stay once their index was dropped, so that no number is ever given twice.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic.operations import Operations
from sqlalchemy.dialects import mysql

revision = "catalog_0008"
down_revision = "catalog_0007"
branch_labels = None
depends_on = None


def _ascii(length: int) -> mysql.VARCHAR:
    return mysql.VARCHAR(length, charset="ascii", collation="ascii_bin")


def upgrade(op: Operations) -> None:
    """Create the table."""
    options: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_row_format": "DYNAMIC"}
    op.create_table(
        "secondary_index",
        sa.Column("index_id", sa.Integer(), primary_key=True, autoincrement=True, nullable=False),
        sa.Column("name", _ascii(32), nullable=False),
        sa.Column("definition", mysql.MEDIUMTEXT(), nullable=False),
        sa.Column("state", _ascii(16), nullable=False),
        sa.Column("created_at", mysql.DATETIME(fsp=6), nullable=False, server_default=sa.text("(UTC_TIMESTAMP(6))")),
        sa.Column("ready_at", mysql.DATETIME(fsp=6), nullable=True),
        sa.Column("dropped_at", mysql.DATETIME(fsp=6), nullable=True),
        sa.Column("message", mysql.MEDIUMTEXT(), nullable=True),
        **options,
    )
