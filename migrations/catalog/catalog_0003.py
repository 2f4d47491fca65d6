"""Measurements of a datastore's size: what ``schemaless capacity measure`` found, and when."""

from __future__ import annotations

import sqlalchemy as sa
from alembic.operations import Operations
from sqlalchemy.dialects import mysql

revision = "catalog_0003"
down_revision = "catalog_0002"
branch_labels = None
depends_on = None


def upgrade(op: Operations) -> None:
    """Create the table."""
    op.create_table(
        "capacity_sample",
        sa.Column("sample_id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("taken_at", mysql.DATETIME(fsp=6), nullable=False),
        sa.Column("figures", mysql.MEDIUMTEXT(), nullable=False),
        sa.PrimaryKeyConstraint("sample_id"),
        mysql_engine="InnoDB",
        mysql_row_format="DYNAMIC",
    )
