"""Creating a datastore: its catalog, then its shards in parallel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from schemaless.errors import AccessDenied, DatastoreExists, DatastoreNotFound, InvalidInput
from schemaless.keys import shard_database
from schemaless.schema.creation import catalog_tables, create_shard, create_tables
from schemaless.schema.databases import Identity, create_database, databases_like, tables_of
from schemaless.topology.catalog import CatalogEntry, mark_ready, read_catalog, write_topology
from schemaless.topology.heartbeat import make_tables
from schemaless.topology.model import Topology, new_topology
from schemaless.wire.errors import DuplicateKey
from schemaless.wire.node import Node
from schemaless.wire.parallel import AT_ONCE, on_servers
from schemaless.wire.pool import NodePool, PoolOptions
from schemaless.wire.secret import Secret
from schemaless.wire.urls import ServerURL, parse_url


def create(
    name: str, shard_count: int, clusters: Sequence[str], *, on_shard: Callable[[int], None] | None = None
) -> str:
    """Create a datastore on running servers.

    The catalog goes to the first cluster; shards are spread evenly, neighbours together. After an interruption the same
    call goes on where it stopped.

    Args:
        name: 1 to 48 of ``[a-z0-9_]``, beginning with a letter.
        shard_count: 1 to 65,536; fixed for ever, so choose many more than there are servers.
        clusters: the URL of each cluster's primary. They share the account of the first.
        on_shard: called with each shard's number when it is there.

    Returns:
        The datastore's URL for ``connect``, with the password left out.

    Raises:
        InvalidInput: an argument cannot be used.
        DatastoreExists: a datastore of that name, or databases that it would use, are there.
        ServerError: a server cannot be reached, or refuses.
    """
    given = [Secret(url) for url in clusters]
    del clusters  # a failure's traceback shows the variables of this call
    urls = [parse_url(url) for url in given]
    topology = new_topology(name, shard_count, [url.node for url in urls])
    _check_urls(urls)
    options = PoolOptions(pool_size=AT_ONCE)
    pools = {url.node: NodePool(url.node, urls[0].credentials, options) for url in urls}
    catalog = pools[urls[0].node]
    try:
        entry = _catalog_entry(catalog, name)
        if entry is None:
            _refuse_existing(pools.values(), catalog, name)
            create_database(catalog, name)
            create_tables(catalog, name, "catalog")
            try:
                write_topology(catalog, topology)
            except DuplicateKey:
                raise DatastoreExists(
                    f"somebody else is creating {name!r} on {catalog.node} at this moment; nothing was changed"
                ) from None
        elif entry.ready:
            raise DatastoreExists(f"datastore {name!r} exists on {catalog.node}; nothing was changed")
        elif entry.topology != topology:
            raise DatastoreExists(
                f"an interrupted creation of {name!r} is on {catalog.node}, with {entry.topology.shard_count} shards "
                f"on {', '.join(str(cluster.primary) for cluster in entry.topology.clusters)}; "
                "repeat it with the same arguments, or drop its databases"
            )
        for pool in pools.values():
            make_tables(pool, name)
        for shard in _create_shards(topology, pools):
            if on_shard is not None:
                on_shard(shard)
        mark_ready(catalog, name)
    finally:
        for pool in pools.values():
            pool.close()
    return urls[0].for_database(name)


def _check_urls(urls: Sequence[ServerURL]) -> None:
    for url in urls:
        if url.database is not None:
            raise InvalidInput(f"a cluster's URL names a server, not a database: {url}; leave {url.database!r} out")
        if (url.credentials.username, url.credentials.password) != (
            urls[0].credentials.username,
            urls[0].credentials.password,
        ):
            raise InvalidInput(f"all clusters share one account, {url} names another than {urls[0]}")


def _catalog_entry(catalog: NodePool, name: str) -> CatalogEntry | None:
    """Return what an earlier call wrote, or None where there is nothing, or nothing but empty tables."""
    try:
        return read_catalog(catalog, name)
    except DatastoreNotFound:
        return None
    except AccessDenied as denied:
        if denied.code != 1142:
            raise
        raise AccessDenied(
            f"the account may not create {name!r}; 'schemaless grants --role admin --name {name}' prints what it needs",
            node=denied.node,
            code=denied.code,
        ) from denied


def _refuse_existing(pools: Iterable[NodePool], catalog: NodePool, name: str) -> None:
    for pool in pools:
        there = databases_like(pool, name)
        if pool is catalog and name in there and tables_of(pool, name) <= catalog_tables():
            # A creation that was interrupted before it had written anything down.
            there.remove(name)
        if there:
            raise DatastoreExists(
                f"{pool.node} has databases that a datastore {name!r} would use ({', '.join(there[:3])}"
                f"{', ...' if len(there) > 3 else ''}), but no catalog that knows them; "
                "choose another name, or drop them if they are nobody's"
            )


def _create_shards(topology: Topology, pools: Mapping[Node, NodePool]) -> Iterator[int]:
    def one(shard: int) -> int:
        identity = Identity(topology.name, shard, topology.shard_count, topology.placement)
        pool = pools[topology.cluster_of(shard).primary]
        create_shard(pool, shard_database(topology.name, shard), identity)
        return shard

    shards = ((topology.cluster_of(shard).primary, shard) for shard in range(topology.shard_count))
    return on_servers(shards, one)
