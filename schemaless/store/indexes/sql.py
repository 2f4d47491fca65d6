"""Statements for secondary indexes: their table in each shard, their entries, and the catalog's list of indexes.

An entry stores its refs: the versions of the source columns that it was built from. Every write compares them: an entry
is neither replaced nor deleted by a worker that read an older state of the row. So an index may have several
writers at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from schemaless.cell import StoredCell
from schemaless.schema.engines import StorageEngine
from schemaless.wire.sql.parts import (
    CELL,
    NOW,
    Term,
    all_limited,
    blob_hex,
    by_key,
    cell_table,
    numbers,
    rows_of,
    table,
    text,
    texts,
    update,
)

INDEX_TABLE: Final = re.compile(r"index_(\d+)")
"""Names of index tables; no other table has such a name."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Layout of an index's table.

    Attributes:
        number: the index's number.
        columns: name and SQL type of each field, the shard field first.
        sources: number of source columns.
        digest: digest of the definition; stored as the table's comment.
        named: temporary name of the table; None if it is named after the number.
    """

    number: int
    columns: Sequence[tuple[str, str]]
    sources: int
    digest: str
    named: str | None = None

    @property
    def table(self) -> str:
        """Name of the table."""
        return index_table(self.number) if self.named is None else self.named


class EntryRow(NamedTuple):
    """An entry as SQL literals.

    Attributes:
        row_key: the row.
        values: the value of each field, the shard field first.
        refs: for each source column the ref_key of the version that the entry was built from; -1 if there was none.
    """

    row_key: bytes
    values: tuple[bytes, ...]
    refs: tuple[int, ...]


def index_table(number: int) -> str:
    """Return the name of an index's table."""
    return f"index_{number}"


# In a shard


def create_index_table(database: str, layout: Layout, engine: StorageEngine) -> bytes:
    """Create an index's table in the storage engine of its cluster, if it does not exist."""
    columns = [
        *(
            b"`%b` %b %b" % (name.encode(), kind.encode(), b"NULL" if nullable else b"NOT NULL")
            for name, kind, nullable in columns_of(layout)
        ),
        b"PRIMARY KEY (row_key)",
        b"KEY query (%b)" % b", ".join(_names(layout)),
    ]
    return b"CREATE TABLE IF NOT EXISTS %b (%b) ENGINE=%b ROW_FORMAT=DYNAMIC COMMENT=%b" % (
        _table(database, layout.table),
        b", ".join(columns),
        engine.clause.encode(),
        text(layout.digest),
    )


def columns_of(layout: Layout) -> list[tuple[str, str, bool]]:
    """Return the name, SQL type and nullability of each column of an index's table."""
    shard_field, *fields = layout.columns
    return [
        ("row_key", "BINARY(16)", False),
        (*shard_field, False),
        *((name, kind, True) for name, kind in fields),
        *((f"ref_{number}", "BIGINT", False) for number in range(layout.sources)),
    ]


def keys_of(layout: Layout) -> dict[str, list[str]]:
    """Return the column names of each key of an index's table."""
    return {"PRIMARY": ["row_key"], "query": [name for name, _ in layout.columns]}


def drop_index_table(database: str, number: int) -> bytes:
    """Drop an index's table if it exists."""
    return b"DROP TABLE IF EXISTS %b" % _table(database, index_table(number))


def select_comments(databases: Iterable[str], number: int) -> bytes:
    """Select the database, comment and storage engine of each table of an index that the account can see."""
    return (
        b"SELECT TABLE_SCHEMA, TABLE_COMMENT, ENGINE FROM information_schema.TABLES "
        b"WHERE TABLE_SCHEMA IN (%b) AND TABLE_NAME=%b" % (texts(databases), text(index_table(number)))
    )


def select_tables(database: str) -> bytes:
    """Select the name and comment of each table of a database that the account can see."""
    return b"SELECT TABLE_NAME, TABLE_COMMENT FROM information_schema.TABLES WHERE TABLE_SCHEMA=%b" % text(database)


def select_index_columns(database: str) -> bytes:
    """Select the table, name, type and nullability of the columns of index tables, in order."""
    return (
        b"SELECT TABLE_NAME, COLUMN_NAME, COLUMN_TYPE, IS_NULLABLE FROM information_schema.COLUMNS "
        b"WHERE TABLE_SCHEMA=%b AND TABLE_NAME LIKE 'index%%' ORDER BY TABLE_NAME, ORDINAL_POSITION" % text(database)
    )


def select_index_keys(database: str) -> bytes:
    """Select the table, key and column of the keys of index tables, in order."""
    return (
        b"SELECT TABLE_NAME, INDEX_NAME, COLUMN_NAME FROM information_schema.STATISTICS WHERE TABLE_SCHEMA=%b "
        b"AND TABLE_NAME LIKE 'index%%' ORDER BY TABLE_NAME, INDEX_NAME, SEQ_IN_INDEX" % text(database)
    )


READ_COUNTERS: Final = "table_io_waits_summary_by_index_usage"
"""Table of performance_schema that counts the use of each key."""

SHOW_UPTIME: Final = b"SHOW GLOBAL STATUS LIKE 'Uptime'"


def select_reads(databases: Iterable[str], tables: Iterable[str]) -> bytes:
    """Select each index table, and how many rows were changed in it and read by its key for queries."""
    return (
        b"SELECT OBJECT_NAME, SUM(COUNT_WRITE), SUM(IF(INDEX_NAME='query',COUNT_READ,0)) FROM performance_schema.%b "
        b"WHERE OBJECT_SCHEMA IN (%b) AND OBJECT_NAME IN (%b) GROUP BY OBJECT_NAME"
        % (READ_COUNTERS.encode(), texts(databases), texts(tables))
    )


def select_user_statistics(databases: Iterable[str], tables: Iterable[str]) -> bytes:
    """Select the same from what MariaDB counts while ``userstat`` is on."""
    return (
        b"SELECT t.TABLE_NAME, SUM(t.ROWS_CHANGED), COALESCE(SUM(i.ROWS_READ),0) "
        b"FROM information_schema.TABLE_STATISTICS AS t LEFT JOIN information_schema.INDEX_STATISTICS AS i "
        b"ON i.TABLE_SCHEMA=t.TABLE_SCHEMA AND i.TABLE_NAME=t.TABLE_NAME AND i.INDEX_NAME='query' "
        b"WHERE t.TABLE_SCHEMA IN (%b) AND t.TABLE_NAME IN (%b) GROUP BY t.TABLE_NAME"
        % (texts(databases), texts(tables))
    )


def select_no_entry(database: str, table: str) -> bytes:
    """Select no entries; fails if the table does not exist or the account cannot read it."""
    return b"SELECT 1 FROM %b LIMIT 0" % _table(database, table)


def upsert_entries(database: str, layout: Layout, entries: Iterable[EntryRow]) -> bytes:
    """Write entries; an existing entry with later refs is left unchanged."""
    names = [*_names(layout), *_refs(layout)]
    newer = b" AND ".join(b"%b<=VALUES(%b)" % (ref, ref) for ref in _refs(layout))
    # Refs are assigned last, because the tests in the other assignments compare the old ones.
    changes = [b"%b=IF(%b,VALUES(%b),%b)" % (name, newer, name, name) for name in _names(layout)]
    changes += [b"%b=GREATEST(%b,VALUES(%b))" % (ref, ref, ref) for ref in _refs(layout)]
    rows = [
        b"(%b)" % b",".join([blob_hex(entry.row_key), *entry.values, *(b"%d" % ref for ref in entry.refs)])
        for entry in entries
    ]
    return b"INSERT INTO %b (row_key,%b) VALUES %b ON DUPLICATE KEY UPDATE %b" % (
        _table(database, layout.table),
        b",".join(names),
        b",".join(rows),
        b",".join(changes),
    )


def delete_entries(
    database: str, layout: Layout, rows: Iterable[tuple[bytes, Sequence[int]]], *, exactly: bool = False
) -> bytes:
    """Delete the entries of rows, given as ``(row_key, refs)``; an entry with later refs stays.

    Args:
        database: the shard's database.
        layout: layout of the index's table.
        rows: row_keys and refs.
        exactly: delete only entries whose refs are equal to the given ones.
    """
    compare = b"=" if exactly else b"<="
    tests = [
        b"(row_key=%b AND %b)"
        % (
            blob_hex(row_key),
            b" AND ".join(b"%b%b%d" % (name, compare, ref) for name, ref in zip(_refs(layout), refs, strict=True)),
        )
        for row_key, refs in rows
    ]
    return b"DELETE FROM %b WHERE %b" % (_table(database, layout.table), b" OR ".join(tests))


def select_entries(database: str, layout: Layout, shard: int, row_keys: Iterable[bytes]) -> bytes:
    """Select the given shard number, row_key, fields and refs of the entries of some rows."""
    return b"SELECT %d, row_key, %b FROM %b WHERE row_key IN (%b)" % (
        shard,
        b", ".join([*_names(layout), *_refs(layout)]),
        _table(database, layout.table),
        b",".join(map(blob_hex, row_keys)),
    )


def select_entries_after(database: str, layout: Layout, after: bytes, limit: int) -> bytes:
    """Select row_key, fields and refs of the entries after a row_key, ordered by row_key."""
    return b"SELECT row_key, %b FROM %b FORCE INDEX (PRIMARY) WHERE row_key>%b ORDER BY row_key LIMIT %d" % (
        b", ".join([*_names(layout), *_refs(layout)]),
        _table(database, layout.table),
        blob_hex(after),
        limit,
    )


def select_matches(database: str, layout: Layout, tests: Sequence[bytes], *, descending: bool, limit: int) -> bytes:
    """Select row_key and fields of the entries that satisfy all tests, ordered by fields and row_key."""
    direction = b" DESC" if descending else b""
    order = [b"%b%b" % (name, direction) for name in (*_names(layout)[1:], b"row_key")]
    return b"SELECT row_key, %b FROM %b FORCE INDEX (query) WHERE %b ORDER BY %b LIMIT %d" % (
        b", ".join(_names(layout)),
        _table(database, layout.table),
        b" AND ".join(tests),
        b", ".join(order),
        limit,
    )


def comparison(name: str, operator: str, value: bytes) -> bytes:
    """Return a test that compares a field with a literal; ``<=>`` also compares NULL."""
    return b"`%b`%b%b" % (name.encode(), operator.encode(), value)


def one_of(name: str, values: Sequence[bytes]) -> bytes:
    """Return a test that a field equals one of some literals; without any, it is never true."""
    return b"`%b` IN (%b)" % (name.encode(), b",".join(values) or b"NULL")


def after_entry(names: Sequence[str], values: Sequence[bytes], row_key: bytes, *, descending: bool) -> bytes:
    """Return a test for the entries after one entry, in the order of fields and row_key; NULL is the lowest value."""
    steps = []
    equal: list[bytes] = []
    for name, value in zip(names, values, strict=True):
        field = b"`%b`" % name.encode()
        if not descending:
            greater = b"%b IS NOT NULL" % field if value == b"NULL" else b"%b>%b" % (field, value)
            steps.append(b" AND ".join([*equal, greater]))
        elif value != b"NULL":
            steps.append(b" AND ".join([*equal, b"(%b<%b OR %b IS NULL)" % (field, value, field)]))
        equal.append(b"%b<=>%b" % (field, value))
    steps.append(b" AND ".join([*equal, b"row_key%b%b" % (b"<" if descending else b">", blob_hex(row_key))]))
    return b"((%b))" % b") OR (".join(steps)


# The rows that entries are built from


NOT_NEAR: Final = -1
"""Stands for the previous version of a cell that has many later ones; ``select_previous`` finds it."""

_NEAR: Final = 10
"""Latest versions among which ``select_refs`` looks for a previous one: it reads those after the cell one by one."""


def select_refs(database: str, columns: Sequence[str], ids: Iterable[int]) -> bytes:
    """Select the previous and latest refs of cells, given by their added_ids, in one snapshot.

    Returns:
        A statement whose rows are added_id, row_key, the ref_key of the previous version in the cell's column
        (``NOT_NEAR`` if the cell is not among the latest ones), and the row's latest ref_key in each of ``columns``;
        NULL if there is none.
    """
    versions = database, b"p.row_key", b"p.column_name"
    return b"SELECT p.added_id, p.row_key, IF(p.ref_key<%b, %d, %b), %b FROM %b AS p FORCE INDEX (PRIMARY) %b (%b)" % (
        _latest(*versions, offset=_NEAR),
        NOT_NEAR,
        _latest(*versions, b" AND c.ref_key<p.ref_key"),
        b", ".join(_latest(database, b"p.row_key", text(column)) for column in columns),
        cell_table(database),
        b"WHERE p.added_id IN",
        numbers(ids),
    )


def select_previous(database: str, cells: Iterable[StoredCell]) -> bytes:
    """Select added_id and row_key of cells, and the ref_key of the version before; none for a cell without one.

    A statement with each key takes longer to parse, but reads one entry of the index for each cell.
    """
    select = b"SELECT %d AS added_id, row_key, ref_key FROM %b WHERE row_key=%b AND column_name=%b AND ref_key<%d%b"
    from_, latest = by_key(database), b" ORDER BY ref_key DESC LIMIT 1"
    previous = all_limited(
        select % (cell.added_id, from_, blob_hex(cell.row_key.bytes), text(cell.column_name), cell.ref_key, latest)
        for cell in cells
    )
    return b"SELECT * FROM (%b) AS previous" % previous


def select_refs_of_rows(database: str, columns: Sequence[str], row_keys: Sequence[bytes]) -> bytes:
    """Select row_key and the latest ref_key in each of some columns, for each row, in one snapshot."""
    return b"SELECT p.row_key, %b FROM (%b) AS p" % (
        b", ".join(_latest(database, b"p.row_key", text(column)) for column in columns),
        rows_of(row_keys),
    )


def select_latest_of_rows(database: str, row_keys: Iterable[bytes], columns: Iterable[str]) -> bytes:
    """Select the latest cell of each of some columns of rows, in one snapshot."""
    select = b"(SELECT %b FROM %b WHERE row_key=x'" % (CELL, by_key(database))
    newest = [b"' AND column_name=%b ORDER BY ref_key DESC LIMIT 1)" % text(column) for column in columns]
    rows = [select + row_key.hex().encode() for row_key in row_keys]
    return b" UNION ALL ".join([row + of_column for row in rows for of_column in newest])


def select_versions_of_rows(database: str, row_keys: Sequence[bytes], columns: tuple[str, ...], versions: int) -> bytes:
    """Select all versions of some columns of rows, up to ``versions`` per row on average, in one snapshot.

    The order is undefined: sorting on the server would make the statement 5% slower.
    """
    return b"%b%b) LIMIT %d)" % (
        _versions_of_rows(database, columns),
        b",".join(map(blob_hex, row_keys)),
        versions * len(row_keys),
    )


# The beginning is the same for every query of a shard.
@lru_cache(4096)
def _versions_of_rows(database: str, columns: tuple[str, ...]) -> bytes:
    return b"(SELECT %b FROM %b WHERE column_name IN (%b) AND row_key IN (" % (CELL, by_key(database), texts(columns))


def select_ends_of_entries(database: str, layout: Layout) -> bytes:
    """Select the lowest and the highest row_key of the entries of a shard; both NULL if there are none."""
    return b"SELECT MIN(row_key), MAX(row_key) FROM %b FORCE INDEX (PRIMARY)" % _table(database, layout.table)


def _latest(database: str, row_key: bytes, column: bytes, condition: bytes = b"", offset: int = 0) -> bytes:
    """Return a subquery for the ref_key of the latest version of a row and column, or NULL.

    In the order of the whole key, since MySQL would read and sort all versions by ref_key alone. Reading the body keeps
    it from fetching as many from the index at once as an average row has, by its statistics.
    """
    return (
        b"(SELECT c.ref_key FROM %b AS c FORCE INDEX (cell_key) WHERE c.row_key=%b AND c.column_name=%b "
        b"AND LENGTH(c.body)>=0%b ORDER BY c.row_key DESC, c.column_name DESC, c.ref_key DESC LIMIT 1 OFFSET %d)"
        % (cell_table(database), row_key, column, condition, offset)
    )


# In the catalog


def insert_index(catalog: str, name: str, definition: str, state: str, *, again: bool = False) -> bytes:
    """Insert an index unless one with its name is being built, or is ready with this definition. Safe to repeat.

    Args:
        catalog: the catalog's database.
        name: the index's name.
        definition: its definition.
        state: its state.
        again: insert it even if there is a ready index with this definition.
    """
    named = b"SELECT 1 FROM %b AS t WHERE t.name=%b AND " % (_list(catalog), text(name))
    ready = b"" if again else b" OR t.state='ready' AND t.definition=%b" % text(definition)
    built = b"(t.state IN ('declared','backfilling')%b)" % ready
    return b"INSERT INTO %b (name, definition, state) SELECT %b FROM DUAL WHERE NOT EXISTS (%b)" % (
        _list(catalog),
        b", ".join((text(name), text(definition), text(state))),
        named + built,
    )


def select_indexes(catalog: str) -> bytes:
    """Select the number, name, definition, state, created_at, ready_at (UTC) and message of indexes not dropped yet."""
    return (
        b"SELECT index_id, name, definition, state, CONCAT(created_at,'+00:00'), CONCAT(ready_at,'+00:00'), message "
        b"FROM %b WHERE state<>'dropped' ORDER BY index_id" % _list(catalog)
    )


def update_index(catalog: str, number: int, before: Sequence[str], state: str, message: str | None = None) -> bytes:
    """Change the state of an index if it is in one of the states ``before``."""
    changes: dict[str, Term] = {"state": state, "message": message}
    if state in ("ready", "dropped"):
        changes[f"{state}_at"] = NOW
    return update(_list(catalog), changes, index_id=number) + b" AND state IN (%b)" % texts(before)


def _names(layout: Layout) -> list[bytes]:
    return [b"`%b`" % name.encode() for name, _ in layout.columns]


def _refs(layout: Layout) -> list[bytes]:
    return [b"ref_%d" % number for number in range(layout.sources)]


def _table(database: str, table: str) -> bytes:
    return b"`%b`.%b" % (database.encode(), table.encode())


def _list(catalog: str) -> bytes:
    return table(catalog, b"secondary_index")
