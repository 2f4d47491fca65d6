"""What statements are made of: literals, and the parts that many of them share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

CREATED_AT: Final = b"CONCAT(created_at,'+00:00')"
"""The time comes as text that says UTC: drivers take several microseconds to read a DATETIME, Python a tenth of one."""

CELL: Final = b"added_id, row_key, column_name, ref_key, body, " + CREATED_AT
"""A whole cell has these columns, as ``Cells`` takes them."""

CELLS: Final = "cell"
"""The table of a shard's cells is called so."""

NOW: Final = b"UTC_TIMESTAMP(6)"
"""The server gives the time of its own clock for this, in UTC."""

Value = str | int | float | None
"""A column that is no blob takes these."""

Term = Value | bytes
"""A column is given this, or compared with it: a value, or bytes, which are SQL and stand as they are."""


def blob(value: bytes) -> bytes:
    r"""Return a string literal that is ``value`` to the server.

    Only the quote and the backslash end or change a literal; NUL and line ends may stand as they are.

    >>> blob(b"it's \\")
    b"_binary'it\\'s \\\\'"
    """
    return b"_binary'%b'" % escaped(value)


def text(value: str) -> bytes:
    """Return a string literal that is ``value`` to the server."""
    return b"'%b'" % escaped(value.encode())


def escaped(value: bytes) -> bytes:
    """Return what stands between the quotes of a string literal; ``value`` itself where nothing needs an escape."""
    return value.replace(b"\\", b"\\\\").replace(b"'", b"\\'")


def literal(value: Value) -> bytes:
    """Return a literal that is ``value`` to the server; a float has three digits behind the point."""
    if value is None:
        return b"NULL"
    if isinstance(value, str):
        return text(value)
    return b"%d" % value if isinstance(value, int) else b"%.3f" % value


def term(given: Term) -> bytes:
    """Return what stands for it in a statement."""
    return given if isinstance(given, bytes) else literal(given)


def blob_hex(value: bytes) -> bytes:
    """Return a literal as ``blob`` does, in hexadecimal: for the few bytes of a key."""
    return b"x'%b'" % value.hex().encode()


def moment(at: datetime | None) -> bytes:
    """Return a literal that is a UTC time to the server; its own clock's for None, where the column has that."""
    return b"DEFAULT" if at is None else b"'%b'" % at.replace(tzinfo=None).isoformat(" ").encode()


def id_range(after: int, up_to: int | None, legacy_only: bool = False, column_name: str | None = None) -> bytes:
    """Return a test for the rows with ``after < added_id <= up_to``, of such a body or column where that is given."""
    test = b"added_id>%d" % after
    if up_to is not None:
        test += b" AND added_id<=%d" % up_to
    if legacy_only:
        test += b" AND SUBSTRING(body,1,1)<>x'C1'"
    if column_name is not None:
        test += b" AND column_name='%b'" % column_name.encode()
    return test


def by_key(database: str) -> bytes:
    """Return a shard's table, to be read by its unique key."""
    return b"%b FORCE INDEX (cell_key)" % cell_table(database)


def by_id(database: str) -> bytes:
    """Return a shard's table, to be read in the order of its added_ids."""
    return b"%b FORCE INDEX (PRIMARY)" % cell_table(database)


def cell_table(database: str) -> bytes:
    """Return the name of a shard's table."""
    return table(database, CELLS.encode())


def table(database: str, name: bytes) -> bytes:
    """Return the name of a table in a database."""
    return b"`%b`.%b" % (database.encode(), name)


def quoted_table(database: str, name: str) -> bytes:
    """Return the name of a table that may be called anything."""
    return b"`%b`.`%b`" % (database.encode(), name.encode())


def assigned(changes: Mapping[str, Term]) -> bytes:
    """Return what stands behind SET: what each column is to be."""
    return b", ".join(b"%b=%b" % (name.encode(), term(given)) for name, given in changes.items())


def insert(into: bytes, names: str, rows: Iterable[Sequence[Term]], *, ignore: bool = False) -> bytes:
    """Insert rows with these columns into a table; with ``ignore``, those that are there stay."""
    how = b"INSERT IGNORE INTO" if ignore else b"INSERT INTO"
    values = b",".join(b"(%b)" % b",".join(map(term, row)) for row in rows)
    return b"%b %b (%b) VALUES %b" % (how, into, names.encode(), values)


def upsert(into: bytes, key: Mapping[str, Term], values: Mapping[str, Term]) -> bytes:
    """Insert a row into a table, or change the one that has its key."""
    return b"INSERT INTO %b SET %b ON DUPLICATE KEY UPDATE %b" % (into, assigned({**key, **values}), assigned(values))


def update(what: bytes, changes: Mapping[str, Term], **key: Term) -> bytes:
    """Change the rows of a table that are ``matching`` the key."""
    return b"UPDATE %b SET %b WHERE %b" % (what, assigned(changes), matching(**key))


def delete(where: bytes, **key: Term) -> bytes:
    """Delete the rows of a table that are ``matching`` the key."""
    return b"DELETE FROM %b WHERE %b" % (where, matching(**key))


def matching(**key: Term) -> bytes:
    """Return a test for rows whose columns are as ``key`` says; None leaves a column free."""
    tests = [b"%b=%b" % (name.encode(), term(given)) for name, given in key.items() if given is not None]
    return b" AND ".join(tests) or b"TRUE"


def later(seconds: float) -> bytes:
    """Return a time that is so many seconds from now, or ago where negative."""
    return b"%b + INTERVAL %d MICROSECOND" % (NOW, round(seconds * 1e6))


def numbers(values: Iterable[int]) -> bytes:
    """Return numbers with commas between them, for IN."""
    return b",".join(b"%d" % value for value in values)


def texts(values: Iterable[str]) -> bytes:
    """Return string literals with commas between them, for IN."""
    return b",".join(map(text, values))


def all_rows(selects: Iterable[bytes]) -> bytes:
    """Select what each of some statements selects."""
    return b" UNION ALL ".join(selects)
