"""Statements that move a shard: its tables under other names, sessions that hold it, and what the catalog notes of it.

Nothing here opens a transaction: START TRANSACTION would unlock the tables that a session holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from schemaless.wire.sql.parts import (
    CELL,
    CREATED_AT,
    Value,
    assigned,
    blob,
    blob_hex,
    insert,
    literal,
    matching,
    moment,
    numbers,
    quoted_table,
    text,
    texts,
    update,
)

CARRIED: Final[dict[str, tuple[str, ...]]] = {
    "follower": (*("name", "location", "worker", "epoch", "state", "attempts", "retry_at", "message", "moved_at"),),
    "parked": (*("name", "added_id", "row_key", "column_name", "ref_key", "attempts", "error", "parked_at", "replay"),),
}
"""A move carries these tables over under the fence, row by row, with these columns."""

FENCED: Final = (*CARRIED, "cell")
"""These tables are renamed by a move, in this order: it is the name of ``cell`` that says where the shard is."""


CellRow = tuple[int, bytes, str, int, bytes, str]
"""A whole cell is added_id, row_key, column_name, ref_key, body, and created_at as text that says UTC."""

SELECT_THREAD: Final = b"SELECT CONNECTION_ID()"
SELECT_SERVER: Final = b"SELECT CONCAT(@@global.server_id,' ',@@hostname,' ',@@global.port,' ',@@datadir)"
"""Its value tells a server from others, of whatever address."""

_DIGESTS: Final = b"added_id, row_key, column_name, ref_key, " + CREATED_AT + b", UNHEX(SHA2(body,256))"


def noted(token: str) -> str:
    """Return what the table is called that says where followers were when a move began to copy indexes."""
    return f"follower_noted_{token}"


def probe(token: str) -> str:
    """Return the name of a table that is made, renamed and dropped to see whether that can be done now."""
    return f"cell_probe_{token}"


# Sessions


def select_lock_holder(name: str) -> bytes:
    """Select the connection that holds a named lock; NULL where nobody does."""
    return b"SELECT IS_USED_LOCK(%b)" % text(name)


def kill(thread: int, *, query: bool = False) -> bytes:
    """End a connection, or only what it is at."""
    return b"KILL %b%d" % (b"QUERY " if query else b"", thread)


def lock_fenced(database: str, tables: Iterable[str] = FENCED) -> bytes:
    """Hold off everybody else who reads or writes what is fenced."""
    return b"LOCK TABLES " + b", ".join(b"%b WRITE" % quoted_table(database, table) for table in tables)


def rename(database: str, names: Sequence[tuple[str, str]], *, locked_mariadb: bool = False) -> tuple[bytes, ...]:
    """Rename tables, from one name to another each.

    Args:
        locked_mariadb: the server is MariaDB, and the session holds these tables by LOCK TABLES: it takes one after the
            other then.
    """
    pairs = [(quoted_table(database, old), quoted_table(database, new)) for old, new in names]
    if locked_mariadb:
        return tuple(b"ALTER TABLE %b RENAME TO %b" % pair for pair in pairs)
    return (b"RENAME TABLE " + b", ".join(b"%b TO %b" % pair for pair in pairs),)


def make_probe(database: str, name: str) -> bytes:
    """Make a table that nobody uses."""
    return b"CREATE TABLE IF NOT EXISTS %b (nothing INT)" % quoted_table(database, name)


def drop_table(database: str, name: str) -> bytes:
    """Drop a table."""
    return b"DROP TABLE IF EXISTS %b" % quoted_table(database, name)


def raise_counter(database: str, table: str, next_id: int) -> bytes:
    """Have a table give out ids from here on; it never gives out lower ones again."""
    return b"ALTER TABLE %b AUTO_INCREMENT=%d" % (quoted_table(database, table), next_id)


# Cells


def select_ids_and_lengths(database: str, table: str, after: int, limit: int) -> bytes:
    """Select added_id and length of the body of the next rows."""
    behind = b"%b FORCE INDEX (PRIMARY) WHERE added_id>%d" % (quoted_table(database, table), after)
    return b"SELECT added_id, LENGTH(body) FROM %b ORDER BY added_id LIMIT %d" % (behind, limit)


def select_ids(database: str, table: str, after: int, up_to: int) -> bytes:
    """Select the added_ids with ``after < added_id <= up_to``, in their order."""
    return _select_run(b"added_id", database, table, after, up_to)


def select_rows(database: str, table: str, ids: Iterable[int]) -> bytes:
    """Select whole cells."""
    return b"SELECT %b FROM %b WHERE added_id IN (%b)" % (CELL, quoted_table(database, table), numbers(ids))


def select_digests(database: str, table: str, after: int, up_to: int) -> bytes:
    """Select the cells with ``after < added_id <= up_to`` in their order, with the SHA-256 of each body."""
    return _select_run(_DIGESTS, database, table, after, up_to)


def count_rows(database: str, table: str) -> bytes:
    """Count a table's rows."""
    return b"SELECT COUNT(*) FROM %b" % quoted_table(database, table)


def insert_rows(database: str, table: str, rows: Iterable[CellRow]) -> bytes:
    """Insert whole cells, under the ids and times that they have."""
    return b"INSERT INTO %b (added_id, row_key, column_name, ref_key, body, created_at) VALUES %b" % (
        quoted_table(database, table),
        b",".join(
            b"(%d,%b,%b,%d,%b,%b)"
            % (added_id, blob_hex(row_key), text(column), ref_key, blob(body), text(created_at.removesuffix("+00:00")))
            for added_id, row_key, column, ref_key, body, created_at in rows
        ),
    )


# What is carried over as a whole


def select_carried(database: str, table: str, name: str) -> bytes:
    """Select all rows of a table that is carried over, under the name that it has now."""
    return b"SELECT %b FROM %b ORDER BY 1, 2" % (", ".join(CARRIED[table]).encode(), quoted_table(database, name))


def insert_carried(database: str, table: str, name: str, rows: Iterable[Sequence[Any]]) -> bytes:
    """Insert rows into a table that is carried over, under the name that it has now."""
    literals = ([_carried(value) for value in row] for row in rows)
    return insert(quoted_table(database, name), ", ".join(CARRIED[table]), literals)


def delete_all(database: str, name: str) -> bytes:
    """Delete all rows of a table."""
    return b"DELETE FROM %b" % quoted_table(database, name)


def rewind_followers(database: str, location: int) -> bytes:
    """Have followers that are past a location go on from there; their owners have lost them."""
    ahead = (quoted_table(database, "follower"), location, location)
    return b"UPDATE %b SET location=%d, epoch=epoch+1 WHERE location>%d" % ahead


# Where the followers of indexes were


def select_locations(shards: Iterable[tuple[str, int]], names: Sequence[str]) -> bytes:
    """Select shard, name and location of some followers in shards, each of ``(database, shard)``."""
    return b" UNION ALL ".join(
        b"SELECT %d, name, location FROM %b WHERE name IN (%b)"
        % (shard, quoted_table(database, "follower"), texts(names))
        for database, shard in shards
    )


def create_noted(database: str, name: str) -> bytes:
    """Make the table that says where followers were."""
    return (
        b"CREATE TABLE IF NOT EXISTS %b (name VARCHAR(80) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, "
        b"shard INT NOT NULL, location BIGINT UNSIGNED NOT NULL, PRIMARY KEY (name, shard)) ENGINE=InnoDB"
        % quoted_table(database, name)
    )


def insert_noted(database: str, name: str, rows: Iterable[tuple[str, int, int]]) -> bytes:
    """Note followers, each of ``(name, shard, location)``."""
    return insert(quoted_table(database, name), "name, shard, location", rows)


def select_noted(database: str, name: str) -> bytes:
    """Select name, shard and location of the followers that were noted."""
    return b"SELECT name, shard, location FROM %b" % quoted_table(database, name)


def rewind_follower(database: str, name: str, location: int) -> bytes:
    """Have a follower go on from a location, unless it is before that; who has it in hand has lost it."""
    changes = {"location": b"LEAST(location,%d)" % location, "epoch": b"epoch+1"}
    return update(quoted_table(database, "follower"), changes, name=name)


def _carried(value: Any) -> bytes:
    if isinstance(value, bytes):
        return blob_hex(value)
    if isinstance(value, datetime):
        return moment(value)
    return literal(value)


# Accounts


def select_table_grants(database: str) -> bytes:
    """Select user, host, table and privileges of the accounts that have some on a shard's tables."""
    return b"SELECT User, Host, Table_name, Table_priv FROM mysql.tables_priv WHERE Db=%b" % text(database)


SELECT_DATABASE_GRANTS: Final = b"SELECT User, Host, Db FROM mysql.db WHERE Select_priv='Y' AND Insert_priv='Y'"
"""Its rows are user, host and database, as a pattern, of the accounts that may read and write databases as a whole."""


# In the catalog


def insert_move(catalog: str, job_id: int, shard: int, source: str, target: str, phase: str) -> bytes:
    """Insert where a shard is to be moved, unless that is noted."""
    row = (job_id, shard, source, target, phase)
    return insert(quoted_table(catalog, "shard_move"), "job_id, shard, source, target, phase", [row], ignore=True)


def select_moves(catalog: str, job_id: int | None = None, shard: int | None = None) -> bytes:
    """Select moves: all, of one job, of one shard.

    Returns:
        A statement whose rows are job_id, shard, source, target, phase, token, settled_id, verified_id, fence_id,
        fence_rows, target_server and pause_s.
    """
    return (
        b"SELECT job_id, shard, source, target, phase, token, settled_id, verified_id, fence_id, fence_rows, "
        b"target_server, pause_s FROM %b WHERE %b ORDER BY job_id, shard"
        % (quoted_table(catalog, "shard_move"), matching(job_id=job_id, shard=shard))
    )


def update_move(
    catalog: str,
    job_id: int,
    shard: int,
    changes: Mapping[str, Value],
    *,
    runner: str,
    epoch: int,
    token: str | None,
    phases: Sequence[str],
) -> bytes:
    """Change what is noted of a move, if the shard is still this runner's, under its token, and in one of some phases.

    Args:
        token: the runner's own; None where it is about to draw one.
    """
    own: dict[str, Value] = {"m.job_id": job_id, "m.shard": shard, "s.runner": runner, "s.epoch": epoch}
    return (
        b"UPDATE %b AS m JOIN %b AS s ON s.job_id=m.job_id AND s.shard=m.shard SET %b WHERE %b AND m.phase IN (%b)"
        % (
            quoted_table(catalog, "shard_move"),
            quoted_table(catalog, "job_shard"),
            assigned({f"m.{name}": value for name, value in changes.items()}),
            matching(**own, **{"m.token": token}),
            texts(phases),
        )
    )


def note_outcome(catalog: str, job_id: int, shard: int, before: Sequence[str], changes: Mapping[str, Value]) -> bytes:
    """Change what is noted of a move that nobody works on, if it is in one of some phases."""
    statement = update(quoted_table(catalog, "shard_move"), changes, job_id=job_id, shard=shard)
    return statement + b" AND phase IN (%b)" % texts(before)


def add_cluster_to_jobs(catalog: str, cluster: str) -> bytes:
    """Let the runners of all unfinished jobs keep their leases on a cluster, where they have it not yet."""
    unfinished = b"SELECT job_id, %b FROM %b WHERE state IN ('running','paused')" % (
        text(cluster),
        quoted_table(catalog, "job"),
    )
    return b"INSERT IGNORE INTO %b (job_id, cluster) %b" % (quoted_table(catalog, "job_cluster"), unfinished)


def _select_run(columns: bytes, database: str, table: str, after: int, up_to: int) -> bytes:
    cells = (columns, quoted_table(database, table), after, up_to)
    return b"SELECT %b FROM %b FORCE INDEX (PRIMARY) WHERE added_id>%d AND added_id<=%d ORDER BY added_id" % cells
