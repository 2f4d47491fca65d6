"""Checks of the tables on both servers before a move begins."""

from __future__ import annotations

from collections.abc import Sequence

from schemaless.ops.move.fence import Side, index_tables
from schemaless.ops.move.index_tables import refusal_of_indexes
from schemaless.ops.move.spec import CREATED_NEW, TABLES
from schemaless.schema.sql import select_version
from schemaless.schema.versions import head
from schemaless.store.indexes.registry import IndexEntry
from schemaless.wire.connection import Connection

_CREATED_NEW = frozenset(name for name, treatment in TABLES.items() if treatment == CREATED_NEW)


def refusal_of(
    source: Side,
    target: Side,
    database: str,
    at_source: Connection,
    at_target: Connection,
    indexes: Sequence[IndexEntry],
) -> str | None:
    """Return why a move of the shard cannot begin, or None.

    Args:
        source: the shard's tables on the source.
        target: the shard's tables on the target.
        database: name of the shard's database.
        at_source: a connection to the source.
        at_target: a connection to the target.
        indexes: the datastore's indexes, as the catalog has them now.
    """
    if at_source.is_mariadb != at_target.is_mariadb:
        return f"one of {at_source.node} and {at_target.node} is MySQL and the other is MariaDB"
    if source.has_cell and (refusal := refusal_of_indexes(indexes, source, at_source.node)) is not None:
        return refusal
    unknown = sorted(source.plain - TABLES.keys() - {*index_tables(source.plain)})
    if unknown:
        return (
            f"{database} on {at_source.node} has the table {unknown[0]}, which does not belong to this store, so a "
            "move would leave it there; move the table to another database first"
        )
    missing = sorted(TABLES.keys() - source.plain)
    if missing:
        return f"{database} on {at_source.node} has no table {missing[0]}; run 'schemaless schema upgrade' first"
    version = str(at_source.rows(select_version(database))[0][0])
    if version != head("shard"):
        needed = head("shard")
        return f"its tables are at revision {version}, not at {needed}; run 'schemaless schema upgrade' first"
    for side, connection in ((source, at_source), (target, at_target)):
        for names, step in (
            (side.moved, "run 'schemaless shards drop-moved' to drop it, or 'schemaless rebuild' if a rebuild left it"),
            (side.incoming, "that move was aborted while this server was down; no program reads the table: drop it"),
            ({"noted": side.saved_locations}, "that move was aborted, and the table is no longer needed: drop it"),
        ):
            leftovers = [name for tables in names.values() for name in tables]
            if leftovers:
                return f"an earlier move left {database}.{leftovers[0]} on {connection.node}; {step}"
    unexpected = sorted(target.plain - _CREATED_NEW)
    if unexpected:
        return (
            f"{at_target.node} already has a database {database} with the table {unexpected[0]}; find out what uses "
            "it, and drop it there if it is not needed"
        )
    return None
