"""The topology has a token: programs that are connected see by it that servers or shards have changed.

NULL until the topology is changed for the first time. A matter of metadata: one column, which may be NULL, at the end
of a table of one row.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic.operations import Operations

revision = "catalog_0006"
down_revision = "catalog_0005"
branch_labels = None
depends_on = None


def upgrade(op: Operations) -> None:
    """Add the column."""
    op.add_column("datastore", sa.Column("topology_token", sa.BINARY(16), nullable=True))
