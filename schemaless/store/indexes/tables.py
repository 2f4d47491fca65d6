"""Verify that an index's tables belong to it before they are used, and look up their storage engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from schemaless.base.logger import log
from schemaless.errors import SchemaMismatch
from schemaless.schema.engines import StorageEngine, engine_named
from schemaless.store.indexes import sql
from schemaless.store.indexes.registry import IndexEntry, Registry
from schemaless.topology.routing import Spot
from schemaless.topology.scatter_gather import verify_once
from schemaless.topology.shards import Shards
from schemaless.wire.connection import Rows
from schemaless.wire.errors import Elsewhere
from schemaless.wire.node import Node


def engine_of(shards: Shards, shard: int) -> StorageEngine:
    """Return the storage engine that the catalog records for a shard's cells and index entries."""
    return engine_named(shards.routing.clusters[shard].engine)


def check_tables(shards: Shards, registry: Registry, entry: IndexEntry, numbers: Iterable[int]) -> None:
    """Check that an index's tables in some shards were created from its definition.

    Each table is checked once per server; ``registry.checked`` holds the tables that have passed. A table whose storage
    engine is not its cluster's is logged, but used anyway.

    Raises:
        SchemaMismatch: a table's comment is the digest of another definition.
    """
    by_node: dict[Node, dict[str, tuple[int, int, int]]] = {}
    spots: dict[Node, Spot] = {}
    for shard in numbers:
        spot = shards.spot(shard)
        key = (*spot.place, entry.number)
        if key not in registry.checked:
            verify_once(shards, shard)
            by_node.setdefault(spot.node, {})[shards.database(shard)] = key
            spots.setdefault(spot.node, spot)
    for node, keys in by_node.items():
        elsewhere = []
        for database, comment, engine in _comments(shards, spots[node], keys, entry.number):
            if str(comment) != entry.definition.digest:
                raise SchemaMismatch(
                    f"{database}.{sql.index_table(entry.number)} on {node} was not created from the catalog's "
                    f"definition of index {entry.name}. Nothing was read or written. Was the catalog or the "
                    "shard restored from an earlier backup? Run 'schemaless index drop' and create the index again"
                )
            registry.checked.add(keys[str(database)])
            if str(engine).lower() != spots[node].routing.clusters[keys[str(database)][0]].engine:
                elsewhere.append(f"{database} ({str(engine).lower()})")
        if elsewhere:
            log.warning(
                "tables of index %s on %s do not use the storage engine that the catalog records for their cluster: "
                "%s. They work; 'schemaless index rebuild %s' or a move of their shards converts them",
                entry.name,
                node,
                ", ".join(sorted(elsewhere)),
                entry.name,
            )


def _comments(shards: Shards, spot: Spot, keys: Mapping[str, tuple[int, int, int]], number: int) -> Rows:
    """Read the database, comment and engine of an index's tables on the server of ``spot``."""
    statement = sql.select_comments(keys, number)
    try:
        pool = shards.pool_for(spot.node)
        return pool.run(lambda connection: connection.rows(statement), shard=spot.shard, route=spot.routing)
    except Elsewhere:
        # A shard has moved: ask for each table where its shard is now.
        selects = ((shard, sql.select_comments([database], number)) for database, (shard, *_) in keys.items())
        return tuple(row for shard, select in selects for row in shards.rows(shard, select))
