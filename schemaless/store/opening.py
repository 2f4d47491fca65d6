"""``connect()``, and ``Opening``: what it takes to open a datastore, here or in another process."""

from __future__ import annotations

from dataclasses import dataclass, field

from schemaless.cluster.topology import Topology
from schemaless.codec.envelope import DEFAULT_LIMITS, Limits
from schemaless.mysql.pool import PoolOptions
from schemaless.mysql.pools import Pools
from schemaless.mysql.secret import Secret
from schemaless.mysql.urls import ServerURL, datastore_url
from schemaless.store.catalog import read_ready
from schemaless.store.datastore import Datastore
from schemaless.store.shards import Shards
from schemaless.store.tools import Tools, tools_of


def connect(
    url: str,
    *,
    connect_timeout_s: float = 10,
    read_timeout_s: float = 60,
    write_timeout_s: float = 60,
    pool_size: int = 8,
    limits: Limits = DEFAULT_LIMITS,
) -> Datastore:
    """Open a datastore.

    Args:
        url: the catalog's server and the datastore's name, such as ``mysql://app@db-1:3306/mezzanine`` or
            ``mysql://app@/mezzanine?unix_socket=/run/mysqld.sock``. The account serves for every node of the datastore;
            a password stands in the URL, in ``SCHEMALESS_PASSWORD``, or in the option file that the URL names by
            ``?read_default_file=``. ``?ssl_mode=`` and ``?ssl_ca=`` say how connections are encrypted, and what a
            server's certificate has to prove.
        connect_timeout_s: how long a server may take to answer a new connection.
        read_timeout_s: how long a reply may take.
        write_timeout_s: how long sending may take.
        pool_size: connections to each server, at most.
        limits: the largest document to decode.

    Returns:
        An open datastore: a context manager, safe to share between threads and across ``fork``.

    Raises:
        InvalidInput: the URL cannot be used.
        DatastoreNotFound: there is no such datastore, or its creation was interrupted.
        TopologyError: the catalog cannot be used by this version.
        ServerError: the catalog's server cannot be reached, or refuses.
    """
    address = Secret(url)
    del url  # a failure's traceback shows the variables of this call
    parsed, _ = datastore_url(address)
    return Opening(parsed, PoolOptions(connect_timeout_s, read_timeout_s, write_timeout_s, pool_size), limits).open()


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
        if self.topology is not None:
            return Datastore(Tools(Shards(self.topology, pools), self.url, self.limits))
        name = self.url.database
        assert name is not None
        catalog = pools.pool_for(self.url.node)
        try:
            entry = read_ready(catalog, name)
        except BaseException:
            pools.close()
            raise
        if all(node.having("primary") != catalog.node for cluster in entry.topology.clusters for node in cluster.nodes):
            # No shard is there, or none by this address, so nothing more may be asked of it for long.
            catalog.close()
        return Datastore(Tools(Shards(entry.topology, pools), self.url, self.limits, entry.columns))


def opening_of(store: Datastore) -> Opening:
    """Return what opens a datastore in another process, without asking the catalog for its shards again."""
    tools = tools_of(store)
    return Opening(tools.url, tools.shards.pools.options, tools.limits, tools.topology)
