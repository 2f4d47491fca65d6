"""SQL statements for cells, column codecs and dictionaries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

from schemaless.cell import TOMBSTONE_BYTES
from schemaless.wire.sql.parts import (
    CELL,
    CELLS,
    CREATED_AT,
    IS_DELTA,
    LIVE,
    NOW,
    Term,
    all_limited,
    all_rows,
    blob,
    blob_hex,
    by_id,
    by_key,
    cell_table,
    delete,
    escaped,
    id_range,
    insert,
    matching,
    moment,
    numbers,
    quoted_table,
    rows_of,
    table,
    text,
    texts,
    update,
    upsert,
)
from schemaless.wire.sql.sessions import set_session

Row = tuple[int, bytes, str, int, bytes, str]
"""A complete row of the ``cell`` table: added_id, row_key, column_name, ref_key, body, created_at."""


def insert_cells(
    database: str, cells: Iterable[tuple[bytes, str, int, bytes]], created_at: Sequence[datetime | None] | None = None
) -> bytes:
    """Insert rows of ``(row_key, column_name, ref_key, body)``.

    Args:
        database: the shard's database.
        cells: the rows.
        created_at: times of the rows in UTC; None for a row, or for all rows, means the server's clock.
    """
    names = b"row_key,column_name,ref_key,body" + (b"" if created_at is None else b",created_at")
    parts = [b"INSERT INTO %b (%b) VALUES " % (cell_table(database), names)]
    for position, (row_key, column_name, ref_key, body) in enumerate(cells):
        key = (b"," if position else b"", row_key.hex().encode(), column_name.encode(), ref_key)
        end = b"')" if created_at is None else b"',%b)" % moment(created_at[position])
        parts += (b"%b(x'%b','%b',%d,_binary'" % key, escaped(body), end)
    # Joined once at the end, because every intermediate step would copy the bodies again.
    return b"".join(parts)


RETURNING: Final = b" RETURNING added_id,row_key,column_name,ref_key"
"""Suffix that makes ``insert_cells`` return the id and key of each row, in order; MariaDB only."""


def select_cells(database: str, keys: Iterable[tuple[bytes, str, int]], name: str = "cell") -> bytes:
    """Select the cells of a table with these keys, in undefined order."""
    return b"SELECT %b FROM %b WHERE %b" % (CELL, by_key(database, name), with_keys(keys))


def with_keys(keys: Iterable[tuple[bytes, str, int]]) -> bytes:
    """Return a condition for the cells with these keys."""
    return _with_keys(b"row_key,column_name,ref_key", keys)


def _with_keys(names: bytes, keys: Iterable[tuple[bytes, str, int]]) -> bytes:
    # Conditions joined by OR, or queries by UNION ALL, take the server longer per key the more there are.
    return b"(%b) IN (%b)" % (
        names,
        b",".join(
            b"(x'%b','%b',%d)" % (row_key.hex().encode(), column_name.encode(), ref_key)
            for row_key, column_name, ref_key in keys
        ),
    )


def select_latest(database: str, pairs: Sequence[tuple[bytes, str]], at: datetime | None = None) -> bytes:
    """Select the cell with the highest ref_key for each ``(row_key, column_name)``; ``at`` ignores those stored later.

    Here and below, ``at`` is in UTC. For hundreds of pairs, a query per pair, combined by UNION ALL, would take the
    server up to five times as long, and a MAX that is grouped by pair would read all their versions.
    """
    stored = _stored_by(at)
    if len(pairs) == 1:
        row_key, column_name = pairs[0]
        return b"SELECT %b FROM %b WHERE row_key=x'%b' AND column_name='%b'%b ORDER BY ref_key DESC LIMIT 1" % (
            CELL,
            by_key(database),
            row_key.hex().encode(),
            column_name.encode(),
            stored,
        )
    cells = cell_table(database)
    keys = all_rows(
        b"SELECT x'%b' AS row_key, _ascii'%b' COLLATE ascii_bin AS column_name"
        % (row_key.hex().encode(), column_name.encode())
        for row_key, column_name in pairs
    )
    return (
        b"SELECT c.added_id, c.row_key, c.column_name, c.ref_key, c.body, %b FROM "
        b"(SELECT k.row_key, k.column_name, (SELECT v.ref_key FROM %b AS v FORCE INDEX (cell_key) "
        b"WHERE v.row_key=k.row_key AND v.column_name=k.column_name%b "
        b"ORDER BY v.row_key DESC, v.column_name DESC, v.ref_key DESC LIMIT 1) AS ref_key FROM (%b) AS k) AS latest "
        b"STRAIGHT_JOIN %b AS c FORCE INDEX (cell_key) "
        b"ON c.row_key=latest.row_key AND c.column_name=latest.column_name AND c.ref_key=latest.ref_key"
        % (CREATED_AT, cells, stored, keys, cells)
    )


def select_row(database: str, row_key: bytes) -> bytes:
    """Select the latest cell of each column of a row."""
    key = row_key.hex().encode()
    return (
        b"SELECT c.added_id, c.row_key, c.column_name, c.ref_key, c.body, %b FROM "
        b"(SELECT column_name, MAX(ref_key) AS ref_key FROM %b WHERE row_key=x'%b' GROUP BY column_name) AS latest "
        b"STRAIGHT_JOIN %b AS c FORCE INDEX (cell_key) "
        b"ON c.row_key=x'%b' AND c.column_name=latest.column_name AND c.ref_key=latest.ref_key "
        b"ORDER BY c.column_name" % (CREATED_AT, by_key(database), key, cell_table(database), key)
    )


def select_rows(
    database: str, row_keys: Iterable[bytes], columns: Iterable[str] | None = None, at: datetime | None = None
) -> bytes:
    """Select the latest cell of each column of rows, or of each of ``columns``, in undefined order.

    ``at`` ignores cells stored later. Joining the row_keys, instead of comparing with IN, keeps the server from reading
    the whole index if its statistics are outdated; a search per row, combined by UNION ALL, would take ten times as
    long.
    """
    in_columns = b"" if columns is None else b" AND v.column_name IN (%b)" % texts(columns)
    return (
        b"SELECT c.added_id, c.row_key, c.column_name, c.ref_key, c.body, %b FROM "
        b"(SELECT k.row_key, v.column_name, MAX(v.ref_key) AS ref_key FROM (%b) AS k "
        b"STRAIGHT_JOIN %b AS v FORCE INDEX (cell_key) ON v.row_key=k.row_key%b%b "
        b"GROUP BY k.row_key, v.column_name) AS latest STRAIGHT_JOIN %b AS c FORCE INDEX (cell_key) "
        b"ON c.row_key=latest.row_key AND c.column_name=latest.column_name AND c.ref_key=latest.ref_key"
        % (
            CREATED_AT,
            rows_of(row_keys),
            cell_table(database),
            in_columns,
            _stored_by(at),
            cell_table(database),
        )
    )


def _stored_by(at: datetime | None) -> bytes:
    return b"" if at is None else b" AND created_at<=%b" % moment(at)


def select_column_names(database: str, row_key: bytes) -> bytes:
    """Select the names of a row's columns."""
    return b"SELECT DISTINCT column_name FROM %b WHERE row_key=x'%b' ORDER BY column_name" % (
        by_key(database),
        row_key.hex().encode(),
    )


def select_versions(
    database: str,
    row_key: bytes,
    column_name: str,
    above: int,
    below: int,
    descending: bool,
    limit: int,
    *,
    live_only: bool,
) -> bytes:
    """Select versions of one row and column with ``above < ref_key < below``; ``live_only`` skips erased ones."""
    return (
        b"SELECT %b FROM %b WHERE row_key=x'%b' AND column_name='%b' AND ref_key>%d AND ref_key<%d%b "
        b"ORDER BY ref_key %b LIMIT %d"
        % (
            CELL,
            by_key(database),
            row_key.hex().encode(),
            column_name.encode(),
            above,
            below,
            b" AND " + LIVE if live_only else b"",
            b"DESC" if descending else b"ASC",
            limit,
        )
    )


def select_bases(database: str, keys: Iterable[tuple[bytes, str, int]], steps: int, name: str = "cell") -> bytes:
    """Select row_key and column_name of cells, and the ref_keys and bodies of what each depends on.

    These are pairs of columns: the cell itself, the version that it is a delta against, and so on, ``steps`` in all.
    They are NULL after a cell that is no delta.
    """
    return _chains(database, b"c0.row_key, c0.column_name, c0.ref_key, c0.body", keys, steps, name)


def select_with_bases(database: str, key: tuple[bytes, str, int], steps: int) -> bytes:
    """Select a cell, and the ref_keys and bodies of what it depends on, ``steps`` of them, as ``select_bases`` does."""
    names = b"added_id, row_key, column_name, ref_key, body".replace(b" ", b" c0.")
    columns = b"c0.%b, %b" % (names, CREATED_AT.replace(b"created_at", b"c0.created_at"))
    return _chains(database, columns, [key], steps + 1, CELLS)


def _chains(database: str, columns: bytes, keys: Iterable[tuple[bytes, str, int]], steps: int, name: str) -> bytes:
    source = quoted_table(database, name)
    hint = b" FORCE INDEX (cell_key)" if name == CELLS else b""
    pairs = [b", c%d.ref_key, c%d.body" % (number, number) for number in range(1, steps)]
    joins = [b"%b AS c0%b" % (source, hint)]
    for number in range(1, steps):
        dependent = b"c%d.body" % (number - 1)
        joins.append(
            b"LEFT JOIN %b AS c%d%b ON %b AND c%d.row_key=c0.row_key AND c%d.column_name=c0.column_name "
            b"AND c%d.ref_key=CAST(CONV(HEX(SUBSTRING(%b,3,8)),16,10) AS UNSIGNED)"
            % (source, number, hint, IS_DELTA.replace(b"body", dependent), number, number, number, dependent)
        )
    wanted = _with_keys(b"c0.row_key,c0.column_name,c0.ref_key", keys)
    return b"SELECT %b%b FROM %b WHERE %b" % (columns, b"".join(pairs), b" ".join(joins), wanted)


def latest_version(database: str) -> bytes:
    """Return a subquery for the ref_key of the latest version of a cell ``c`` that was not erased, or NULL.

    In the order of the whole key, since MySQL would read and sort all versions by ref_key alone.
    """
    return (
        b"SELECT n.ref_key FROM %b AS n FORCE INDEX (cell_key) WHERE n.row_key=c.row_key "
        b"AND n.column_name=c.column_name AND %b ORDER BY n.row_key DESC, n.column_name DESC, n.ref_key DESC LIMIT 1"
        % (cell_table(database), LIVE.replace(b"body", b"n.body"))
    )


def last_kept_version(database: str, kept: int, condition: bytes = b"TRUE") -> bytes:
    """Return a subquery for the lowest ref_key among the ``kept`` latest versions of a row of the table ``cell``.

    Erased versions count, too; without as many, it is NULL. ``condition`` is on versions, as ``newer``.

    Reading the body keeps MySQL from fetching all versions of a row from the index at once.
    """
    return (
        b"SELECT newer.ref_key FROM %b newer FORCE INDEX (cell_key) WHERE newer.row_key=cell.row_key "
        b"AND newer.column_name=cell.column_name AND LENGTH(newer.body)>=0 AND %b "
        b"ORDER BY newer.row_key DESC, newer.column_name DESC, newer.ref_key DESC LIMIT 1 OFFSET %d"
        % (cell_table(database), condition, kept - 1)
    )


def select_latest_versions(database: str, keys: Iterable[tuple[bytes, str, int]]) -> bytes:
    """Select row_key, column_name and ref_key of the cells with these keys, and the ``latest_version`` of each."""
    return b"SELECT row_key, column_name, ref_key, (%b) FROM %b AS c FORCE INDEX (cell_key) WHERE %b" % (
        latest_version(database),
        cell_table(database),
        with_keys(keys),
    )


def select_higher_versions(database: str, keys: Iterable[tuple[bytes, str, int]], limit: int) -> bytes:
    """Select row_key, column_name and ref_key of the next versions after each cell, erased ones as well."""
    return all_limited(
        b"SELECT row_key, column_name, ref_key FROM %b WHERE row_key=x'%b' AND column_name='%b' AND ref_key>%d "
        b"ORDER BY ref_key LIMIT %d" % (by_key(database), row_key.hex().encode(), column_name.encode(), ref_key, limit)
        for row_key, column_name, ref_key in keys
    )


def select_latest_ref_key(database: str, row_key: bytes, column_name: str) -> bytes:
    """Select one string: row_key, column_name and a space, to verify the reply, then the highest ref_key, if any.

    The server finds the highest ref_key without reading a row. There is only one column because a second would cost the
    client time.
    """
    row, column = row_key.hex().encode(), column_name.encode()
    return b"SELECT CONCAT(x'%b','%b ',IFNULL(MAX(ref_key),'')) FROM %b WHERE row_key=x'%b' AND column_name='%b'" % (
        row,
        column,
        by_key(database),
        row,
        column,
    )


def lock_head(database: str, row_key: bytes, column_name: str, ref_key: int) -> bytes:
    """Select added_id, row_key, column_name, ref_key and the first bytes of the body, enough for a tombstone.

    Until the transaction ends, no other one can replace the body.
    """
    place = by_key(database), row_key.hex().encode(), column_name.encode(), ref_key
    return (
        b"SELECT added_id, row_key, column_name, ref_key, LEFT(body,%d) FROM %b WHERE row_key=x'%b' "
        b"AND column_name='%b' AND ref_key=%d LOCK IN SHARE MODE" % (TOMBSTONE_BYTES, *place)
    )


def select_added_id(database: str, row_key: bytes, column_name: str, ref_key: int) -> bytes:
    """Select added_id, row_key, column_name and ref_key of one cell."""
    return (
        b"SELECT added_id, row_key, column_name, ref_key FROM %b WHERE row_key=x'%b' AND column_name='%b' "
        b"AND ref_key=%d"
    ) % (by_key(database), row_key.hex().encode(), column_name.encode(), ref_key)


def select_by_id(database: str, ids: Iterable[int]) -> bytes:
    """Select the cells with these added_ids."""
    return b"SELECT %b FROM %b WHERE added_id IN (%b)" % (CELL, by_id(database), numbers(ids))


def select_page_end(database: str, where: bytes, limit: int, max_bytes: int) -> bytes:
    """Select the end of a page of rows whose bodies have at most ``max_bytes`` in total; a page has at least one row.

    The server adds up the sizes before anything is fetched: bodies reach 16 MiB, and adjacent ones may differ by a
    factor of a thousand.

    Returns:
        A statement whose only row is the last added_id (NULL if there are no rows), the number of rows up to it, and
        the number of rows examined, at most ``limit``.
    """
    return (
        b"SELECT COALESCE(MAX(CASE WHEN total<=%d THEN added_id END), MIN(added_id)), "
        b"GREATEST(1, COUNT(CASE WHEN total<=%d THEN 1 END)), COUNT(*) FROM "
        b"(SELECT added_id, SUM(size) OVER (ORDER BY added_id ROWS UNBOUNDED PRECEDING) AS total FROM "
        b"(SELECT added_id, LENGTH(body) AS size FROM %b WHERE %b ORDER BY added_id LIMIT %d) AS page) AS totals"
        % (max_bytes, max_bytes, by_id(database), where, limit)
    )


def select_page(database: str, where: bytes, limit: int, max_body_bytes: int) -> bytes:
    """Select the next ``limit`` cells in a range of added_ids; bodies over ``max_body_bytes`` are NULL."""
    return (
        b"SELECT added_id, row_key, column_name, ref_key, IF(LENGTH(body)<=%d,body,NULL), %b FROM %b WHERE %b "
        b"ORDER BY added_id LIMIT %d" % (max_body_bytes, CREATED_AT, by_id(database), where, limit)
    )


def select_keys_digest(database: str, after: int, up_to: int) -> bytes:
    """Select the number of rows with ``after < added_id <= up_to``, and a digest of their ids and keys."""
    key = b"CONCAT_WS('/',added_id,HEX(row_key),column_name,ref_key)"
    return (
        b"SELECT COUNT(*), BIT_XOR(CAST(CONV(LEFT(SHA2(%b,256),16),16,10) AS UNSIGNED)), "
        b"BIT_XOR(CAST(CONV(RIGHT(SHA2(%b,256),16),16,10) AS UNSIGNED)) FROM %b WHERE %b"
        % (key, key, by_id(database), id_range(after, up_to))
    )


def select_nothing(database: str) -> bytes:
    """Select no row; fails if the shard's ``cell`` table does not exist."""
    return b"SELECT 1 FROM %b LIMIT 0" % cell_table(database)


def select_id_span(database: str) -> bytes:
    """Select the lowest and the highest added_id; both NULL if the shard is empty."""
    return b"SELECT MIN(added_id), MAX(added_id) FROM %b" % cell_table(database)


def select_row_keys(database: str, after: bytes, limit: int) -> bytes:
    """Select the next row_keys of a shard above ``after``, in order."""
    return b"SELECT DISTINCT row_key FROM %b WHERE row_key>%b ORDER BY row_key LIMIT %d" % (
        by_key(database),
        blob_hex(after),
        limit,
    )


def select_ends(database: str) -> bytes:
    """Select the lowest and the highest row_key of a shard; both NULL if the shard is empty."""
    return b"SELECT MIN(row_key), MAX(row_key) FROM %b" % by_key(database)


def select_row_key_after(database: str, after: bytes, cells: int) -> bytes:
    """Select the row_key of the cell that follows the next ``cells`` cells above ``after``; no row if there is none."""
    return b"SELECT row_key FROM %b WHERE row_key>%b ORDER BY row_key LIMIT %d,1" % (
        by_key(database),
        blob_hex(after),
        cells,
    )


def count_cells(database: str, after: bytes, up_to: bytes | None, column_name: str | None) -> bytes:
    """Count the cells with ``after < row_key <= up_to`` (None for no upper limit), of one column or all."""
    condition = b"row_key>" + blob_hex(after)
    if up_to is not None:
        condition += b" AND row_key<=" + blob_hex(up_to)
    if column_name is not None:
        condition += b" AND column_name=" + text(column_name)
    return b"SELECT COUNT(*) FROM %b WHERE %b" % (by_key(database), condition)


def sample_keys(database: str, start: bytes, limit: int, column_name: str) -> bytes:
    """Count up to ``limit`` keys from a row_key on, and those of a column among them."""
    return (
        b"SELECT COUNT(*), COALESCE(SUM(column_name=%b),0) FROM "
        b"(SELECT column_name FROM %b WHERE row_key>=%b ORDER BY row_key LIMIT %d) AS sample"
        % (text(column_name), by_key(database), blob_hex(start), limit)
    )


def estimate_cells(databases: Iterable[str]) -> bytes:
    """Select the total number of cells of shards on one server, as estimated by its statistics."""
    return (
        b"SELECT COALESCE(SUM(TABLE_ROWS),0) FROM information_schema.TABLES WHERE TABLE_NAME='cell' "
        b"AND TABLE_SCHEMA IN (%b)" % texts(databases)
    )


FRESH_STATISTICS: Final = set_session({"information_schema_stats_expiry": 0})
"""Setting that disables cached table statistics; needed on MySQL only, because MariaDB does not cache them."""


def select_block_end(database: str, after: int, rows: int, up_to: int | None = None) -> bytes:
    """Select the last added_id of the next ``rows`` rows, and how many there are, reading only keys.

    ref_key is selected for the optimizer: with added_id alone, and outdated statistics from a nearly empty table, MySQL
    would read the index from its beginning.
    """
    return (
        b"SELECT MAX(added_id), COUNT(*) FROM "
        b"(SELECT added_id, ref_key FROM %b WHERE %b ORDER BY added_id LIMIT %d) AS block"
        % (by_id(database), id_range(after, up_to), rows)
    )


def select_column_codecs(catalog: str) -> bytes:
    """Select column_name, codec, level, dictionary_id, set_at and history of every column with a setting."""
    return (
        b"SELECT column_name, codec, level, dictionary_id, CONCAT(set_at,'+00:00'), history FROM %b "
        b"ORDER BY column_name" % table(catalog, b"column_codec")
    )


def upsert_column_codec(
    catalog: str, column_name: str, codec: str, level: int | None, dictionary_id: int | None, history: bool
) -> bytes:
    """Set the codec of a column."""
    setting: dict[str, Term] = {"codec": codec, "level": level, "dictionary_id": dictionary_id, "set_at": NOW}
    setting["history"] = int(history)
    return upsert(table(catalog, b"column_codec"), {"column_name": column_name}, setting)


def delete_column_codec(catalog: str, column_name: str) -> bytes:
    """Delete the codec setting of a column."""
    return delete(table(catalog, b"column_codec"), column_name=column_name)


def select_columns_with(catalog: str, dictionary_id: int) -> bytes:
    """Select the names of the columns that use a dictionary, sorted."""
    arguments = (table(catalog, b"column_codec"), dictionary_id)
    return b"SELECT column_name FROM %b WHERE dictionary_id=%d ORDER BY column_name" % arguments


def select_dictionary(catalog: str, dictionary_id: int, *, lock: bool = False) -> bytes:
    """Select the content, digest, removed_at and retired_at (UTC) of a dictionary; ``lock`` locks the row."""
    arguments = (table(catalog, b"dictionary"), dictionary_id, b" FOR UPDATE" if lock else b"")
    return b"SELECT content, digest, removed_at, retired_at FROM %b WHERE dictionary_id=%d%b" % arguments


def lock_dictionary_times(catalog: str, dictionary_id: int) -> bytes:
    """Select retired_at, removed_at and the seconds since retired_at, and lock the row."""
    return (
        b"SELECT retired_at, removed_at, TIMESTAMPDIFF(MICROSECOND, retired_at, UTC_TIMESTAMP(6))/1000000 FROM %b "
        b"WHERE dictionary_id=%d FOR UPDATE" % (table(catalog, b"dictionary"), dictionary_id)
    )


def select_dictionaries(catalog: str, dictionary_id: int | None = None) -> bytes:
    """Select all dictionaries, or one, ordered by id.

    Returns:
        A statement whose rows are dictionary_id, content, digest, size_bytes, source, created_at, retired_at and
        removed_at.
    """
    return (
        b"SELECT dictionary_id, content, digest, size_bytes, source, created_at, retired_at, removed_at FROM %b "
        b"WHERE %b ORDER BY dictionary_id" % (table(catalog, b"dictionary"), matching(dictionary_id=dictionary_id))
    )


def select_highest_dictionary(catalog: str) -> bytes:
    """Select the highest id of all dictionaries, including removed ones; 0 if there are none."""
    return b"SELECT COALESCE(MAX(dictionary_id),0) FROM %b" % table(catalog, b"dictionary")


def select_dictionaries_of_size(catalog: str, size_bytes: int) -> bytes:
    """Select dictionary_id and content of the dictionaries in use with this size, ordered by id."""
    return (
        b"SELECT dictionary_id, content FROM %b WHERE LENGTH(content)=%d AND retired_at IS NULL "
        b"ORDER BY dictionary_id" % (table(catalog, b"dictionary"), size_bytes)
    )


def select_dictionary_source(catalog: str, dictionary_id: int) -> bytes:
    """Select the description of a dictionary's training data, as JSON text."""
    return b"SELECT source FROM %b WHERE dictionary_id=%d" % (table(catalog, b"dictionary"), dictionary_id)


def insert_dictionary(catalog: str, size_bytes: int, source: str, dictionary_id: int | None) -> bytes:
    """Insert a dictionary without content, with the next id or the given one."""
    number = b"DEFAULT" if dictionary_id is None else dictionary_id
    row = (number, blob(bytes(32)), size_bytes, source)
    return insert(table(catalog, b"dictionary"), "dictionary_id, digest, size_bytes, source", [row])


def upsert_dictionary(catalog: str, dictionary_id: int, content: bytes, digest: bytes, source: str) -> bytes:
    """Insert or replace a dictionary; a removed one is restored."""
    key: dict[str, Term] = {"dictionary_id": dictionary_id, "source": source}
    return upsert(table(catalog, b"dictionary"), key, _content(content, digest))


def delete_dictionary(catalog: str, dictionary_id: int) -> bytes:
    """Delete the row of a dictionary that was inserted in the same transaction."""
    return delete(table(catalog, b"dictionary"), dictionary_id=dictionary_id)


def update_dictionary(catalog: str, dictionary_id: int, content: bytes, digest: bytes) -> bytes:
    """Write a dictionary's content; a removed one is restored."""
    return update(table(catalog, b"dictionary"), _content(content, digest), dictionary_id=dictionary_id)


def restore_retired_dictionary(catalog: str, dictionary_id: int) -> bytes:
    """Put a retired dictionary back into use."""
    return update(table(catalog, b"dictionary"), {"retired_at": None}, dictionary_id=dictionary_id)


def retire_dictionary(catalog: str, dictionary_id: int) -> bytes:
    """Retire a dictionary: columns can no longer be set to use it."""
    return update(table(catalog, b"dictionary"), {"retired_at": NOW}, dictionary_id=dictionary_id)


def remove_dictionary(catalog: str, dictionary_id: int) -> bytes:
    """Remove a dictionary's content; its id stays reserved."""
    return update(table(catalog, b"dictionary"), {"content": None, "removed_at": NOW}, dictionary_id=dictionary_id)


def _content(content: bytes, digest: bytes) -> dict[str, Term]:
    return {"content": blob(content), "digest": blob(digest), "size_bytes": len(content), "removed_at": None}


_ZSTD_BODY: Final = b"SUBSTRING(body,1,6) IN (x'C10228B52FFD',x'C11228B52FFD')"


_DESCRIPTOR: Final = b"ORD(SUBSTRING(body,7,1))"


def _names(dictionary_id: int) -> bytes:
    """Return a condition for zstd bodies that refer to a dictionary, whose id follows the frame header descriptor.

    The descriptor tells whether another byte, the window descriptor, comes in between.
    """
    number = dictionary_id.to_bytes(2, "little").hex().encode()
    return b"%b&3=2 AND SUBSTRING(body,8+(%b&32=0),2)=x'%b'" % (_DESCRIPTOR, _DESCRIPTOR, number)


def select_named(database: str, dictionary_id: int, after: int, up_to: int) -> bytes:
    """Select the key and added_id of one cell with ``after < added_id <= up_to`` that refers to a dictionary."""
    return b"SELECT row_key, column_name, ref_key, added_id FROM %b WHERE %b AND %b AND %b LIMIT 1" % (
        by_id(database),
        id_range(after, up_to),
        _ZSTD_BODY,
        _names(dictionary_id),
    )
