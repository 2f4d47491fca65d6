"""Creates a datastore: its catalog first, then its shards in parallel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from schemaless.base.keys import shard_database
from schemaless.base.logger import log
from schemaless.errors import AccessDenied, DatastoreExists, DatastoreNotFound, InvalidInput
from schemaless.schema.creation import catalog_tables, create_shard, create_tables
from schemaless.schema.databases import create_database, databases_like, tables_of
from schemaless.schema.engines import check_server, engine_named, withdrawn_release
from schemaless.topology.catalog import (
    CatalogEntry,
    identities,
    mark_ready,
    read_catalog,
    with_identities,
    write_topology,
)
from schemaless.topology.heartbeat import make_tables
from schemaless.topology.model import Topology, new_topology
from schemaless.topology.replication import require_different
from schemaless.wire.errors import DuplicateKey, reworded
from schemaless.wire.node import Node
from schemaless.wire.parallel import AT_ONCE, on_servers
from schemaless.wire.pool import NodePool, PoolOptions
from schemaless.wire.secret import Secret
from schemaless.wire.urls import ServerURL, parse_url


def create(
    name: str,
    shard_count: int,
    clusters: Sequence[str],
    *,
    engine: str = "innodb",
    on_shard: Callable[[int], None] | None = None,
) -> str:
    """Create a datastore on running servers.

    The catalog is created on the first cluster; the shards are spread evenly over all clusters in contiguous ranges.
    After an interruption, repeating the call continues the creation.

    Args:
        name: 1 to 48 characters of ``[a-z0-9_]``, starting with a letter.
        shard_count: number of shards, 1 to 65,536. It can never be changed, so choose many more shards than servers.
        clusters: URL of each cluster's primary. All clusters use the account of the first.
        engine: storage engine of the cells, "innodb", or "rocksdb" for MyRocks on MariaDB.
        on_shard: called with the number of each shard once it is created.

    Returns:
        The datastore's URL for ``connect``, without the password.

    Raises:
        InvalidInput: an argument is invalid.
        DatastoreExists: a datastore of that name, or a database that it would use, already exists.
        TopologyError: a server does not have the storage engine, or has unsafe settings for it.
        ServerError: a server cannot be reached, or rejects a statement.
    """
    given = None if isinstance(clusters, str) else [Secret(url) for url in clusters]
    del clusters  # a failure's traceback shows the variables of this call
    if given is None:
        raise InvalidInput("clusters must be a list of URLs, one for each primary, got one string")
    urls = [parse_url(url) for url in given]
    topology = new_topology(name, shard_count, [url.node for url in urls], engine_named(engine).name)
    _check_urls(urls)
    options = PoolOptions(pool_size=AT_ONCE)
    pools = {url.node: NodePool(url.node, urls[0].credentials, options) for url in urls}
    catalog = pools[urls[0].node]
    try:
        entry = _catalog_entry(catalog, name)
        if entry is None:
            _refuse_existing(pools.values(), catalog, name)
            require_different(pools.values())
            for node, pool in pools.items():
                check_server(pool, engine)
                if (version := withdrawn_release(pool)) is not None:
                    log.warning(
                        "%s is MySQL %s, which was withdrawn: it does not start again once it has about 8,000 tables, "
                        "and each shard has several; upgrade it before it holds data",
                        node,
                        version,
                    )
            create_database(catalog, name)
            create_tables(catalog, name, "catalog")
            try:
                write_topology(catalog, _identified(topology, pools))
            except DuplicateKey:
                raise DatastoreExists(
                    f"another process is creating {name!r} on {catalog.node} right now; nothing was changed"
                ) from None
        elif entry.ready:
            raise DatastoreExists(
                f"datastore {name!r} already exists on {catalog.node}; nothing was changed. Choose another name"
            )
        elif entry.topology != topology:
            raise DatastoreExists(
                f"an earlier creation of {name!r} on {catalog.node} was interrupted, with "
                f"{entry.topology.shard_count} shard{'s' * (entry.topology.shard_count != 1)} "
                f"on {', '.join(str(cluster.primary) for cluster in entry.topology.clusters)}; "
                "repeat it with those arguments, or drop the databases that it created"
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


def _identified(topology: Topology, pools: Mapping[Node, NodePool]) -> Topology:
    """Return the topology with the identities of its servers."""
    servers = identities(topology.clusters, pools.__getitem__)
    return replace(topology, clusters=tuple(with_identities(cluster, servers) for cluster in topology.clusters))


def _check_urls(urls: Sequence[ServerURL]) -> None:
    for url in urls:
        if url.database is not None:
            raise InvalidInput(f"a cluster's URL names a server, not a database: {url}; omit {url.database!r}")
        if (url.credentials.username, url.credentials.password) != (
            urls[0].credentials.username,
            urls[0].credentials.password,
        ):
            raise InvalidInput(
                f"all clusters share one account: {url} must have the same user and password as {urls[0]}"
            )


def _catalog_entry(catalog: NodePool, name: str) -> CatalogEntry | None:
    """Return the catalog that an earlier call wrote, or None if none was written."""
    try:
        return read_catalog(catalog, name, copied=True)
    except DatastoreNotFound:
        return None
    except AccessDenied as denied:
        if denied.code != 1142:
            raise
        raise reworded(
            denied,
            f"the account cannot create {name!r}; 'schemaless grants --role admin --name {name}' prints the privileges "
            "that it needs",
        ) from denied


def _refuse_existing(pools: Iterable[NodePool], catalog: NodePool, name: str) -> None:
    for pool in pools:
        existing = databases_like(pool, name)
        if pool is catalog and name in existing and tables_of(pool, name) <= catalog_tables():
            # Left by a creation that was interrupted before it wrote the topology.
            existing.remove(name)
        if existing:
            raise DatastoreExists(
                f"{pool.node} already has databases that the datastore {name!r} would use ({', '.join(existing[:3])}"
                f"{', ...' if len(existing) > 3 else ''}), but no catalog for them; "
                "choose another name, or drop these databases if they are not needed"
            )


def _create_shards(topology: Topology, pools: Mapping[Node, NodePool]) -> Iterator[int]:
    def create_one(shard: int) -> int:
        cluster = topology.cluster_of(shard)
        database, engine = shard_database(topology.name, shard), engine_named(cluster.engine)
        create_shard(pools[cluster.primary], database, topology.identity(shard), engine)
        return shard

    shards = ((topology.cluster_of(shard).primary, shard) for shard in range(topology.shard_count))
    return on_servers(shards, create_one)
