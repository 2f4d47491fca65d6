"""Proof that one server replicates from another, and related checks.

A server restored from a backup has the same tables and old GTIDs without being a replica. So a random token is written
on the primary, into a table used for nothing else, and must appear on the replica.
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
"""Maximum wait per query, in seconds; it must stay below the pool's read timeout."""


def is_same_server(one: NodePool, other: NodePool) -> bool:
    """Return True if two addresses lead to the same server: a named lock taken through one is seen through the other.

    Raises:
        ServerError: one of the addresses cannot be reached.
    """
    name = f"schemaless-{secrets.token_hex(16)}"
    # If the block fails, the connection is closed, which releases the lock.
    with one.connection() as holder, holder.whole():
        holder.rows(take_lock(name, 0))
        rows = other.run(lambda connection: connection.rows(lock_is_free(name)))
        holder.rows(release_lock(name))
    return not rows[0][0]


def is_read_only(pool: NodePool) -> bool:
    """Return True if a server is read-only, as replicas are."""
    return bool(pool.run(lambda connection: connection.rows(SELECT_READ_ONLY))[0][0])


def has_caught_up_with(pool: NodePool, primary: NodePool, timeout_s: float) -> bool:
    """Wait until a server has applied everything that ``primary``, which must already be read-only, has committed.

    Returns:
        False on a timeout.

    Raises:
        FeedRefused: the primary has GTIDs disabled.
    """
    position = primary.run(gtid_position)
    give_up_s = time.monotonic() + timeout_s
    wait_s = max(0.01, min(_WAIT_S, timeout_s))  # 0 means no timeout
    while True:
        if pool.run(lambda connection: wait_for_gtid(connection, position, wait_s)):
            return True
        if time.monotonic() >= give_up_s:
            return False


def follows(replica: NodePool, primary: NodePool, datastore: str, cluster: str, timeout_s: float) -> float | None:
    """Write a token on ``primary`` and wait until it appears on ``replica``; creates the token table if needed.

    Returns:
        The time until it appeared, in seconds; None on a timeout.

    Raises:
        ServerError: a server cannot be reached, or rejects a statement.
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
        with suppress(ServerError):  # a leftover row is deleted after a day
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
            # The account or its privileges may not have been replicated yet.
            denied = error
        if time.monotonic() - began_s >= timeout_s:
            if denied is not None:
                raise denied
            return None
        time.sleep(_POLL_S)
