"""SQL statements of moves: table renames, locks, cell copies and the catalog's move records.

No statement here opens a transaction, because START TRANSACTION releases a session's table locks.
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
    "follower": (
        *("name", "location", "worker", "epoch", "state", "attempts", "retry_at", "message", "moved_at"),
        "erased_event",
    ),
    "parked": (*("name", "added_id", "row_key", "column_name", "ref_key", "attempts", "error", "parked_at", "replay"),),
    "cold_file": (
        *("file_id", "generation", "incarnation", "token", "state", "first_id", "last_id"),
        *("cells", "text_bytes", "file_bytes", "sha256", "erased_event", "created_at", "changed_at"),
    ),
}
"""Tables, with their columns, that a move copies row by row while clients are locked out of the shard."""

ERASURES: Final = (*("event_id", "added_id", "erasure", "body_bytes", "entry_shards", "erased_at"),)
"""Columns of the log of erased cells, which a move copies event by event."""

FENCED: Final = (*CARRIED, "erased_cell", "cell")
"""Tables that a move renames, in this order; the name of ``cell``, the last one, decides which server has the shard."""


CellRow = tuple[int, bytes, str, int, bytes, str]
"""A complete cell: added_id, row_key, column_name, ref_key, body, and created_at as text with its UTC offset."""

SELECT_THREAD: Final = b"SELECT CONNECTION_ID()"
SELECT_SERVER: Final = b"SELECT CONCAT(@@global.server_id,' ',@@hostname,' ',@@global.port,' ',@@datadir)"
"""Selects a string that identifies a server independently of its address."""

MOST_ID: Final = (1 << 64) - 1
"""Largest added_id."""

_DIGESTS: Final = b"added_id, row_key, column_name, ref_key, " + CREATED_AT + b", UNHEX(SHA2(body,256))"


def saved_locations(token: str) -> str:
    """Return the name of the table for the followers' locations at the start of an index copy."""
    return f"follower_noted_{token}"


def probe(token: str) -> str:
    """Return the name of the table that is created, renamed and dropped to test for blocked DDL."""
    return f"cell_probe_{token}"


# Sessions


def select_lock_holder(name: str) -> bytes:
    """Select the id of the connection that holds a named lock; NULL if there is none."""
    return b"SELECT IS_USED_LOCK(%b)" % text(name)


def lock_fenced(database: str, tables: Iterable[str] = FENCED) -> bytes:
    """Lock tables against all other readers and writers."""
    return b"LOCK TABLES " + b", ".join(b"%b WRITE" % quoted_table(database, table) for table in tables)


def rename(database: str, names: Sequence[tuple[str, str]], *, locked_mariadb: bool = False) -> tuple[bytes, ...]:
    """Rename tables.

    Args:
        database: name of the database.
        names: pairs of old and new name.
        locked_mariadb: True on MariaDB if the session has locked the tables with LOCK TABLES: the server then refuses
            RENAME TABLE, so ALTER TABLE renames them one by one.
    """
    pairs = [(quoted_table(database, old), quoted_table(database, new)) for old, new in names]
    if locked_mariadb:
        return tuple(b"ALTER TABLE %b RENAME TO %b" % pair for pair in pairs)
    return (b"RENAME TABLE " + b", ".join(b"%b TO %b" % pair for pair in pairs),)


def create_probe(database: str, name: str) -> bytes:
    """Create an empty probe table."""
    return b"CREATE TABLE IF NOT EXISTS %b (nothing INT PRIMARY KEY)" % quoted_table(database, name)


def drop_table(database: str, name: str) -> bytes:
    """Drop a table."""
    return b"DROP TABLE IF EXISTS %b" % quoted_table(database, name)


def raise_counter(database: str, table: str, next_id: int) -> bytes:
    """Raise a table's next added_id."""
    return b"ALTER TABLE %b AUTO_INCREMENT=%d" % (quoted_table(database, table), next_id)


# Cells


def select_ids_and_lengths(database: str, table: str, after: int, limit: int) -> bytes:
    """Select added_id and body length of the next rows above ``after``."""
    rows = b"%b FORCE INDEX (PRIMARY) WHERE added_id>%d" % (quoted_table(database, table), after)
    return b"SELECT added_id, LENGTH(body) FROM %b ORDER BY added_id LIMIT %d" % (rows, limit)


def select_ids(database: str, table: str, after: int, up_to: int) -> bytes:
    """Select the added_ids with ``after < added_id <= up_to``, in order."""
    return _select_run(b"added_id", database, table, after, up_to)


def select_rows(database: str, table: str, ids: Iterable[int]) -> bytes:
    """Select complete cells by added_id."""
    return b"SELECT %b FROM %b WHERE added_id IN (%b)" % (CELL, quoted_table(database, table), numbers(ids))


def select_digests(database: str, table: str, after: int, up_to: int = MOST_ID, limit: int = MOST_ID) -> bytes:
    """Select the cells with ``after < added_id <= up_to`` in order, each with the SHA-256 of its body."""
    return _select_run(_DIGESTS, database, table, after, up_to) + b" LIMIT %d" % limit


def count_rows(database: str, table: str) -> bytes:
    """Count a table's rows."""
    return b"SELECT COUNT(*) FROM %b" % quoted_table(database, table)


def insert_rows(database: str, table: str, rows: Iterable[CellRow]) -> bytes:
    """Insert complete cells with their ids and times."""
    terms = (
        (added_id, blob_hex(row_key), column, ref_key, blob(body), created_at.removesuffix("+00:00"))
        for added_id, row_key, column, ref_key, body, created_at in rows
    )
    return insert(quoted_table(database, table), "added_id, row_key, column_name, ref_key, body, created_at", terms)


# Followers, parked cells and cold files


def select_carried(database: str, table: str, name: str) -> bytes:
    """Select all rows of a table in ``CARRIED``; ``name`` is the table's current name."""
    return b"SELECT %b FROM %b ORDER BY 1, 2" % (", ".join(CARRIED[table]).encode(), quoted_table(database, name))


def insert_carried(database: str, table: str, name: str, rows: Iterable[Sequence[Any]]) -> bytes:
    """Insert rows into a table in ``CARRIED``; ``name`` is the table's current name."""
    literals = ([_literal(value) for value in row] for row in rows)
    return insert(quoted_table(database, name), ", ".join(CARRIED[table]), literals)


def delete_all(database: str, name: str) -> bytes:
    """Delete all rows of a table."""
    return b"DELETE FROM %b" % quoted_table(database, name)


def rewind_followers(database: str, location: int) -> bytes:
    """Rewind the followers that are past a location to that location, and revoke their leases."""
    ahead = (quoted_table(database, "follower"), location, location)
    return b"UPDATE %b SET location=%d, epoch=epoch+1 WHERE location>%d" % ahead


# Erased cells


def select_last_event(database: str, name: str) -> bytes:
    """Select the last event of the log of erased cells, which is currently named ``name``; NULL if it is empty."""
    return b"SELECT MAX(event_id) FROM %b" % quoted_table(database, name)


def select_events(database: str, name: str, after: int, limit: int) -> bytes:
    """Select the next events of the log of erased cells, which is currently named ``name``, in order."""
    columns = (", ".join(ERASURES).encode(), quoted_table(database, name), after, limit)
    return b"SELECT %b FROM %b WHERE event_id>%d ORDER BY event_id LIMIT %d" % columns


def insert_events(database: str, name: str, rows: Iterable[Sequence[Any]]) -> bytes:
    """Insert events into the log of erased cells, which is currently named ``name``; the lock row may exist."""
    values = ([_literal(value) for value in row] for row in rows)
    newest = b" ON DUPLICATE KEY UPDATE body_bytes=VALUES(body_bytes)"
    return insert(quoted_table(database, name), ", ".join(ERASURES), values) + newest


# Locations of index followers


def create_saved_locations(database: str, name: str) -> bytes:
    """Create the table for saved locations of followers."""
    return (
        b"CREATE TABLE IF NOT EXISTS %b (name VARCHAR(80) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, "
        b"shard INT NOT NULL, location BIGINT UNSIGNED NOT NULL, erased_event BIGINT UNSIGNED NOT NULL, "
        b"PRIMARY KEY (name, shard)) ENGINE=InnoDB" % quoted_table(database, name)
    )


def insert_saved_locations(database: str, name: str, rows: Iterable[tuple[str, int, int, int]]) -> bytes:
    """Insert saved locations, each ``(name, shard, location, erased_event)``."""
    return insert(quoted_table(database, name), "name, shard, location, erased_event", rows)


def select_saved_locations(database: str, name: str) -> bytes:
    """Select the name, shard, location and erased_event of the saved locations."""
    return b"SELECT name, shard, location, erased_event FROM %b" % quoted_table(database, name)


def rewind_follower(database: str, name: str, location: int, erased_event: int) -> bytes:
    """Rewind a follower if it is past a location or an erasure event, and revoke its lease in any case."""
    changes = {
        "location": b"LEAST(location,%d)" % location,
        "erased_event": b"LEAST(erased_event,%d)" % erased_event,
        "epoch": b"epoch+1",
    }
    return update(quoted_table(database, "follower"), changes, name=name)


def _literal(value: Any) -> bytes:
    if isinstance(value, bytes):
        return blob_hex(value)
    if isinstance(value, datetime):
        return moment(value)
    return literal(value)


# Accounts


def select_table_grants(database: str) -> bytes:
    """Select the user, host, table and privileges of the accounts with privileges on a shard's tables."""
    return b"SELECT User, Host, Table_name, Table_priv FROM mysql.tables_priv WHERE Db=%b" % text(database)


SELECT_DATABASE_GRANTS: Final = b"SELECT User, Host, Db FROM mysql.db WHERE Select_priv='Y' AND Insert_priv='Y'"
"""Selects user, host and database pattern of the accounts that can read and write whole databases."""


# Catalog


def insert_move(catalog: str, job_id: int, shard: int, source: str, target: str) -> bytes:
    """Insert a move record unless it exists."""
    row = (job_id, shard, source, target, "preparing")
    return insert(quoted_table(catalog, "shard_move"), "job_id, shard, source, target, phase", [row], ignore=True)


def select_moves(catalog: str, job_id: int | None = None, shard: int | None = None) -> bytes:
    """Select the records of all moves, of one job, or of one shard.

    Returns:
        A statement whose rows are job_id, shard, source, target, phase, token, settled_id, verified_id, fence_id,
        fence_rows, target_server and pause_s.
    """
    return (
        b"SELECT job_id, shard, source, target, phase, token, settled_id, verified_id, fence_id, fence_rows, "
        b"target_server, pause_s FROM %b WHERE %b ORDER BY job_id, shard"
        % (quoted_table(catalog, "shard_move"), matching(job_id=job_id, shard=shard))
    )


def update_move(catalog: str, lease: Mapping[str, Value], changes: Mapping[str, Value], phases: Sequence[str]) -> bytes:
    """Update a move record if the runner still holds the shard and the record has one of the phases.

    Args:
        catalog: name of the catalog's database.
        lease: the runner's lease on the shard; see ``ShardState.lease``.
        changes: new values by column.
        phases: the phases that the record may be in.
    """
    return (
        b"UPDATE %b AS m JOIN %b AS s ON s.job_id=m.job_id AND s.shard=m.shard SET %b WHERE %b AND m.phase IN (%b)"
        % (
            quoted_table(catalog, "shard_move"),
            quoted_table(catalog, "job_shard"),
            assigned({f"m.{name}": value for name, value in changes.items()}),
            matching(**{f"s.{name}": value for name, value in lease.items()}),
            texts(phases),
        )
    )


def note_outcome(catalog: str, job_id: int, shard: int, before: Sequence[str], changes: Mapping[str, Value]) -> bytes:
    """Update a move record from outside a runner if it is in one of the phases ``before``."""
    statement = update(quoted_table(catalog, "shard_move"), changes, job_id=job_id, shard=shard)
    return statement + b" AND phase IN (%b)" % texts(before)


def add_cluster_to_jobs(catalog: str, cluster: str) -> bytes:
    """Add a cluster to all unfinished jobs that lack it; otherwise, their next lease renewal would fail."""
    unfinished = b"SELECT job_id, %b FROM %b WHERE state IN ('running','paused')" % (
        text(cluster),
        quoted_table(catalog, "job"),
    )
    return b"INSERT IGNORE INTO %b (job_id, cluster) %b" % (quoted_table(catalog, "job_cluster"), unfinished)


def _select_run(columns: bytes, database: str, table: str, after: int, up_to: int) -> bytes:
    cells = (columns, quoted_table(database, table), after, up_to)
    return b"SELECT %b FROM %b FORCE INDEX (PRIMARY) WHERE added_id>%d AND added_id<=%d ORDER BY added_id" % cells
