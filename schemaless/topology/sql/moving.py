"""Names and states of the tables of a shard that is on its way to another cluster."""

from __future__ import annotations

from typing import Final

from schemaless.wire.sql.parts import quoted_table, table, text, texts


def moved(table: str, token: str) -> str:
    """Return what a table is called on the source from the fence on."""
    return f"{table}_moved_{token}"


def incoming(table: str, token: str) -> str:
    """Return what a table is called on the target until its shard is there."""
    return f"{table}_incoming_{token}"


def select_top(database: str, table: str) -> bytes:
    """Select the highest added_id; NULL for an empty table."""
    return b"SELECT MAX(added_id) FROM %b" % quoted_table(database, table)


def select_arriving(catalog: str, target: str) -> bytes:
    """Select the shards that are on their way to a cluster, and may be there, though the catalog names another."""
    there = (quoted_table(catalog, "shard_move"), text(target), texts(BEFORE_COMMIT))
    return b"SELECT shard FROM %b WHERE target=%b AND phase IN (%b)" % there


def select_move_jobs(catalog: str) -> bytes:
    """Select number and state of every move job."""
    return b"SELECT job_id, state FROM %b WHERE kind='move' ORDER BY job_id" % table(catalog, b"job")


BEFORE_COMMIT: Final = ("preparing", "copying", "cutting", "aborting")
"""In these phases the shard is where it was, as far as the catalog knows; the servers may know better."""
