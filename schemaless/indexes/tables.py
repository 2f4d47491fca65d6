"""What is asked before an index's tables are used: whether they are the index's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from schemaless.errors import SchemaMismatch
from schemaless.indexes import sql
from schemaless.indexes.registry import IndexEntry
from schemaless.internals import Internals
from schemaless.topology.routing import Spot
from schemaless.topology.scatter_gather import prove
from schemaless.topology.shards import Shards
from schemaless.wire.connection import Rows
from schemaless.wire.errors import Elsewhere
from schemaless.wire.node import Node


def check_tables(internals: Internals, entry: IndexEntry, of: Iterable[int]) -> None:
    """See, once for each shard in each place, that its table of an index is the one that the definition makes.

    Raises:
        SchemaMismatch: its comment is the digest of another definition.
    """
    shards, checked = internals.shards, internals.registry.checked
    by_node: dict[Node, dict[str, tuple[int, int, int]]] = {}
    of_node: dict[Node, Spot] = {}
    for shard in of:
        spot = shards.spot(shard)
        key = (*spot.place, entry.number)
        if key not in checked:
            prove(shards, shard)
            by_node.setdefault(spot.node, {})[shards.database(shard)] = key
            of_node.setdefault(spot.node, spot)
    for node, keys in by_node.items():
        for database, comment in _comments(shards, of_node[node], keys, entry.number):
            if str(comment) != entry.definition.digest:
                raise SchemaMismatch(
                    f"{database}.{sql.index_table(entry.number)} on {node} is not of index {entry.name} as the catalog "
                    "has it: was one of the two restored from an earlier backup? 'schemaless index drop' it and create "
                    "it again; nothing was read or written"
                )
            checked.add(keys[str(database)])


def _comments(shards: Shards, spot: Spot, keys: Mapping[str, tuple[int, int, int]], number: int) -> Rows:
    """Read the comments of the tables of databases that are on one server, of which one shard is asked after."""
    statement = sql.select_comments(keys, number)
    try:
        pool = shards.pool_for(spot.node)
        return pool.run(lambda connection: connection.rows(statement), shard=spot.shard, route=spot.routing)
    except Elsewhere:
        # One by one, wherever they are by now.
        selects = ((shard, sql.select_comments([database], number)) for database, (shard, *_) in keys.items())
        return tuple(row for shard, select in selects for row in shards.rows(shard, select))
