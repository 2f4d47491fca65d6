"""Checks whether the servers of a datastore answer."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import NamedTuple

from schemaless.base.numbers import check_number
from schemaless.errors import SchemalessError
from schemaless.topology.shards import Shards
from schemaless.wire.node import Node
from schemaless.wire.pool import PoolOptions
from schemaless.wire.sql.sessions import SELECT_READ_ONLY


@dataclass(frozen=True, slots=True)
class Ping:
    """Whether one server answers, as returned by ``Datastore.ping``.

    Attributes:
        server: the server's address.
        role: ``primary`` or ``replica``, or ``catalog`` for a server that only has the catalog.
        cluster: name of its cluster; None for a catalog.
        latency_s: time to connect, log in and query, in seconds; None if the server did not answer.
        read_only: whether the server refuses writes; None if it did not answer.
        error: the error, if it did not answer, refused the login, or is a primary without its claim.
    """

    server: str
    role: str
    cluster: str | None
    latency_s: float | None = None
    read_only: bool | None = None
    error: SchemalessError | None = None

    @property
    def ok(self) -> bool:
        """True if the server answered and, unless it is a replica, accepts writes."""
        return self.error is None and (self.role == "replica" or not self.read_only)


class Server(NamedTuple):
    """A server to ping, with the attributes of ``Ping``."""

    node: Node
    role: str
    cluster: str | None


def servers_of(shards: Shards, catalog: Node) -> list[Server]:
    """Return the servers of all clusters, and the catalog's if it has no shards."""
    servers = [
        Server(node, node.role, cluster.name)
        for cluster in shards.topology.clusters
        for node in (cluster.primary, *cluster.replicas)
    ]
    address = catalog.having("primary")
    if any(server.node.having("primary") == address for server in servers):
        return servers
    return [*servers, Server(address, "catalog", None)]


def ping_server(shards: Shards, server: Server, timeout_s: float) -> Ping:
    """Connect to a server and query it, without the pooled connections and circuit breaker of other calls.

    Raises:
        InvalidInput: the timeout is invalid.
    """
    check_number("timeout_s", timeout_s)
    options = PoolOptions(timeout_s, timeout_s, timeout_s, 1, timeout_s)
    pool = shards.pools.new_pool(server.node, options, own_breaker=True)
    address, started_s = str(server.node), time.monotonic()
    try:
        rows = pool.run(lambda connection: connection.rows(SELECT_READ_ONLY))
    except SchemalessError as error:
        return Ping(address, server.role, server.cluster, error=error)
    finally:
        pool.close()
    return Ping(address, server.role, server.cluster, time.monotonic() - started_s, bool(int(rows[0][0])))
