"""The current routing of a datastore, and its refreshes from the catalog."""

from __future__ import annotations

import logging
import math
import os
import random
import re
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final

from schemaless.base.logger import log
from schemaless.errors import PrimaryNotClaimed, SchemalessError, ServerError, ServerUnavailable, TopologyError
from schemaless.schema.databases import SHARD_TABLES
from schemaless.topology.model import Topology
from schemaless.topology.routing import CatalogReader, Routing
from schemaless.wire.errors import DatabaseMissing, Elsewhere, ServerReplaced
from schemaless.wire.node import Node
from schemaless.wire.pools import Pools

REFRESH_S: Final = 30.0
"""Interval between routing refreshes while no error occurs, in seconds, before jitter."""

_JITTER: Final = (0.75, 1.25)

MAX_REFRESH_INTERVAL_S: Final = REFRESH_S * _JITTER[1]
"""Longest time that a process making calls goes without refreshing its routing, in seconds."""

_REJECTED_REFRESH_S: Final = 0.1
_MISSING_TABLE: Final = re.compile(r"\.(\w+)' doesn't exist")


class Router:
    """Holds the routing, refreshes it from the catalog, and decides whether an error means that a shard has moved.

    Attributes:
        routing: the current routing; replaced as a whole.
        look_at_s: time of the next refresh if no error causes an earlier one, by ``time.monotonic``.
        awaited_at_s: last time that a call waited for a shard that is being moved, by ``time.monotonic``.
        keeps_connection: whether the connection to the catalog stays open after a refresh, for those who refresh often.
        known_tables: callback for tables that not every shard has, such as index tables. It returns True if a missing
            table should exist, which means that the shard may have moved; it may raise a more specific error.
    """

    def __init__(self, topology: Topology, pools: Pools, token: bytes | None, catalog: CatalogReader | None) -> None:
        self.known_tables: Callable[[int, str], bool] | None = None
        self.awaited_at_s: float = -math.inf
        self.keeps_connection: bool = False
        self._name = topology.name
        self._pools = pools
        self._catalog = catalog
        self._read_at_s = self._read_end_s = -math.inf
        self._unreadable = False
        # One lock per process, because a fork may leave it locked.
        self._refresh_locks: dict[int, AbstractContextManager[Any]] = {}
        self.routing: Routing = Routing(topology, token, self)
        self._require_claims(self.routing)
        pools.when_replaced(self._server_replaced)
        self.look_at_s: float = self._next_refresh_s()

    def close(self) -> None:
        """Close the connection to the catalog."""
        if self._catalog is not None:
            self._catalog.close()

    @property
    def catalog(self) -> Node | None:
        """Last known server of the catalog; None for a fixed topology."""
        return None if self._catalog is None else self._catalog.home

    def refresh_if_due(self) -> None:
        """Refresh the routing if a refresh is due; concurrent calls continue with the old one.

        For long-running work that does not call ``run``, which does this by itself.
        """
        if time.monotonic() < self.look_at_s:
            return
        # Set this first, so that concurrent calls do not refresh as well.
        self.look_at_s = self._next_refresh_s()
        try:
            with self._refresh_lock():
                self._read(thorough=False)
        except BaseException:
            # The caller was interrupted or cancelled, so the next call refreshes.
            self.look_at_s = -math.inf
            raise

    def again(self, used: Routing) -> Routing:
        """Refresh the routing from the catalog and return it; concurrent callers share one read.

        If the catalog does not answer, the routing stays unchanged.

        Args:
            used: the routing that the caller used.
        """
        if self._catalog is None:
            return self.routing
        called_at_s = time.monotonic()
        with self._refresh_lock():
            # Another caller's read is recent enough if it began after this caller's error.
            if self.routing is used and self._read_at_s < called_at_s:
                self._read()
        return self.routing

    def _server_replaced(self, node: Node) -> None:
        """Forget what is known about the shards of a server, because its address leads to another one."""
        with self._refresh_lock():
            before = self.routing
            self.routing = Routing(before.topology, before.token, self, before, node)

    def _refresh_lock(self) -> AbstractContextManager[Any]:
        return self._refresh_locks.setdefault(os.getpid(), self._pools.runtime.lock())

    def _next_refresh_s(self) -> float:
        if self._catalog is None:
            return math.inf
        return time.monotonic() + REFRESH_S * random.uniform(*_JITTER)  # noqa: S311 - jitter

    def _require_claims(self, routing: Routing) -> None:
        replicas = [node.having("primary") for cluster in routing.topology.clusters for node in cluster.replicas]
        self._pools.require_claims(routing.claims(), replicas)

    def confirm(self, node: Node, shard: int) -> None:
        """Check that the last attempt to read the catalog succeeded.

        Raises:
            ServerUnavailable: it failed.
        """
        if self._unreadable:
            raise ServerUnavailable(
                "connections to the server were lost, and the catalog cannot be read to confirm that the "
                "server is still the primary, so nothing was sent; check that the catalog's server is running",
                node=str(node),
                shard=shard,
            )

    def _read(self, *, thorough: bool = True) -> None:
        """Read the catalog and replace the routing if it has changed. Call it with the refresh lock held."""
        assert self._catalog is not None
        began_s, before = time.monotonic(), self.routing
        try:
            entry = self._catalog.changed_since(before, thorough=thorough)
            if entry is not None:
                if (entry.topology.name, entry.topology.shard_count) != (self._name, before.topology.shard_count):
                    raise TopologyError(
                        f"the catalog now describes another datastore: {entry.topology.name!r} with "
                        f"{entry.topology.shard_count} shards"
                    )
                if before.token is not None and entry.topology == before.topology:
                    # Only the token is new: 'topology set-primary' named the same address again.
                    self._pools.replace_connections()
                after = Routing(entry.topology, entry.token, self, before)
                # Claims first: no call may use the new routing before its claims are required.
                self._require_claims(after)
                self.routing = after
                moved = sum(
                    old.primary != new.primary for old, new in zip(before.clusters, after.clusters, strict=True)
                )
                nodes = {cluster.name: cluster.nodes for cluster in before.topology.clusters}
                others = [c.name for c in after.topology.clusters if c.nodes != nodes.get(c.name)]
                # A move is reported for each shard (INFO), a failover once per cluster (WARNING).
                level = logging.WARNING if others else logging.INFO
                what = f"{moved} shards are on another server" if moved else f"other servers in {', '.join(others)}"
                if moved or others:
                    log.log(level, "the topology of %r has changed: %s", self._name, what)
            self._unreadable = False
        except SchemalessError as error:
            # Warn once: the catalog is read after every error that a move or failover could explain.
            level, self._unreadable = logging.DEBUG if self._unreadable else logging.WARNING, True
            log.log(level, "cannot check whether the topology of %r has changed: %s", self._name, error)
        finally:
            self._read_at_s = began_s
            self._read_end_s = time.monotonic()
            # Keep the connection while calls wait for a shard and poll the catalog.
            if not self.keeps_connection and time.monotonic() - self.awaited_at_s > 1:
                self._catalog.close()

    def moved(self, routing: Routing, error: ServerError, node: Node, shard: int) -> Elsewhere | None:
        """Find out from the catalog whether a shard has moved, after an error; return an ``Elsewhere`` if so."""
        missing = error if isinstance(error, DatabaseMissing) else None
        if missing is not None:
            named = _MISSING_TABLE.search(missing.message)
            if (
                named is not None
                and named[1] not in SHARD_TABLES
                and (self.known_tables is None or not self.known_tables(shard, named[1]))
            ):
                return None
        rejected = (
            isinstance(error, ServerUnavailable)
            and error.retry_after_s is not None
            and not isinstance(error, PrimaryNotClaimed)
        )
        # Calls that an open breaker rejects are frequent, so together they read the catalog at most ten times a second.
        refresh = not rejected or time.monotonic() - self._read_end_s > _REJECTED_REFRESH_S
        now = self.again(routing) if refresh else self.routing
        replaced = isinstance(error, ServerReplaced)
        if replaced or now.changes[shard] != routing.changes[shard] or not now.has_on(shard, node):
            primary, before = now.clusters[shard].primary, routing.clusters[shard].primary
            what = "its servers have changed" if primary == before else f"the catalog now names {primary} for the shard"
            message = f"{what}; make the same call again"
            return Elsewhere(message, node=str(node), shard=shard)
        if missing is None:
            return None
        return Elsewhere(missing.message, node=str(node), shard=shard, missing=missing)
