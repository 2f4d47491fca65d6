"""The log of erased cells, and how far each follower has handled it.

One empty table, and one column with a default at the end of a table of a few rows.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic.operations import Operations
from sqlalchemy.dialects import mysql

revision = "shard_0003"
down_revision = "shard_0002"
branch_labels = None
depends_on = None


def upgrade(op: Operations) -> None:
    """Create the table and add the column."""
    event = mysql.BIGINT(unsigned=True)
    op.create_table(
        "erased_cell",
        sa.Column("event_id", event, autoincrement=False, nullable=False),
        sa.Column("added_id", event, nullable=False),
        sa.Column("erasure", event, nullable=False),
        sa.Column("body_bytes", sa.Integer(), nullable=False),
        sa.Column("entry_shards", mysql.MEDIUMTEXT(), nullable=True),
        sa.Column("erased_at", mysql.DATETIME(fsp=6), nullable=False, server_default=sa.text("(UTC_TIMESTAMP(6))")),
        sa.PrimaryKeyConstraint("event_id"),
        sa.UniqueConstraint("erasure", "event_id", name="erased_cell_erasure"),
        mysql_engine="InnoDB",
        mysql_row_format="DYNAMIC",
    )
    op.add_column("follower", sa.Column("erased_event", event, nullable=False, server_default=sa.text("0")))
