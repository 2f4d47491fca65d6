"""The statements of the hot paths, built as bytes.

Every function is pure: names and values in, one statement out. Values are checked by the caller to be what the table
takes; databases are ``shard_database()`` names. Sessions run with backslash escapes on (``connect.SQL_MODE``).

Each statement names its index. After a crash InnoDB's statistics may say that a table of thousands has two rows, and
the optimizer would then read all of them, and an UPDATE lock them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

CellColumns = tuple[int, bytes, str, int, bytes, object]

_CREATED_AT: Final = b"CONCAT(created_at,'+00:00')"
"""As text that says UTC: drivers take several microseconds to read a DATETIME, Python a tenth of one to read this."""

_COLUMNS: Final = b"added_id, row_key, column_name, ref_key, body, " + _CREATED_AT

_DIGESTS: Final = b"added_id, row_key, column_name, ref_key, " + _CREATED_AT + b", UNHEX(SHA2(body,256)), LENGTH(body)"

ROW_OVERHEAD_BYTES: Final = 160
"""More than what a row of an INSERT or UPDATE adds to its escaped body."""


def blob(value: bytes) -> bytes:
    r"""Return a string literal that is ``value`` to the server.

    Only the quote and the backslash end or change a literal; NUL and line ends may stand as they are.

    >>> blob(b"it's \\")
    b"_binary'it\\'s \\\\'"
    """
    return b"_binary'" + value.replace(b"\\", b"\\\\").replace(b"'", b"\\'") + b"'"


def text(value: str) -> bytes:
    """Return a string literal that is ``value`` to the server."""
    return b"'" + value.encode().replace(b"\\", b"\\\\").replace(b"'", b"\\'") + b"'"


def insert_cells(
    database: str,
    cells: Iterable[tuple[bytes, str, int, bytes]],
    created_at: Sequence[datetime | None] | None = None,
) -> bytes:
    """Insert rows of ``(row_key, column_name, ref_key, body)``.

    Args:
        database: the shard's.
        cells: the rows.
        created_at: of each row, in UTC, or None for the server's clock; None where all are.
    """
    values = [
        b"(x'%b','%b',%d,%b)" % (row_key.hex().encode(), column_name.encode(), ref_key, blob(body))
        for row_key, column_name, ref_key, body in cells
    ]
    if created_at is not None:
        timed = [b"%b,%b)" % (row[:-1], _moment(at)) for row, at in zip(values, created_at, strict=True)]
        return b"INSERT INTO %b (row_key,column_name,ref_key,body,created_at) VALUES %b" % (
            _cell(database),
            b",".join(timed),
        )
    return b"INSERT INTO %b (row_key,column_name,ref_key,body) VALUES %b" % (_cell(database), b",".join(values))


def _moment(at: datetime | None) -> bytes:
    return b"DEFAULT" if at is None else b"'%b'" % at.replace(tzinfo=None).isoformat(" ").encode()


def select_cells(database: str, keys: Iterable[tuple[bytes, str, int]]) -> bytes:
    """Select the cells with these keys, in no particular order."""
    tests = [
        b"(row_key=x'%b' AND column_name='%b' AND ref_key=%d)" % (row_key.hex().encode(), column_name.encode(), ref_key)
        for row_key, column_name, ref_key in keys
    ]
    return b"SELECT %b FROM %b WHERE %b" % (_COLUMNS, _by_key(database), b" OR ".join(tests))


def select_latest(database: str, pairs: Sequence[tuple[bytes, str]]) -> bytes:
    """Select, for each ``(row_key, column_name)``, the cell with the highest ref_key."""
    parts = [
        b"SELECT %b FROM %b WHERE row_key=x'%b' AND column_name='%b' ORDER BY ref_key DESC LIMIT 1"
        % (_COLUMNS, _by_key(database), row_key.hex().encode(), column_name.encode())
        for row_key, column_name in pairs
    ]
    if len(parts) == 1:
        return parts[0]
    return b"(" + b") UNION ALL (".join(parts) + b")"


def select_row(database: str, row_key: bytes) -> bytes:
    """Select the latest cell of each column of a row."""
    key = row_key.hex().encode()
    return (
        b"SELECT c.added_id, c.row_key, c.column_name, c.ref_key, c.body, %b FROM "
        b"(SELECT column_name, MAX(ref_key) AS ref_key FROM %b WHERE row_key=x'%b' GROUP BY column_name) AS latest "
        b"STRAIGHT_JOIN %b AS c FORCE INDEX (cell_key) "
        b"ON c.row_key=x'%b' AND c.column_name=latest.column_name AND c.ref_key=latest.ref_key "
        b"ORDER BY c.column_name" % (_CREATED_AT, _by_key(database), key, _cell(database), key)
    )


def select_column_names(database: str, row_key: bytes) -> bytes:
    """Select the names of a row's columns."""
    return b"SELECT DISTINCT column_name FROM %b WHERE row_key=x'%b' ORDER BY column_name" % (
        _by_key(database),
        row_key.hex().encode(),
    )


def select_versions(
    database: str, row_key: bytes, column_name: str, above: int, below: int, descending: bool, limit: int
) -> bytes:
    """Select versions of one row and column with ``above < ref_key < below``."""
    return (
        b"SELECT %b FROM %b WHERE row_key=x'%b' AND column_name='%b' AND ref_key>%d AND ref_key<%d "
        b"ORDER BY ref_key %b LIMIT %d"
        % (
            _COLUMNS,
            _by_key(database),
            row_key.hex().encode(),
            column_name.encode(),
            above,
            below,
            b"DESC" if descending else b"ASC",
            limit,
        )
    )


def select_latest_ref_key(database: str, row_key: bytes, column_name: str) -> bytes:
    """Select a row and column's highest ref_key, and behind it row_key and column_name as one; columns cost time."""
    return (
        b"SELECT ref_key, CONCAT(row_key,column_name) FROM %b WHERE row_key=x'%b' AND column_name='%b' "
        b"ORDER BY ref_key DESC LIMIT 1"
    ) % (
        _by_key(database),
        row_key.hex().encode(),
        column_name.encode(),
    )


def select_added_id(database: str, row_key: bytes, column_name: str, ref_key: int) -> bytes:
    """Select added_id, row_key, column_name and ref_key of one cell."""
    return (
        b"SELECT added_id, row_key, column_name, ref_key FROM %b WHERE row_key=x'%b' AND column_name='%b' "
        b"AND ref_key=%d"
    ) % (
        _by_key(database),
        row_key.hex().encode(),
        column_name.encode(),
        ref_key,
    )


def select_page_end(
    database: str,
    after: int,
    up_to: int | None,
    limit: int,
    max_bytes: int,
    *,
    legacy_only: bool = False,
    column_name: str | None = None,
) -> bytes:
    """Select where a page of rows ends whose bodies have ``max_bytes`` at most, but one row at least.

    Sized by the server before anything is fetched: bodies reach 16 MiB, and neighbours may differ by a thousand times.

    Returns:
        A statement whose one row is the last added_id (NULL where there are no rows), the number of rows up to it, and
        the number of rows that were looked at, ``limit`` at most.
    """
    return (
        b"SELECT COALESCE(MAX(CASE WHEN total<=%d THEN added_id END), MIN(added_id)), "
        b"GREATEST(1, COUNT(CASE WHEN total<=%d THEN 1 END)), COUNT(*) FROM "
        b"(SELECT added_id, SUM(size) OVER (ORDER BY added_id ROWS UNBOUNDED PRECEDING) AS total FROM "
        b"(SELECT added_id, LENGTH(body) AS size FROM %b WHERE %b ORDER BY added_id LIMIT %d) AS page) AS totals"
        % (max_bytes, max_bytes, _by_id(database), _range(after, up_to, legacy_only, column_name), limit)
    )


def select_page(
    database: str,
    after: int,
    up_to: int | None,
    limit: int,
    max_body_bytes: int,
    *,
    legacy_only: bool = False,
    column_name: str | None = None,
) -> bytes:
    """Select the next ``limit`` cells with ``after < added_id <= up_to``, in that order; a longer body is NULL."""
    return (
        b"SELECT added_id, row_key, column_name, ref_key, IF(LENGTH(body)<=%d,body,NULL), %b FROM %b WHERE %b "
        b"ORDER BY added_id LIMIT %d"
        % (
            max_body_bytes,
            _CREATED_AT,
            _by_id(database),
            _range(after, up_to, legacy_only, column_name),
            limit,
        )
    )


def wanted_bodies(
    target: int | None, sources: Sequence[int | None], columns: Sequence[str], *, dictionary_id: int | None = None
) -> bytes:
    """Return a test for bodies that may have to be re-encoded; those in the target's own format never do.

    Args:
        target: the format byte of the codec that they shall be in; None for legacy.
        dictionary_id: the dictionary that they shall name, where ``target`` is zstd's; None for none.
        sources: only bodies in these formats; all unless given.
        columns: only these columns; all unless given.
    """
    head = b"SUBSTRING(body,1,%d)%b"

    def having(form: int | None) -> bytes:
        return head % ((1, b"<>x'C1'") if form is None else (2, b"=x'C1%02X'" % form))

    test = head % ((1, b"=x'C1'") if target is None else (2, b"<>x'C1%02X'" % target))
    if target is not None and target & 15 == _ZSTD:
        named = _NAMES_NONE if dictionary_id is None else _names(dictionary_id)
        test = b"(%b OR NOT (%b))" % (test, named)
    if sources:
        test += b" AND (%b)" % b" OR ".join(map(having, sources))
    if columns:
        test += b" AND column_name IN (%b)" % b",".join(map(text, columns))
    return test


_ZSTD: Final = 2
_ZSTD_BODY: Final = b"SUBSTRING(body,1,6) IN (x'C10228B52FFD',x'C11228B52FFD')"
_DESCRIPTOR: Final = b"ORD(SUBSTRING(body,7,1))"
_NAMES_NONE: Final = b"SUBSTRING(body,3,4)=x'28B52FFD' AND %b&3=0" % _DESCRIPTOR


def _names(dictionary_id: int) -> bytes:
    """Return a test for zstd bodies that name a dictionary: its id stands behind the frame's descriptor.

    Between the two there is a byte more where the descriptor says so.
    """
    number = dictionary_id.to_bytes(2, "little").hex().encode()
    return b"%b&3=2 AND SUBSTRING(body,8+(%b&32=0),2)=x'%b'" % (_DESCRIPTOR, _DESCRIPTOR, number)


def select_named(database: str, dictionary_id: int, after: int, up_to: int) -> bytes:
    """Select row_key, column_name, ref_key and added_id of one cell that names a dictionary, if there is one.

    Looked at are those with ``after < added_id <= up_to``.
    """
    return b"SELECT row_key, column_name, ref_key, added_id FROM %b WHERE %b AND %b AND %b LIMIT 1" % (
        _by_id(database),
        _range(after, up_to),
        _ZSTD_BODY,
        _names(dictionary_id),
    )


def select_column_codecs(catalog: str) -> bytes:
    """Select column_name, codec, level, dictionary_id and set_at of every column that is set."""
    return (
        b"SELECT column_name, codec, level, dictionary_id, CONCAT(set_at,'+00:00') FROM `%b`.column_codec "
        b"ORDER BY column_name" % catalog.encode()
    )


def select_dictionary(catalog: str, dictionary_id: int) -> bytes:
    """Select content, digest and removed_at of a dictionary."""
    return b"SELECT content, digest, removed_at FROM `%b`.dictionary WHERE dictionary_id=%d" % (
        catalog.encode(),
        dictionary_id,
    )


def select_block(database: str, after: int, rows: int, max_body_bytes: int, wanted: bytes) -> bytes:
    """Select the next ``rows`` rows, with a body only where it is ``wanted``, and no longer than this.

    Returns:
        A statement whose rows are whole cells, with the body's length behind, NULL where it is not wanted.
    """
    return (
        b"SELECT added_id, row_key, column_name, ref_key, IF((%b) AND LENGTH(body)<=%d,body,NULL), %b, "
        b"IF(%b,LENGTH(body),NULL) FROM %b WHERE added_id>%d ORDER BY added_id LIMIT %d"
        % (wanted, max_body_bytes, _CREATED_AT, wanted, _by_id(database), after, rows)
    )


def select_digests(database: str, ids: Iterable[int]) -> bytes:
    """Select added_id and SHA-256, in hexadecimal, of the bodies with these added_ids."""
    return b"SELECT added_id, SHA2(body,256) FROM %b WHERE added_id IN (%b)" % (
        _by_id(database),
        b",".join(b"%d" % added_id for added_id in ids),
    )


def select_ids(database: str, after: int, up_to: int) -> bytes:
    """Select the added_ids with ``after < added_id <= up_to``, in their order."""
    return b"SELECT added_id FROM %b WHERE %b ORDER BY added_id" % (_by_id(database), _range(after, up_to))


def _range(after: int, up_to: int | None, legacy_only: bool = False, column_name: str | None = None) -> bytes:
    test = b"added_id>%d" % after
    if up_to is not None:
        test += b" AND added_id<=%d" % up_to
    if legacy_only:
        test += b" AND SUBSTRING(body,1,1)<>x'C1'"
    if column_name is not None:
        test += b" AND column_name='%b'" % column_name.encode()
    return test


def select_block_end(database: str, after: int, rows: int, up_to: int | None = None) -> bytes:
    """Select the last added_id, and the number, of the next ``rows`` rows; reads keys only.

    With added_id alone, and statistics that say there are two rows, MySQL would read the index from its beginning.
    """
    return (
        b"SELECT MAX(added_id), COUNT(*) FROM "
        b"(SELECT added_id, ref_key FROM %b WHERE %b ORDER BY added_id LIMIT %d) AS block"
        % (_by_id(database), _range(after, up_to), rows)
    )


def select_probe(database: str, low: int, after: int, up_to: int, rows: int) -> bytes:
    """Select what lies about an added_id: the one up to it and the next one, NULL where there is none.

    Of the next ``rows`` rows also the last one's, their number, and their bodies' bytes.
    """
    table = _by_id(database)
    return (
        b"SELECT (SELECT MAX(added_id) FROM %b WHERE added_id BETWEEN %d AND %d), "
        b"MIN(added_id), MAX(added_id), COUNT(*), SUM(size) FROM "
        b"(SELECT added_id, LENGTH(body) AS size FROM %b WHERE %b ORDER BY added_id LIMIT %d) AS probe"
        % (table, low, after, table, _range(after, up_to), rows)
    )


def select_lengths(database: str, after: int, up_to: int) -> bytes:
    """Select column_name and body length of the rows with ``after < added_id <= up_to``, in their order."""
    return b"SELECT column_name, LENGTH(body) FROM %b WHERE %b ORDER BY added_id" % (
        _by_id(database),
        _range(after, up_to),
    )


def select_figures(database: str, after: int, up_to: int) -> bytes:
    """Select what measuring needs of the rows with ``after < added_id <= up_to``, in their order.

    That is added_id, column_name, the body's length and its first two bytes, and created_at.
    """
    return b"SELECT added_id, column_name, LENGTH(body), SUBSTRING(body,1,2), %b FROM %b WHERE %b ORDER BY added_id" % (
        _CREATED_AT,
        _by_id(database),
        _range(after, up_to),
    )


def select_bodies(database: str, ids: Iterable[int]) -> bytes:
    """Select added_id and body of the cells with these added_ids."""
    return b"SELECT added_id, body FROM %b WHERE added_id IN (%b)" % (
        _by_id(database),
        b",".join(b"%d" % added_id for added_id in ids),
    )


def select_moments(database: str, places: Iterable[int]) -> bytes:
    """Select, for each added_id, the row from there on: what was when.

    By MIN no range is estimated, which would read 40 pages of a large table for one row.

    Returns:
        A statement whose rows are the added_id asked for, the row's, and its created_at; none behind the last row.
    """
    table = _by_id(database)
    return b" UNION ALL ".join(
        b"(SELECT %d, added_id, %b FROM %b WHERE added_id=(SELECT MIN(added_id) FROM %b WHERE added_id>=%d))"
        % (place, _CREATED_AT, table, table, place)
        for place in places
    )


def count_columns(parts: Sequence[tuple[str, int, int]]) -> bytes:
    """Count cells by column_name in stretches of added_ids, of one server's shards; touches no body.

    Args:
        parts: ``(database, after, up_to)``: the rows with ``after < added_id <= up_to``.

    Returns:
        A statement whose rows are the position in ``parts``, column_name, and how many.
    """
    return b" UNION ALL ".join(
        b"(SELECT %d, column_name, COUNT(*) FROM %b WHERE %b GROUP BY column_name)"
        % (position, _by_id(database), _range(after, up_to))
        for position, (database, after, up_to) in enumerate(parts)
    )


def select_table_made(database: str) -> bytes:
    """Select when the ``cell`` table was made or last rebuilt, as text, and whether that was in this second."""
    return (
        b"SELECT CONCAT(CREATE_TIME,''), CREATE_TIME>=NOW() FROM information_schema.TABLES "
        b"WHERE TABLE_SCHEMA='%b' AND TABLE_NAME='cell'" % database.encode()
    )


def rebuild_table(database: str) -> bytes:
    """Rebuild the ``cell`` table while it is read and written."""
    return b"ALTER TABLE %b FORCE, ALGORITHM=INPLACE, LOCK=NONE" % _cell(database)


def select_by_id(database: str, ids: Iterable[int]) -> bytes:
    """Select the cells with these added_ids."""
    return b"SELECT %b FROM %b WHERE added_id IN (%b)" % (
        _COLUMNS,
        _by_id(database),
        b",".join(b"%d" % added_id for added_id in ids),
    )


def select_data_lengths(databases: Iterable[str]) -> bytes:
    """Select the length of each shard's ``cell`` table as InnoDB's statistics have it, in bytes."""
    return (
        b"SELECT TABLE_SCHEMA, DATA_LENGTH FROM information_schema.TABLES WHERE TABLE_NAME='cell' "
        b"AND TABLE_SCHEMA IN (%b)" % b",".join(map(text, databases))
    )


def select_stored_digests(database: str, ids: Iterable[int]) -> bytes:
    """Select, for the cells with these added_ids, what ``_DIGESTS`` lists: their bodies stay where they are."""
    return b"SELECT %b FROM %b WHERE added_id IN (%b)" % (
        _DIGESTS,
        _by_id(database),
        b",".join(b"%d" % added_id for added_id in ids),
    )


def select_block_digests(database: str, after: int, up_to: int) -> bytes:
    """Select as ``select_stored_digests`` does, for the cells with ``after < added_id <= up_to``."""
    return b"SELECT %b FROM %b WHERE %b ORDER BY added_id" % (_DIGESTS, _by_id(database), _range(after, up_to))


def count_cells(database: str) -> bytes:
    """Count the cells of a shard, exactly."""
    return b"SELECT COUNT(*) FROM %b" % _cell(database)


def update_bodies(database: str, changes: Iterable[tuple[int, bytes, bytes]]) -> bytes:
    """Replace bodies that are still what was read: rows of ``(added_id, body read, new body)``.

    The guard is a digest, since sending the old body would double the binary log; it is an UPDATE, since an upsert
    would bring back a cell that was erased meanwhile. The number of rows matched says how many were still the same.
    """
    return replace_bodies(database, ((added_id, hashlib.sha256(old).digest(), new) for added_id, old, new in changes))


def replace_bodies(database: str, changes: Iterable[tuple[int, bytes, bytes]]) -> bytes:
    """Replace bodies as ``update_bodies`` does: rows of ``(added_id, SHA-256 of the body there, new body)``."""
    parts = [
        (b"SELECT %d,%b,'%b'" if position else b"SELECT %d AS id,%b AS new_body,'%b' AS digest")
        % (added_id, blob(new), digest.hex().encode())
        for position, (added_id, digest, new) in enumerate(changes)
    ]
    return (
        b"UPDATE (%b) AS v STRAIGHT_JOIN %b AS c FORCE INDEX (PRIMARY) ON c.added_id=v.id "
        b"SET c.body=v.new_body WHERE SHA2(c.body,256)=v.digest" % (b" UNION ALL ".join(parts), _cell(database))
    )


def select_identity(database: str) -> bytes:
    """Select what a shard says of itself."""
    return b"SELECT datastore, shard, shard_count, placement, format FROM `%b`.shard_identity" % database.encode()


def insert_identity(
    database: str, datastore: str, shard: int, shard_count: int, placement: str, format_number: int
) -> bytes:
    """Insert what a shard says of itself, unless it says something already."""
    return (
        b"INSERT IGNORE INTO `%b`.shard_identity (only_row, datastore, shard, shard_count, placement, format) "
        b"VALUES (1, '%b', %d, %d, '%b', %d)"
        % (database.encode(), datastore.encode(), shard, shard_count, placement.encode(), format_number)
    )


def select_version(database: str) -> bytes:
    """Select the Alembic revision that a database is at."""
    return b"SELECT version_num FROM `%b`.alembic_version" % database.encode()


def select_id_span(database: str) -> bytes:
    """Select the lowest and the highest added_id; both NULL for an empty shard."""
    return b"SELECT MIN(added_id), MAX(added_id) FROM %b" % _cell(database)


def _by_key(database: str) -> bytes:
    return b"%b FORCE INDEX (cell_key)" % _cell(database)


def _by_id(database: str) -> bytes:
    return b"%b FORCE INDEX (PRIMARY)" % _cell(database)


def _cell(database: str) -> bytes:
    return b"`%b`.cell" % database.encode()
