"""Finds cells lost in a failover: cells that exist only on the old primary, which must be reachable again.

Blocks of ids and keys are compared by digests that the servers compute, and cell by cell where the digests differ.
Nothing is written; ``load`` writes the cells again, and reports for each whether it was created, already existed, or
conflicted with another document.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Final

from schemaless.base.events import Advanced, Listener, Total, ignore_events
from schemaless.cell import StoredCell
from schemaless.codec.references import same_stored_document
from schemaless.errors import TopologyError
from schemaless.ops.failover.change import server_of
from schemaless.schema.databases import databases_like, tables_of, verify_identity
from schemaless.store.cells.paging import PageSize, Scan
from schemaless.store.cells.reading import PLACE
from schemaless.store.cells.sql import Row, select_block_end, select_cells, select_id_span, select_keys_digest
from schemaless.store.datastore import Datastore
from schemaless.store.internals import Internals, internals_of
from schemaless.topology.lost_primaries import lost_primaries, settle
from schemaless.topology.replication import is_same_server
from schemaless.wire.connection import Check, Rows
from schemaless.wire.pool import NodePool, PoolOptions

_BLOCK_ROWS: Final = 10_000
_KEYS_AT_ONCE: Final = 200


def lost_cells(store: Datastore, old: str, *, listener: Listener = ignore_events) -> Iterator[StoredCell]:
    """Yield the old primary's cells that the datastore lacks, or has with another document.

    Args:
        store: the datastore.
        old: the old primary's URL. The datastore's account is used.
        listener: receives the total number of ids to compare, and progress events, whose unit is ids.

    Raises:
        InvalidInput: the URL cannot be used.
        TopologyError: the server is a primary of the datastore, or has none of its shards.
        ShardIdentityMismatch: it has a shard of another datastore.
        ServerError: a server cannot be reached, or rejects a statement.
    """
    internals = internals_of(store)
    pool = internals.shards.pools.new_pool(server_of(internals.url, old), PoolOptions(), unclaimed=True)
    try:
        for cluster in internals.topology.clusters:
            if is_same_server(pool, internals.shards.pool_for(cluster.primary)):
                raise TopologyError(
                    f"{pool.node} is the primary of {cluster.name}, so all its cells are in the datastore; name the "
                    "server that was the primary before"
                )
        shards = _shards_on(pool, internals)
        spans = {shard: int(pool.rows(select_id_span(internals.shards.database(shard)))[0][1] or 0) for shard in shards}
        listener(Total(sum(spans.values())))
        for shard in shards:
            yield from _of_shard(pool, internals, shard, spans[shard], listener)
    finally:
        pool.close()


def settle_lost(store: Datastore, old: str) -> list[str]:
    """Record that the cells lost with an old primary have been loaded or given up; the server need not answer.

    Dictionaries cannot be removed until then.

    Args:
        store: the datastore; its account needs the role ``admin``.
        old: the old primary's URL, as it was in the catalog.

    Returns:
        The clusters for which this server was recorded as lost.
    """
    internals = internals_of(store)
    node = server_of(internals.url, old)
    return [
        cluster.name
        for cluster in internals.topology.clusters
        if settle(internals.shards.pool_for(cluster.primary), store.name, cluster.name, node)
    ]


def unsettled(store: Datastore) -> list[str]:
    """Return the addresses of lost primaries for which ``settle_lost`` has not been called yet."""
    internals = internals_of(store)
    lost = [
        lost_primaries(internals.shards.pool_for(cluster.primary), store.name)
        for cluster in internals.topology.clusters
    ]
    return list(dict.fromkeys(server for part in lost for _, server in part))


def _shards_on(pool: NodePool, internals: Internals) -> list[int]:
    """Return the shards that a server has, after checking their identity."""
    topology = internals.topology
    databases = set(databases_like(pool, topology.name))
    shards = []
    for shard in range(topology.shard_count):
        database = internals.shards.database(shard)
        if database in databases and "cell" in tables_of(pool, database):
            verify_identity(pool, database, topology.identity(shard))
            shards.append(shard)
    if not shards:
        raise TopologyError(
            f"{pool.node} has no shard of {topology.name!r} that this account can read; check that this server was a "
            "primary, and that it was not rebuilt"
        )
    return shards


def _of_shard(pool: NodePool, internals: Internals, shard: int, span: int, listener: Listener) -> Iterator[StoredCell]:
    """Yield the lost cells of a shard."""
    database = internals.shards.database(shard)
    after = 0

    def read(sql: bytes, check: Check | None = None) -> Rows:
        return pool.run(lambda connection: connection.rows(sql, check), shard=shard)

    while True:
        last, count = read(select_block_end(database, after, _BLOCK_ROWS))[0]
        if not count:
            listener(Advanced(span - after))
            return
        digest = select_keys_digest(database, after, int(last))
        if read(digest) != internals.shards.rows(shard, digest):
            scan = Scan(partial(pool.run, shard=shard), database, PageSize())
            cells = _stored(internals, shard, scan.rows(after, int(last)))
            while part := list(islice(cells, _KEYS_AT_ONCE)):
                yield from _compared(internals, shard, part)
        listener(Advanced(int(last) - after))
        after = int(last)


def _compared(internals: Internals, shard: int, cells: list[StoredCell]) -> Iterator[StoredCell]:
    """Yield the cells that the datastore lacks, or has with another document, except those that it has erased."""
    wanted = [(cell.row_key.bytes, cell.column_name, cell.ref_key) for cell in cells]
    sql = select_cells(internals.shards.database(shard), wanted)
    rows = internals.reader.select(shard, sql, wanted, PLACE, cold=False)
    by_key = {(cell.row_key.bytes, cell.column_name, cell.ref_key): cell for cell in _stored(internals, shard, rows)}
    for key, cell in zip(wanted, cells, strict=True):
        stored = by_key.get(key)
        if stored is not None and stored.erased:
            continue
        if stored is None or not (
            stored.body == cell.body or same_stored_document(stored, cell, internals.dictionaries)
        ):
            yield cell


def _stored(internals: Internals, shard: int, rows: Iterable[Row]) -> Iterator[StoredCell]:
    return (internals.reader.stored(row, shard) for row in rows)
