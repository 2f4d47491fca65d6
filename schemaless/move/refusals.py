"""Why a shard cannot be moved, by what its two servers have."""

from __future__ import annotations

from collections.abc import Sequence

from schemaless.indexes.registry import IndexEntry
from schemaless.move.fence import Side, index_tables
from schemaless.move.index_tables import refusal_of_indexes
from schemaless.move.spec import TABLES
from schemaless.schema.sql import select_version
from schemaless.schema.versions import head
from schemaless.wire.connection import Connection

_MADE_NEW = frozenset(name for name, what in TABLES.items() if what == "made new")


def refusal_of(
    source: Side,
    target: Side,
    database: str,
    at_source: Connection,
    at_target: Connection,
    indexes: Sequence[IndexEntry],
) -> str | None:
    """Return why a shard cannot begin to be moved; None where it can.

    Args:
        source: what the server that it is on has of it.
        target: what the one has that it goes to.
        database: the shard's.
        at_source: a connection to the first.
        at_target: a connection to the second.
        indexes: of the datastore, as the catalog has them now.
    """
    if at_source.is_mariadb != at_target.is_mariadb:
        return f"{at_source.node} and {at_target.node} are servers of two kinds, MySQL and MariaDB"
    if source.has_cell and (of_indexes := refusal_of_indexes(indexes, source, at_source.node)) is not None:
        return of_indexes
    unknown = sorted(source.plain - TABLES.keys() - {*index_tables(source.plain)})
    if unknown:
        return (
            f"{database} on {at_source.node} has the table {unknown[0]}, which does not belong to this store and "
            "would stay behind; move it elsewhere first"
        )
    lacking = sorted(TABLES.keys() - source.plain)
    if lacking:
        return f"{database} on {at_source.node} has no table {lacking[0]}; run 'schemaless schema upgrade' first"
    version = str(at_source.rows(select_version(database))[0][0])
    if version != head("shard"):
        needed = head("shard")
        return f"its tables are at revision {version}, not at {needed}; run 'schemaless schema upgrade' first"
    for side, connection in ((source, at_source), (target, at_target)):
        for names, step in (
            (side.moved, "'schemaless shards drop-moved' drops what is not needed any more"),
            (side.incoming, "no program reads that copy, whose move was aborted while this server was away: drop it"),
            ({"notes": side.notes}, "nobody needs it once its move was aborted: drop it"),
        ):
            left = [name for tables in names.values() for name in tables]
            if left:
                return f"an earlier move has left {database}.{left[0]} on {connection.node}; {step}"
    strange = sorted(target.plain - _MADE_NEW)
    if strange:
        return (
            f"{at_target.node} has a database {database} already, with the table {strange[0]}; find out whose it is, "
            "and drop it there if nobody needs it"
        )
    return None
