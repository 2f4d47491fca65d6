"""Clusters have an epoch: which claim a primary has to have before it is written to.

0 until a cluster's first claim (``schemaless topology adopt``); none is asked for until then. A matter of metadata: one
column with a default, at the end of a table of a few rows.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic.operations import Operations

revision = "catalog_0007"
down_revision = "catalog_0006"
branch_labels = None
depends_on = None


def upgrade(op: Operations) -> None:
    """Add the column."""
    op.add_column("cluster", sa.Column("primary_epoch", sa.Integer(), nullable=False, server_default=sa.text("0")))
