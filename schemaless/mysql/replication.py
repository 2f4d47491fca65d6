"""What tells a replica of a server from a stranger: is it another server, and does it get what is committed there.

A stranger may have been restored from a backup, with every table and every old GTID in it. So a random token is written
on the primary, into a table that holds nothing else, and has to appear on the replica.
"""

from __future__ import annotations

import secrets
import time
from functools import cache
from typing import Final

from sqlalchemy.dialects import mysql
from sqlalchemy.schema import CreateTable

from schemaless.cluster.topology import heartbeat_database
from schemaless.errors import AccessDenied
from schemaless.mysql import statements
from schemaless.mysql.errors import DatabaseMissing
from schemaless.mysql.pool import NodePool
from schemaless.mysql.schema import create_database
from schemaless.mysql.tables import heartbeat
from schemaless.mysql.writers import gtid_position, wait_for_gtid

_POLL_S: Final = 0.02
_WAIT_S: Final = 1.0
"""How long a server is asked to wait at a time; a reply may not take longer than the pool allows."""


def is_same_server(one: NodePool, other: NodePool) -> bool:
    """Whether two addresses lead to one server: a named lock that is taken through the one is seen through the other.

    Raises:
        ServerError: one of them cannot be reached.
    """
    name = statements.text(f"schemaless-{secrets.token_hex(16)}")
    with one.connection() as holder:
        holder.rows(b"SELECT GET_LOCK(%b, 0)" % name)
        try:
            rows = other.run(lambda connection: connection.rows(b"SELECT IS_FREE_LOCK(%b)" % name))
        finally:
            holder.rows(b"SELECT RELEASE_LOCK(%b)" % name)
    return not rows[0][0]


def is_read_only(pool: NodePool) -> bool:
    """Whether a server is set read-only, as replicas are."""
    return bool(pool.run(lambda connection: connection.rows(b"SELECT @@global.read_only"))[0][0])


def has_everything_of(pool: NodePool, primary: NodePool, timeout_s: float) -> bool:
    """Wait until a server has applied all that ``primary``, which takes no more writes, had committed.

    Returns:
        False where it has not in time.

    Raises:
        FeedRefused: the primary writes no GTIDs.
    """
    position = primary.run(gtid_position)
    give_up_s = time.monotonic() + timeout_s
    wait_s = max(0.01, min(_WAIT_S, timeout_s))  # 0 would be for ever
    while True:
        if pool.run(lambda connection: wait_for_gtid(connection, position, wait_s)):
            return True
        if time.monotonic() >= give_up_s:
            return False


def follows(replica: NodePool, primary: NodePool, datastore: str, cluster: str, timeout_s: float) -> float | None:
    """Wait until a token that is committed on ``primary`` appears on ``replica``.

    Writes to the heartbeat table of the cluster, and makes it where it is missing.

    Returns:
        How long it took, in seconds; None where it did not appear in time.

    Raises:
        ServerError: a server cannot be reached, or refuses.
    """
    token = secrets.token_bytes(16)
    _write_token(primary, datastore, cluster, token)
    began_s = time.monotonic()
    while True:
        denied = None
        try:
            if _read_token(replica, datastore, cluster) == token:
                return time.monotonic() - began_s
        except AccessDenied as error:
            # Accounts and what they may do arrive by replication as well.
            denied = error
        if time.monotonic() - began_s >= timeout_s:
            if denied is not None:
                raise denied
            return None
        time.sleep(_POLL_S)


def _write_token(pool: NodePool, datastore: str, cluster: str, token: bytes) -> None:
    database = heartbeat_database(datastore)
    values = b"token=x'%b', written_at=UTC_TIMESTAMP(6)" % token.hex().encode()
    sql = b"INSERT INTO `%b`.heartbeat SET cluster=%b, %b ON DUPLICATE KEY UPDATE %b" % (
        database.encode(),
        statements.text(cluster),
        values,
        values,
    )
    try:
        pool.run(lambda connection: connection.execute(sql))
    except DatabaseMissing:
        create_database(pool, database)
        pool.run(lambda connection: connection.execute(_create_heartbeat(database)))
        pool.run(lambda connection: connection.execute(sql))


def _read_token(pool: NodePool, datastore: str, cluster: str) -> bytes | None:
    sql = b"SELECT token FROM `%b`.heartbeat WHERE cluster=%b" % (
        heartbeat_database(datastore).encode(),
        statements.text(cluster),
    )
    try:
        rows = pool.run(lambda connection: connection.rows(sql))
    except DatabaseMissing:
        return None
    return rows[0][0] if rows else None


@cache
def _create_heartbeat(database: str) -> bytes:
    text = str(CreateTable(heartbeat, if_not_exists=True).compile(dialect=mysql.dialect()))
    return text.replace("IF NOT EXISTS heartbeat", f"IF NOT EXISTS `{database}`.heartbeat", 1).encode()
