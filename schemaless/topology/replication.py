"""What tells a replica of a server from a stranger: is it another server, and does it get what is committed there.

A stranger may have been restored from a backup, with every table and every old GTID in it. So a random token is written
on the primary, into a table that holds nothing else, and has to appear on the replica.
"""

from __future__ import annotations

import secrets
import time
from contextlib import suppress
from typing import Final

from schemaless.errors import AccessDenied, ServerError
from schemaless.topology.heartbeat import make_tables, read_token, remove_token, write_token
from schemaless.topology.replica_position import gtid_position, wait_for_gtid
from schemaless.wire.connection import Connection
from schemaless.wire.errors import DatabaseMissing
from schemaless.wire.pool import NodePool
from schemaless.wire.sql.sessions import SELECT_READ_ONLY, lock_is_free, release_lock, take_lock

_POLL_S: Final = 0.02
_WAIT_S: Final = 1.0
"""A server is asked to wait so long at a time; a reply may not take longer than the pool allows."""


def is_same_server(one: NodePool, other: NodePool) -> bool:
    """Whether two addresses lead to one server: a named lock that is taken through the one is seen through the other.

    Raises:
        ServerError: one of them cannot be reached.
    """
    name = f"schemaless-{secrets.token_hex(16)}"
    # Where the block ends early, the lock goes with the connection.
    with one.connection() as holder, holder.whole():
        holder.rows(take_lock(name, 0))
        rows = other.run(lambda connection: connection.rows(lock_is_free(name)))
        holder.rows(release_lock(name))
    return not rows[0][0]


def is_read_only(pool: NodePool) -> bool:
    """Whether a server is set read-only, as replicas are."""
    return bool(pool.run(lambda connection: connection.rows(SELECT_READ_ONLY))[0][0])


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

    Writes to the table of tokens of the cluster, and makes it where it is missing.

    Returns:
        How long it took, in seconds; None where it did not appear in time.

    Raises:
        ServerError: a server cannot be reached, or refuses.
    """
    token = secrets.token_bytes(16)
    writer = f"proof {token.hex()}"

    def write(connection: Connection) -> None:
        write_token(connection, datastore, cluster, writer, token)

    try:
        primary.run(write)
    except DatabaseMissing:
        make_tables(primary, datastore)
        primary.run(write)
    try:
        return _arrival_s(replica, datastore, cluster, writer, token, timeout_s)
    finally:
        with suppress(ServerError):  # one that stays goes a day later
            primary.run(lambda connection: remove_token(connection, datastore, cluster, writer))


def _arrival_s(
    replica: NodePool, datastore: str, cluster: str, writer: str, token: bytes, timeout_s: float
) -> float | None:
    began_s = time.monotonic()
    while True:
        denied = None
        try:
            if replica.run(lambda connection: read_token(connection, datastore, cluster, writer)) == token:
                return time.monotonic() - began_s
        except AccessDenied as error:
            # Accounts and what they may do arrive by replication as well.
            denied = error
        if time.monotonic() - began_s >= timeout_s:
            if denied is not None:
                raise denied
            return None
        time.sleep(_POLL_S)
