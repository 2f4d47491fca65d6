"""Table names and catalog queries for shards that are being moved."""

from __future__ import annotations

from typing import Final

from schemaless.wire.sql.parts import quoted_table, table, text, texts


def moved(table: str, token: str) -> str:
    """Return the name of a table on the source cluster after the cutover."""
    return f"{table}_moved_{token}"


def incoming(table: str, token: str) -> str:
    """Return the name of a table on the target cluster before the cutover."""
    return f"{table}_incoming_{token}"


def select_top(database: str, table: str) -> bytes:
    """Select the highest added_id of a table; NULL if it is empty."""
    return b"SELECT MAX(added_id) FROM %b" % quoted_table(database, table)


def select_arriving(catalog: str, target: str) -> bytes:
    """Select the shards that are being moved to a cluster and may be there already, whatever the catalog says."""
    parts = (quoted_table(catalog, "shard_move"), text(target), texts(BEFORE_COMMIT))
    return b"SELECT shard FROM %b WHERE target=%b AND phase IN (%b)" % parts


def select_moves_of_shards(catalog: str) -> bytes:
    """Select shard, source, target and phase of all moves."""
    return b"SELECT shard, source, target, phase FROM %b" % quoted_table(catalog, "shard_move")


def select_move_jobs(catalog: str) -> bytes:
    """Select id and state of all move jobs."""
    return b"SELECT job_id, state FROM %b WHERE kind='move' ORDER BY job_id" % table(catalog, b"job")


BEFORE_COMMIT: Final = ("preparing", "copying", "cutting", "aborting")
"""Phases in which the catalog still names the source cluster, although the tables may have been cut over."""

ENDED: Final = ("dropped", "aborted")
"""Phases in which the primaries of the two clusters have no tables of the move."""
