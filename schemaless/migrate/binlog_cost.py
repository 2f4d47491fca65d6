"""What replacing bodies writes to a primary's binary log, and the session settings that make it less.

With full row images an UPDATE logs the old body too, though no replica needs it to find the row. ``NOBLOB`` leaves out
blobs that are not changed or not needed: then the old body is not logged, the new one is. MariaDB also logs the text of
each statement, new bodies included, unless it is told not to.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from schemaless.errors import AccessDenied, ServerRefused
from schemaless.migrate.sql import SHOW_BINARY_LOG_SETTINGS
from schemaless.wire.accounts import own_grant
from schemaless.wire.connection import Connection
from schemaless.wire.sql.sessions import SHOW_BINARY_LOGS, set_session

_NO_LOG: Final = 1381
_PRIVILEGE: Final = {False: "SESSION_VARIABLES_ADMIN", True: "BINLOG ADMIN"}
"""Setting these wants this privilege, by whether the server is MariaDB."""

_ANNOTATIONS: Final = ("binlog_rows_query_log_events", "binlog_annotate_row_events")

_ROW_BYTES: Final = 101
_MINIMAL_ROW_BYTES: Final = 16
"""The other columns take so much of a row's two images, a column name of 4 characters taken for granted."""

_EVENT_BYTES: Final = 36
_EVENT_SIZE: Final = 8192
"""Rows are put into events of about this size; a longer row has one of its own."""

_ESCAPED: Final = 1.01
_STATEMENT_ROW_BYTES: Final = 106
"""A statement adds so much to a new body: the escapes in it, its digest and its id."""


@dataclass(frozen=True, slots=True)
class BinaryLog:
    """How a session's changes are logged.

    Attributes:
        kept: whether the server keeps a binary log at all.
        format: "ROW", "STATEMENT" or "MIXED".
        by_rows: whether an UPDATE of bodies is logged as its rows. With MIXED, MariaDB does so, MySQL does not.
        row_image: "FULL", "NOBLOB" or "MINIMAL"; of rows.
        annotation: the variable by which the text of statements goes along with their rows; None where it does not.
        settings: a SET SESSION for ``Connection.ensure`` that has made this less; None where there was nothing to make
            less, or the account may not.
        grant: what would let the account make it less; None where it may, or there is nothing to.
    """

    kept: bool
    format: str
    by_rows: bool
    row_image: str
    annotation: str | None
    settings: bytes | None = None
    grant: str | None = None


class BinaryLogPoint(NamedTuple):
    """A place in a server's binary log."""

    file: str
    position: int


def binary_log(connection: Connection, *, full_images: bool = False, try_settings: bool = True) -> BinaryLog:
    """Return how a session's changes are logged, once it has the settings that make that less.

    They are tried on this connection, which keeps them; what others have set is left alone.

    Args:
        connection: to the primary.
        full_images: leave the row image as it is, for those who read old bodies from the binary log.
        try_settings: False says how it is now, and sets nothing.
    """
    in_force = _in_force(connection)
    settings: dict[str, str | int | None] = {}
    if in_force.row_image == "FULL" and not full_images:
        settings["binlog_row_image"] = "NOBLOB"
    if in_force.annotation is not None:
        settings[in_force.annotation] = 0
    if not try_settings or not in_force.kept or not in_force.by_rows or not settings:
        return in_force
    statement = set_session(settings)
    try:
        connection.ensure(statement)
    except AccessDenied:
        return replace(in_force, grant=own_grant(connection, _PRIVILEGE[connection.is_mariadb]))
    return replace(_in_force(connection), settings=statement)


def log_settings(connection: Connection, *, full_images: bool = False) -> bytes | None:
    """Return the settings of ``binary_log`` alone, also where this connection has them already."""
    earlier = next((statement for statement in connection.ensured if b" binlog_" in statement), None)
    return earlier or binary_log(connection, full_images=full_images).settings


def binary_log_point(connection: Connection) -> BinaryLogPoint | None:
    """Return how far a server's binary log has got; None where it keeps none, or does not say so to this account."""
    files = _files(connection)
    return files[-1] if files else None


def bytes_between(connection: Connection, start: BinaryLogPoint, end: BinaryLogPoint) -> int | None:
    """Return how many bytes were written to the binary log between two points, by everybody.

    None where the server does not say so to this account, or a file between them was purged.
    """
    files = _files(connection) or []
    names = [file.file for file in files]
    if start.file not in names or end.file not in names:
        return None
    whole = files[names.index(start.file) : names.index(end.file)]
    return sum(file.position for file in whole) + end.position - start.position


def predicted_bytes(log: BinaryLog, cells: int, bytes_before: int, bytes_after: int) -> int:
    """Return about how many bytes of binary log it takes to replace bodies.

    Within 5 % of what was written in benchmarks/binary_log.py; an upper bound where the server compresses its log.

    Args:
        log: how they are logged.
        bytes_before: of their bodies now.
        bytes_after: of their bodies then.
    """
    if not log.kept:
        return 0
    text = round(bytes_after * _ESCAPED) + cells * _STATEMENT_ROW_BYTES
    if not log.by_rows:
        return text
    if log.row_image == "MINIMAL":
        images = bytes_after + cells * _MINIMAL_ROW_BYTES
    else:
        images = bytes_after + cells * _ROW_BYTES + (bytes_before if log.row_image == "FULL" else 0)
    headers = _EVENT_BYTES * min(cells, images // _EVENT_SIZE + 1)
    return images + headers + (text if log.annotation is not None else 0)


def _in_force(connection: Connection) -> BinaryLog:
    variables = {str(name).lower(): str(value).upper() for name, value in connection.rows(SHOW_BINARY_LOG_SETTINGS)}
    format_name = variables.get("binlog_format", "ROW")  # MySQL is about to drop the others
    return BinaryLog(
        kept=variables.get("log_bin") == "ON",
        format=format_name,
        by_rows=format_name == "ROW" or (format_name == "MIXED" and connection.is_mariadb),
        row_image=variables.get("binlog_row_image", "FULL"),
        annotation=next((name for name in _ANNOTATIONS if variables.get(name) == "ON"), None),
    )


def _files(connection: Connection) -> list[BinaryLogPoint] | None:
    """Return the end of each file, in order."""
    try:
        rows = connection.rows(SHOW_BINARY_LOGS)
    except AccessDenied:
        return None
    except ServerRefused as refusal:
        if refusal.code == _NO_LOG:
            return None
        raise
    return [BinaryLogPoint(str(name), int(size)) for name, size, *_ in rows]
