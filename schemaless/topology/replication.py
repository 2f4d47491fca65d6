"""Proof that one server replicates from another, and related checks.

A server restored from a backup has the same tables and old GTIDs without being a replica. So a random token is written
on the primary, into a table used for nothing else, and must appear on the replica.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final

from schemaless.errors import AccessDenied, InvalidInput, ServerError
from schemaless.topology.heartbeat import make_tables, read_token, remove_token, write_token
from schemaless.topology.replica_position import gtid_position, wait_for_gtid
from schemaless.topology.sql.replicas import (
    READ_FOR_THREADS,
    SELECT_HAS_THREADS,
    SELECT_THREADS,
    SHOW_THREADS_MARIADB,
    THREADS_MARIADB,
)
from schemaless.wire.accounts import own_grant
from schemaless.wire.connection import Connection
from schemaless.wire.errors import DatabaseMissing
from schemaless.wire.pool import NodePool
from schemaless.wire.sql.sessions import SELECT_READ_ONLY, lock_is_free, release_lock, take_lock

_POLL_S: Final = 0.02
_WAIT_S: Final = 1.0
"""Maximum wait per query, in seconds; it must stay below the pool's read timeout."""


_CONNECTING: Final = "connecting"
_THREAD_STATES: Final = {
    "ON": None,
    "YES": None,
    "OFF": "stopped",
    "NO": "stopped",
    "CONNECTING": _CONNECTING,
    "PREPARING": _CONNECTING,
}
_MAX_MESSAGE: Final = 200


@dataclass(frozen=True, slots=True)
class ReplicaThreads:
    """Replication threads of a replica.

    Attributes:
        running: whether all of them run; None if that is unknown, or if it has none because its storage is shared.
        problem: which thread does not run, or why that is unknown; None if all run.
        is_broken: False if they run, if that is unknown, or if one is only connecting to its primary: servers keep the
            error of an attempt that failed until one succeeds, and there is none.
    """

    running: bool | None
    problem: str | None
    is_broken: bool = False


def replica_threads(pool: NodePool) -> ReplicaThreads:
    """Read whether a replica's threads run. A missing privilege is described in the result, with its GRANT."""

    def ask(connection: Connection) -> ReplicaThreads:
        try:
            if connection.is_mariadb:
                channels = [[row[at] for at in THREADS_MARIADB] for row in connection.rows(SHOW_THREADS_MARIADB)]
            else:
                channels = [list(row) for row in connection.rows(SELECT_THREADS)]
        except AccessDenied:
            return ReplicaThreads(None, f"unknown whether it replicates; run on that server: {_missing(connection)}")
        if not channels and not connection.is_mariadb:
            readable, shared = connection.rows(SELECT_HAS_THREADS)[0]
            if shared:
                return ReplicaThreads(None, "it has no replication threads; its storage is shared")
            if not readable:
                return ReplicaThreads(None, "unknown whether it replicates: its performance_schema is off")
        if not channels:
            lost = "it replicates from no server; remove it from the catalog, or start it again"
            return ReplicaThreads(False, lost, is_broken=True)
        problems = sorted(
            (problem for channel in channels for problem in _problems(*channel)), key=lambda each: not each[1]
        )
        problem, is_broken = problems[0] if problems else (None, False)
        return ReplicaThreads(problem is None, problem, is_broken)

    return pool.run(ask)


def _problems(
    receiver: str, receiver_error: Any, message: str, applier: str, applier_error: Any
) -> Iterator[tuple[str, bool]]:
    """Yield which threads do not run, and whether that is a fault.

    The applier's message is left out: it may contain keys of cells.
    """
    for thread, state, error, text in (
        ("its IO thread, which receives transactions", receiver, receiver_error, message[:_MAX_MESSAGE]),
        ("its SQL thread, which applies transactions", applier, applier_error, "see SHOW REPLICA STATUS there"),
    ):
        wrong = _THREAD_STATES.get(state.upper(), f"in the unknown state {state}")
        if wrong is not None and int(error or 0):
            yield f"{thread}, is {wrong} (error {error}: {text})", True
        elif wrong == _CONNECTING:
            yield f"{thread}, is connecting to its primary; no attempt has failed", False
        elif wrong is not None:
            yield f"{thread}, is {wrong}", True


def _missing(connection: Connection) -> str:
    if connection.is_mariadb:
        return own_grant(connection, "SLAVE MONITOR")
    return "; ".join(own_grant(connection, "SELECT", f"performance_schema.{table}") for table in READ_FOR_THREADS)


def is_same_server(one: NodePool, other: NodePool) -> bool:
    """Return True if two addresses lead to the same server: a named lock taken through one is seen through the other.

    Raises:
        ServerError: one of the addresses cannot be reached.
    """
    name = f"schemaless-{secrets.token_hex(16)}"
    # If the block fails, the connection is closed, which releases the lock.
    with one.connection() as holder, holder.whole():
        holder.rows(take_lock(name, 0))
        rows = other.rows(lock_is_free(name))
        holder.rows(release_lock(name))
    return not rows[0][0]


def require_different(pools: Iterable[NodePool]) -> None:
    """Check that no two addresses, of which each is to be a cluster's primary, lead to the same server.

    Raises:
        InvalidInput: two of them do.
        ServerError: one of the addresses cannot be reached.
    """
    for one, other in combinations(pools, 2):
        if is_same_server(one, other):
            raise InvalidInput(
                f"{one.node} and {other.node} are the same server under two addresses; each cluster needs its own. "
                "Nothing was written"
            )


def is_read_only(pool: NodePool) -> bool:
    """Return True if a server is read-only, as replicas are."""
    return bool(pool.rows(SELECT_READ_ONLY)[0][0])


def has_caught_up_with(pool: NodePool, primary: NodePool, timeout_s: float) -> bool:
    """Wait until a server has applied everything that ``primary`` has committed so far.

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
    with token_on(primary, datastore, cluster) as (writer, token):
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


@contextmanager
def token_on(primary: NodePool, datastore: str, cluster: str) -> Iterator[tuple[str, bytes]]:
    """Commit a new token on a primary for the block, which receives its writer and the token itself.

    Creates the table of tokens if needed.
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
        yield writer, token
    finally:
        with suppress(ServerError):  # a leftover row is deleted after a day
            primary.run(lambda connection: remove_token(connection, datastore, cluster, writer))
