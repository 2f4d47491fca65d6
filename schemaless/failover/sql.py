"""Statements about Group Replication: what a member says of its group, and making one."""

from __future__ import annotations

from typing import Final

from schemaless.wire.sql.parts import NOW, Term, blob_hex, cell_table, quoted_table, table, upsert
from schemaless.wire.sql.sessions import own_claim

SELECT_SERVER: Final = b"SELECT @@server_uuid, @@group_replication_single_primary_mode"
"""Its row is who the server is, and whether its group has one primary; only a server with the plugin has the second."""

SELECT_MEMBERS: Final = (
    b"SELECT MEMBER_ID, MEMBER_HOST, MEMBER_PORT, MEMBER_STATE, MEMBER_ROLE "
    b"FROM performance_schema.replication_group_members"
)
"""Its rows are the members of the group as the server sees them; none where it does not have the plugin."""


SHOW_SEMI_SYNC_STATUS: Final = b"SHOW GLOBAL STATUS LIKE 'Rpl\\_semi\\_sync\\_%\\_status'"


SHOW_GROUP: Final = b"SHOW GLOBAL VARIABLES LIKE 'group_replication_group_name'"


def select_own_claim(database: str, cluster: str) -> bytes:
    """Select the epoch of the claim that this very server has on a cluster."""
    return b"SELECT " + own_claim(database, cluster)


def upsert_claim(database: str, cluster: str, epoch: int) -> bytes:
    """Claim a cluster for this very server."""
    own: dict[str, Term] = {"epoch": epoch, "server": b"@@server_uuid", "claimed_at": NOW, "claimed_by": b"USER()"}
    return upsert(table(database, b"primary_claim"), {"cluster": cluster}, own)


SELECT_RECEIVED: Final = (
    b"SELECT RECEIVED_TRANSACTION_SET, SERVICE_STATE, CHANNEL_NAME "
    b"FROM performance_schema.replication_connection_status"
)
"""Its rows are, for each source of a replica, what came from there, whether it still does, and the channel's name."""


def rename_cells(database: str, name: str) -> bytes:
    """Give the ``cell`` table another name, under which nobody reads or writes it."""
    return b"RENAME TABLE %b TO %b" % (cell_table(database), quoted_table(database, name))


def use_up_id(database: str, name: str, added_id: int) -> bytes:
    """Insert a row that no cell can be, for its added_id: rolled back, the server hands out only higher ones.

    Args:
        name: of the shard's table of cells.
    """
    return b"INSERT INTO %b (added_id,row_key,column_name,ref_key,body) VALUES (%d,%b,'',0,'')" % (
        table(database, name.encode()),
        added_id,
        blob_hex(bytes(16)),
    )
