"""Writes heartbeats on primaries, to find what no other reading finds: storage that takes no writes, and locks.

All monitors of a cluster share one row, and write it only if it is a second old, one at a time: a named lock shows a
monitor that another one's write hangs, so that no connections pile up behind it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple

from schemaless.base.keys import heartbeat_database
from schemaless.errors import AccessDenied, SchemalessError, ServerError
from schemaless.topology.heartbeat import Beat, read_beat, write_beat
from schemaless.topology.model import Cluster
from schemaless.wire.accounts import granting
from schemaless.wire.connection import Connection
from schemaless.wire.errors import ConnectionLost, DatabaseMissing, ReplyTimedOut
from schemaless.wire.node import Node
from schemaless.wire.pool import NodePool, PoolOptions
from schemaless.wire.pools import Pools
from schemaless.wire.sql.sessions import kill, release_lock, select_thread_state, set_session, take_own_lock
from schemaless.wire.transactions import naming_users

_EVERY_S: Final = 1.0
"""Minimum age of a heartbeat before the next one is written, in seconds."""

_LOCK_WAIT_S: Final = 1
"""How long a write waits for locks and for other monitors, in seconds; less than the timeout for its reply."""

_TIMEOUT_S: Final = 3.0
_OPTIONS: Final = PoolOptions(
    connect_timeout_s=2, read_timeout_s=_TIMEOUT_S, write_timeout_s=_TIMEOUT_S, pool_size=1, pool_timeout_s=2
)
_SETTINGS: Final = set_session({"lock_wait_timeout": _LOCK_WAIT_S, "innodb_lock_wait_timeout": _LOCK_WAIT_S})


class Write(NamedTuple):
    """The last write on a primary.

    Attributes:
        took_s: duration of this monitor's last write, in seconds; None before the first.
        beat: the newest heartbeat, whichever monitor wrote it; None if there is none.
        problem: why writing failed, or why it hangs; None if it did not.
        untried: why no heartbeat is written; None if one is.
    """

    took_s: float | None = None
    beat: Beat | None = None
    problem: str | None = None
    untried: str | None = None


class WriteProbe:
    """Writes a cluster's heartbeat, on a connection of its own.

    Args:
        pools: makes the connections.
        pool_for: returns the connections with which servers are read.
        datastore: name of the datastore.
    """

    def __init__(self, pools: Pools, pool_for: Callable[[Node], NodePool], datastore: str) -> None:
        self._pools = pools
        self._pool_for = pool_for
        self._datastore = datastore
        self._own: dict[Node, NodePool] = {}
        self._took_s: dict[Node, float] = {}
        self._threads: dict[Node, int] = {}

    def close(self) -> None:
        """Close all connections."""
        for pool in self._own.values():
            pool.close()

    def __call__(self, cluster: Cluster) -> Write:
        """Write a heartbeat on a cluster's primary, if the last one is old enough; wait for a few seconds at most."""
        problem, untried, primary = None, None, cluster.primary
        try:
            try:
                self._write(cluster)
            except ReplyTimedOut:
                raise
            except ConnectionLost:  # an idle connection that the server has closed since
                self._write(cluster)
        except ReplyTimedOut:
            problem = f"a test write got no reply in {_TIMEOUT_S:g} s{self._kill(primary)}"
        except AccessDenied as denied:
            untried = f"no test write: {denied.message}"
        except DatabaseMissing as missing:
            untried = f"no test write: {missing.message}"
        except ServerError as error:
            problem = f"a test write failed: {error.message}"
        except SchemalessError as error:
            problem = f"a test write failed: {error}"
        beat = None
        with suppress(SchemalessError):
            beat = self._pool_for(primary).run(lambda connection: read_beat(connection, self._datastore, cluster.name))
        return Write(self._took_s.get(primary), beat, problem, untried)

    @contextmanager
    def connection(self, primary: Node) -> Iterator[Connection]:
        """Lend a connection on which each statement waits for a few seconds at most."""
        if primary not in self._own:
            self._own[primary] = self._pools.new_pool(primary, _OPTIONS, own_breaker=True)
        with self._own[primary].connection() as connection:
            connection.ensure(_SETTINGS)
            yield connection

    def _write(self, cluster: Cluster) -> None:
        database = heartbeat_database(self._datastore)
        with self.connection(cluster.primary) as connection, connection.whole():
            name = f"beat.{database}"
            granted, thread = connection.rows(take_own_lock(name, _LOCK_WAIT_S))[0]
            if granted != 1:
                raise ServerError(f"another monitor's has been waiting for {_LOCK_WAIT_S} s", node=connection.node)
            self._threads[cluster.primary] = int(thread)
            self._beat(connection, cluster, database)
            connection.rows(release_lock(name))

    def _beat(self, connection: Connection, cluster: Cluster, database: str) -> None:
        began_s = time.monotonic()
        with (
            naming_users(connection, database),
            granting(connection, "write heartbeats", "SELECT, INSERT, UPDATE", f"`{database}`.`heartbeat_token`"),
        ):
            written = write_beat(connection, self._datastore, cluster.name, _EVERY_S)
        if written:
            self._took_s[cluster.primary] = time.monotonic() - began_s

    def _kill(self, primary: Node) -> str:
        """End the connection of a write that hangs; return its state in words, if the server tells it."""
        thread = self._threads[primary]

        def end(connection: Connection) -> str:
            rows = connection.rows(select_thread_state(thread, mariadb=connection.is_mariadb))
            if rows:
                connection.execute(kill(thread))
            return f" (thread {thread}: {rows[0][0]})" if rows and rows[0][0] else ""

        try:
            return self._pool_for(primary).run(end)
        except SchemalessError:
            return ""
