"""The identities of the servers, from which a catalog can tell that it was copied to another server.

A matter of metadata: one column that may be NULL, at the end of a table of a few rows. 'schemaless schema upgrade' and
each change of a cluster fill it in for every server that answers.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic.operations import Operations
from sqlalchemy.dialects import mysql

revision = "catalog_0014"
down_revision = "catalog_0013"
branch_labels = None
depends_on = None


def upgrade(op: Operations) -> None:
    """Add the column."""
    identity = mysql.VARCHAR(64, charset="ascii", collation="ascii_bin")
    op.add_column("node", sa.Column("server", identity, nullable=True))
