"""Clusters have a storage engine, which the cells of their shards are in.

InnoDB for all existing ones. A matter of metadata: one column with a default, at the end of a table of a few rows.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic.operations import Operations
from sqlalchemy.dialects import mysql

revision = "catalog_0011"
down_revision = "catalog_0010"
branch_labels = None
depends_on = None


def upgrade(op: Operations) -> None:
    """Add the column."""
    name = mysql.VARCHAR(16, charset="ascii", collation="ascii_bin")
    op.add_column("cluster", sa.Column("engine", name, nullable=False, server_default=sa.text("'innodb'")))
