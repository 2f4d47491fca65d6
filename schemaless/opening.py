"""``connect()``, and ``Opening``: what it takes to open a datastore, here or in another process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from schemaless.cells.column_codecs import ColumnSetting, settings
from schemaless.codec.envelope import DEFAULT_LIMITS, Limits
from schemaless.datastore import Datastore
from schemaless.internals import Internals, internals_of
from schemaless.topology.catalog import find_catalog, read_ready
from schemaless.topology.configuration import configured, datastore_url
from schemaless.topology.model import Cluster, Topology
from schemaless.topology.routing import CatalogReader
from schemaless.topology.shards import Shards
from schemaless.wire.node import Node
from schemaless.wire.pool import PoolOptions
from schemaless.wire.pools import Pools
from schemaless.wire.secret import Secret
from schemaless.wire.urls import ServerURL


def connect(
    url: str,
    *,
    connect_timeout_s: float | None = None,
    read_timeout_s: float | None = None,
    write_timeout_s: float | None = None,
    pool_size: int | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> Datastore:
    """Open a datastore.

    Args:
        url: the catalog's server and the datastore's name, such as ``mysql://app@db-1:3306/mezzanine`` or
            ``mysql://app@/mezzanine?unix_socket=/run/mysqld.sock``; or a name that the configuration file gives to
            such a URL, as ``schemaless config`` shows it. It may name several servers for the catalog
            (``mysql://app@db-1,db-2/mezzanine``, or sockets with commas): the first that has it and takes writes is
            used. The account serves for every node of the datastore;
            a password stands in the URL, in ``SCHEMALESS_PASSWORD``, or in the option file that the URL names by
            ``?read_default_file=``. ``?ssl_mode=`` and ``?ssl_ca=`` say how connections are encrypted, and what a
            server's certificate has to prove.
        connect_timeout_s: how long a server may take to answer a new connection. This and the next three are, where
            they are not given, what the configuration says for the name, else ``PoolOptions``' own: 10.
        read_timeout_s: how long a reply may take: 60. For writes it should be over the server's waits for locks
            (``innodb_lock_wait_timeout``), or what a lock has held up ends as ``OutcomeUnknown``.
        write_timeout_s: how long sending may take: 60.
        pool_size: connections to each server, at most: 8.
        limits: the largest document to decode.

    Returns:
        An open datastore: a context manager, safe to share between threads and across ``fork``.

    Raises:
        InvalidInput: the URL, the name or the configuration cannot be used.
        DatastoreNotFound: there is no such datastore, or its creation was interrupted.
        TopologyError: the catalog cannot be used by this version.
        ServerError: the catalog's server cannot be reached, or refuses.
    """
    address = Secret(url)
    del url  # a failure's traceback shows the variables of this call
    given = {
        "connect_timeout_s": connect_timeout_s,
        "read_timeout_s": read_timeout_s,
        "write_timeout_s": write_timeout_s,
        "pool_size": pool_size,
    }
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if (configuration := configured(address)) is not None:
        address = configuration.url
        options = {**configuration.settings, **options}
    parsed, _ = datastore_url(address)
    return Opening(parsed, PoolOptions(**options), limits).open()


@dataclass(frozen=True, slots=True)
class Opening:
    """All that it takes to open a datastore: what a job hands to its worker processes, the password sealed for them.

    Attributes:
        url: the catalog's server and the datastore's name, as ``datastore_url`` returns them.
        topology: as the catalog has it; None reads it there.
    """

    url: ServerURL = field(repr=False)
    options: PoolOptions
    limits: Limits
    topology: Topology | None = None

    def open(self) -> Datastore:
        """Open it; raises what ``connect`` raises."""
        pools = Pools(self.url.credentials, self.options)
        name = self.url.database
        assert name is not None
        if self.topology is not None:
            reader = CatalogReader(pools, self.url.nodes, name)
            return Datastore(Internals(Shards(self.topology, pools, catalog=reader), self.url, self.limits))
        try:
            url = find_catalog(self.url, name, pools.pool_for)
            catalog = pools.pool_for(url.node)
            entry = read_ready(catalog, name)
            columns: Sequence[ColumnSetting] | None = settings(catalog, name)
        except BaseException:
            pools.close()
            raise
        reader = CatalogReader(pools, url.nodes, name)
        if not any(_has(cluster, catalog.node) for cluster in entry.topology.clusters):
            # No shard is there, or none by this address, so nothing more may be asked of it for long.
            catalog.close()
        shards = Shards(entry.topology, pools, token=entry.token, catalog=reader)
        own = next((cluster.nodes for cluster in entry.topology.clusters if _has(cluster, catalog.node)), ())
        if len(own) > 1 or url.others:
            # One that was replaced is back with what it had; the others of its cluster know.
            before = shards.routing
            if shards.again(before) is not before:
                columns = None
        return Datastore(Internals(shards, url, self.limits, columns))


def _has(cluster: Cluster, address: Node) -> bool:
    return any(node.having("primary") == address for node in cluster.nodes)


def opening_of(store: Datastore) -> Opening:
    """Return what opens a datastore in another process, without asking the catalog for its shards again."""
    internals = internals_of(store)
    return Opening(internals.url, internals.shards.pools.options, internals.limits, internals.topology)
