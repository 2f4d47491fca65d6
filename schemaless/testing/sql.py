"""Statements that return a test datastore to its initial state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from schemaless.wire.sql.parts import blob_hex, literal, moment, quoted_table


def checksum_tables(tables: Iterable[tuple[str, str]]) -> bytes:
    """Show the checksum of the rows of each table, given as database and name."""
    return b"CHECKSUM TABLE %b" % b",".join(quoted_table(*table) for table in tables)


def show_schema_changes() -> bytes:
    """Show how often the server has executed each kind of statement that creates, changes or drops a table."""
    return b"SHOW GLOBAL STATUS WHERE Variable_name RLIKE '^Com_(alter|create|drop|rename|truncate)'"


def truncate_table(database: str, table: str) -> bytes:
    """Delete all rows of a table and reset its AUTO_INCREMENT."""
    return b"TRUNCATE TABLE %b" % quoted_table(database, table)


def delete_rows(database: str, table: str) -> bytes:
    """Delete all rows of a table."""
    return b"DELETE FROM %b" % quoted_table(database, table)


def select_rows(database: str, table: str) -> bytes:
    """Select all rows of a table."""
    return b"SELECT * FROM %b" % quoted_table(database, table)


def insert_rows(database: str, table: str, rows: Iterable[Sequence[Any]]) -> bytes:
    """Insert complete rows, as selected by ``select_rows``."""
    values = b",".join(b"(%b)" % b",".join(map(_literal, row)) for row in rows)
    return b"INSERT INTO %b VALUES %b" % (quoted_table(database, table), values)


def _literal(value: Any) -> bytes:
    if isinstance(value, bytes):
        return blob_hex(value)
    return moment(value) if isinstance(value, datetime) else literal(value)
