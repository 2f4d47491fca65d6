"""Clusters have a highest block of added_ids: the one that the last claim began in their shards.

0 until a cluster's next claim (``schemaless topology adopt``). A matter of metadata: one column with a default, at the
end of a table of a few rows.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic.operations import Operations
from sqlalchemy.dialects import mysql

revision = "catalog_0010"
down_revision = "catalog_0009"
branch_labels = None
depends_on = None


def upgrade(op: Operations) -> None:
    """Add the column."""
    block = mysql.BIGINT(unsigned=True)
    op.add_column("cluster", sa.Column("id_block", block, nullable=False, server_default=sa.text("0")))
