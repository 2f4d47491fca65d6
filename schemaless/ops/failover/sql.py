"""SQL statements of failovers: Group Replication, semi-synchronous replication, claims and added_ids."""

from __future__ import annotations

from typing import Final

from schemaless.wire.sql.parts import NOW, Term, blob_hex, cell_table, quoted_table, table, texts, update, upsert
from schemaless.wire.sql.sessions import own_claim

SELECT_SERVER: Final = b"SELECT @@server_uuid, @@group_replication_single_primary_mode"
"""Selects the server's UUID and whether its group is in single-primary mode; needs the Group Replication plugin."""

SELECT_MEMBERS: Final = (
    b"SELECT MEMBER_ID, MEMBER_HOST, MEMBER_PORT, MEMBER_STATE, MEMBER_ROLE "
    b"FROM performance_schema.replication_group_members"
)
"""Selects the group's members as the server sees them; no rows without the Group Replication plugin."""

SHOW_SEMI_SYNC_STATUS: Final = b"SHOW GLOBAL STATUS LIKE 'Rpl\\_semi\\_sync\\_%'"

SHOW_SEMI_SYNC: Final = (
    b"SHOW GLOBAL VARIABLES WHERE Variable_name LIKE 'rpl\\_semi\\_sync\\_%' "
    b"OR Variable_name='group_replication_group_name'"
)
"""One statement for both: the server goes through all its variables for each, which is most of a reading's cost."""


def select_own_claim(database: str, cluster: str) -> bytes:
    """Select the epoch of this server's own claim on a cluster."""
    return b"SELECT " + own_claim(database, cluster)


def upsert_claim(database: str, cluster: str, epoch: int) -> bytes:
    """Insert this server's claim on a cluster, replacing any other."""
    own: dict[str, Term] = {"epoch": epoch, "server": b"@@server_uuid", "claimed_at": NOW, "claimed_by": b"USER()"}
    return upsert(table(database, b"primary_claim"), {"cluster": cluster}, own)


SELECT_RECEIVED: Final = (
    b"SELECT RECEIVED_TRANSACTION_SET, SERVICE_STATE, CHANNEL_NAME "
    b"FROM performance_schema.replication_connection_status"
)
"""Selects received transactions, state and name of each replication channel."""


def rename_cells(database: str, name: str) -> bytes:
    """Rename the ``cell`` table, so that no program reads or writes it."""
    return b"RENAME TABLE %b TO %b" % (cell_table(database), quoted_table(database, name))


def use_up_id(database: str, name: str, added_id: int) -> bytes:
    """Insert a row with an invalid key to consume an added_id; even after a rollback, new ids are higher.

    Args:
        database: the shard's database.
        name: name of its cell table.
        added_id: the id to consume.
    """
    return b"INSERT INTO %b (added_id,row_key,column_name,ref_key,body) VALUES (%d,%b,'',0,'')" % (
        table(database, name.encode()),
        added_id,
        blob_hex(bytes(16)),
    )


DATABASE_PRIVILEGES: Final = ("SELECT", "INSERT", "UPDATE", "DELETE", "CREATE")
"""Privileges on a whole database in the order of ``select_accounts``."""


def select_accounts(database: str) -> bytes:
    """Select user, host and a Y or N per privilege of the accounts with privileges on a whole database."""
    flags = b", ".join(b"%b_priv" % name.capitalize().encode() for name in DATABASE_PRIVILEGES)
    return b"SELECT User, Host, %b FROM mysql.db WHERE Db IN (%b)" % (
        flags,
        texts([database, database.replace("_", r"\_")]),
    )


def update_incarnation(catalog: str, incarnation: str) -> bytes:
    """Replace the incarnation of a datastore that has a cold store."""
    return update(table(catalog, b"cold_store"), {"incarnation": incarnation})
