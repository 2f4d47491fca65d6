"""Building blocks of SQL statements: literals, table names, and common clauses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

CREATED_AT: Final = b"CONCAT(created_at,'+00:00')"
"""Creation time as ISO text with UTC offset: parsing takes 0.1 us, and a driver's DATETIME conversion several us."""

CELL: Final = b"added_id, row_key, column_name, ref_key, body, " + CREATED_AT
"""All columns of a cell, in the order that ``Cells`` expects."""

IS_DELTA: Final = b"SUBSTRING(body,1,2) IN (x'C113',x'C123')"
LIVE: Final = b"SUBSTRING(body,1,2)<>x'C1F0'"
"""Condition for cells that have not been erased."""

COLD: Final = b"SUBSTRING(body,1,2)=x'C1F1'"
"""Condition for cells whose document is in a cold file."""

CELLS: Final = "cell"
"""Name of the table of a shard's cells."""

NOW: Final = b"UTC_TIMESTAMP(6)"
"""Current time of the server's clock, in UTC."""

Value = str | int | float | None
"""Values of non-blob columns."""

Term = Value | bytes
"""Operand of an assignment or comparison: a value, or an SQL expression as bytes."""


def blob(value: bytes) -> bytes:
    r"""Return a binary string literal.

    Only quotes and backslashes need escapes; NUL and line breaks do not.

    >>> blob(b"it's \\")
    b"_binary'it\\'s \\\\'"
    """
    return b"_binary'%b'" % escaped(value)


def text(value: str) -> bytes:
    """Return a text literal."""
    return b"'%b'" % escaped(value.encode())


def escaped(value: bytes) -> bytes:
    """Escape the contents of a string literal; returns ``value`` itself if nothing needs an escape."""
    return value.replace(b"\\", b"\\\\").replace(b"'", b"\\'")


def literal(value: Value) -> bytes:
    """Return a literal for any value; floats get three decimal places."""
    if value is None:
        return b"NULL"
    if isinstance(value, str):
        return text(value)
    return b"%d" % value if isinstance(value, int) else b"%.3f" % value


def term(operand: Term) -> bytes:
    """Return the SQL for an operand."""
    return operand if isinstance(operand, bytes) else literal(operand)


def blob_hex(value: bytes) -> bytes:
    """Return a hexadecimal binary literal, for short values such as keys."""
    return b"x'%b'" % value.hex().encode()


def moment(at: datetime | None) -> bytes:
    """Return a literal for a UTC time; DEFAULT for None."""
    return b"DEFAULT" if at is None else b"'%b'" % at.replace(tzinfo=None).isoformat(" ").encode()


def id_range(after: int, up_to: int | None, legacy_only: bool = False, column_name: str | None = None) -> bytes:
    """Return a condition for ``after < added_id <= up_to``, optionally restricted to legacy bodies or one column."""
    condition = b"added_id>%d" % after
    if up_to is not None:
        condition += b" AND added_id<=%d" % up_to
    if legacy_only:
        condition += b" AND SUBSTRING(body,1,1)<>x'C1'"
    if column_name is not None:
        condition += b" AND column_name='%b'" % column_name.encode()
    return condition


def by_key(database: str, name: str = "cell") -> bytes:
    """Return a shard's cell table, or one of that form, with the index hint for reads by the unique key."""
    # A copy that is being built may not have the key yet.
    return quoted_table(database, name) + (b" FORCE INDEX (cell_key)" if name == "cell" else b"")


def by_id(database: str) -> bytes:
    """Return a shard's cell table with the index hint for reads in the order of added_id."""
    return b"%b FORCE INDEX (PRIMARY)" % cell_table(database)


def cell_table(database: str) -> bytes:
    """Return the name of a shard's cell table."""
    return table(database, CELLS.encode())


def table(database: str, name: bytes) -> bytes:
    """Return a qualified table name."""
    return b"`%b`.%b" % (database.encode(), name)


def quoted_table(database: str, name: str) -> bytes:
    """Return a qualified table name, quoting the table's name too, which may be arbitrary."""
    return b"`%b`.`%b`" % (database.encode(), name.encode())


def assigned(changes: Mapping[str, Term]) -> bytes:
    """Return the assignments of a SET clause."""
    return b", ".join(b"%b=%b" % (name.encode(), term(operand)) for name, operand in changes.items())


def insert(into: bytes, names: str, rows: Iterable[Sequence[Term]], *, ignore: bool = False) -> bytes:
    """Insert rows into a table; with ``ignore``, existing rows are kept."""
    verb = b"INSERT IGNORE INTO" if ignore else b"INSERT INTO"
    values = b",".join(b"(%b)" % b",".join(map(term, row)) for row in rows)
    return b"%b %b (%b) VALUES %b" % (verb, into, names.encode(), values)


def upsert(into: bytes, key: Mapping[str, Term], values: Mapping[str, Term]) -> bytes:
    """Insert a row, or update the row with the same key."""
    return b"INSERT INTO %b SET %b ON DUPLICATE KEY UPDATE %b" % (into, assigned({**key, **values}), assigned(values))


def update(target: bytes, changes: Mapping[str, Term], /, **key: Term) -> bytes:
    """Update the rows of a table that match the key (see ``matching``)."""
    return b"UPDATE %b SET %b WHERE %b" % (target, assigned(changes), matching(**key))


def delete(target: bytes, /, **key: Term) -> bytes:
    """Delete the rows of a table that match the key (see ``matching``)."""
    return b"DELETE FROM %b WHERE %b" % (target, matching(**key))


def matching(**key: Term) -> bytes:
    """Return a condition that columns have the given values; None matches any value."""
    conditions = [b"%b=%b" % (name.encode(), term(operand)) for name, operand in key.items() if operand is not None]
    return b" AND ".join(conditions) or b"TRUE"


def later(seconds: float) -> bytes:
    """Return the server's time plus a number of seconds, which may be negative."""
    return b"%b + INTERVAL %d MICROSECOND" % (NOW, round(seconds * 1e6))


def leased(column: bytes, most_s: float) -> bytes:
    """Return the condition that a lease of up to ``most_s`` seconds is valid.

    A server whose clock was set back, or a promoted one whose clock is behind, has some that end much later than that.
    A clock that was set back by less ends no lease, because its runner may be alive.
    """
    return b"%b BETWEEN %b AND %b" % (column, NOW, later(2 * most_s))


def numbers(values: Iterable[int]) -> bytes:
    """Return comma-separated numbers, for IN."""
    return b",".join(b"%d" % value for value in values)


def texts(values: Iterable[str]) -> bytes:
    """Return comma-separated text literals, for IN."""
    return b",".join(map(text, values))


def rows_of(row_keys: Iterable[bytes]) -> bytes:
    """Return a query for one row per row_key, to join tables with."""
    return all_rows(b"SELECT CAST(%b AS BINARY(16)) AS row_key" % blob_hex(row_key) for row_key in row_keys)


def all_rows(selects: Iterable[bytes]) -> bytes:
    """Combine queries with UNION ALL."""
    return b" UNION ALL ".join(selects)


def all_limited(selects: Iterable[bytes]) -> bytes:
    """Combine queries that may have a LIMIT each with UNION ALL; a single one is returned unchanged."""
    parts = list(selects)
    return parts[0] if len(parts) == 1 else all_rows(b"(%b)" % part for part in parts)
