"""Binary log volume that replacing bodies causes, and the session settings that reduce it.

With full row images an UPDATE also logs the old body, which replicas do not need to find the row. ``NOBLOB`` omits
unchanged and unneeded blobs, so only the new body is logged. By default MariaDB also logs the text of each statement,
including the new bodies.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from schemaless.errors import AccessDenied, ServerRefused
from schemaless.ops.migrate.sql import SHOW_BINARY_LOG_SETTINGS
from schemaless.wire.accounts import own_grant
from schemaless.wire.connection import Connection
from schemaless.wire.sql.sessions import SHOW_BINARY_LOGS, set_session

_NO_LOG: Final = 1381
_PRIVILEGE: Final = {False: "SESSION_VARIABLES_ADMIN", True: "BINLOG ADMIN"}
"""Privilege required for the settings; the key is True for MariaDB."""

_ANNOTATIONS: Final = ("binlog_rows_query_log_events", "binlog_annotate_row_events")

_ROW_BYTES: Final = 101
"""Size of the columns other than the body in both row images together, for a column name of 4 characters."""

_EVENT_BYTES: Final = 36
_EVENT_SIZE: Final = 8192
"""Approximate size at which the server starts another row event; a longer row gets an event to itself."""


@dataclass(frozen=True, slots=True)
class BinaryLog:
    """Binary log settings in effect for a session.

    Attributes:
        kept: whether the server writes a binary log.
        by_rows: whether an UPDATE of bodies is logged as rows. With MIXED, MariaDB logs rows and MySQL the statement.
        row_image: "FULL", "NOBLOB" or "MINIMAL".
        annotation: name of the variable that makes the server log statement text along with rows; None if it is off.
        settings: the SET SESSION statement for ``Connection.ensure`` that reduces the volume; None if there was nothing
            to reduce or the account lacks the privilege.
        grant: the GRANT that the account needs to reduce the volume; None if no privilege is missing.
    """

    kept: bool
    by_rows: bool
    row_image: str
    annotation: str | None
    settings: bytes | None = None
    grant: str | None = None


class BinaryLogPoint(NamedTuple):
    """A position in a server's binary log."""

    file: str
    position: int


def binary_log(connection: Connection, *, full_images: bool = False) -> BinaryLog:
    """Apply the session settings that reduce binary log volume, and return the settings in effect.

    The settings stay in effect on this connection. Global settings and other sessions are not affected.

    Args:
        connection: a connection to the primary.
        full_images: keep the row image setting, for consumers that read old bodies from the binary log.
    """
    in_force = binary_log_in_force(connection)
    settings: dict[str, str | int | None] = {}
    if in_force.row_image == "FULL" and not full_images:
        settings["binlog_row_image"] = "NOBLOB"
    if in_force.annotation is not None:
        settings[in_force.annotation] = 0
    if not in_force.kept or not in_force.by_rows or not settings:
        return in_force
    statement = set_session(settings)
    try:
        connection.ensure(statement)
    except AccessDenied:
        return replace(in_force, grant=own_grant(connection, _PRIVILEGE[connection.is_mariadb]))
    return replace(binary_log_in_force(connection), settings=statement)


def log_settings(connection: Connection, *, full_images: bool = False) -> bytes | None:
    """Return the SET SESSION statement that ``binary_log`` applies, even if an earlier call has applied it here."""
    applied = next((statement for statement in connection.ensured if b" binlog_" in statement), None)
    return applied or binary_log(connection, full_images=full_images).settings


def binary_log_point(connection: Connection) -> BinaryLogPoint | None:
    """Return the end of a server's binary log; None if it writes none or the account may not see it."""
    files = _files(connection)
    return files[-1] if files else None


def bytes_between(connection: Connection, start: BinaryLogPoint, end: BinaryLogPoint) -> int | None:
    """Return how many bytes all sessions together wrote to the binary log between two points.

    Returns:
        Number of bytes; None if the account may not list the files, or a file between the points was purged.
    """
    files = _files(connection) or []
    names = [file.file for file in files]
    if start.file not in names or end.file not in names:
        return None
    complete = files[names.index(start.file) : names.index(end.file)]
    return sum(file.position for file in complete) + end.position - start.position


def predicted_bytes(cells: int, bytes_before: int, bytes_after: int, *, full_images: bool) -> int:
    """Estimate how many bytes replacing bodies adds to the binary log, with row events and without statement text.

    The volumes that benchmarks/binary_log.py measured were within 5 % of the estimate. If the server compresses its
    log, this is an upper bound.

    Args:
        cells: number of bodies.
        bytes_before: total size of the old bodies.
        bytes_after: total size of the new bodies.
        full_images: with full row images, which include the old bodies; without, the row image is NOBLOB.
    """
    images = bytes_after + cells * _ROW_BYTES + (bytes_before if full_images else 0)
    return images + _EVENT_BYTES * min(cells, images // _EVENT_SIZE + 1)


def binary_log_in_force(connection: Connection) -> BinaryLog:
    """Return the settings in effect."""
    variables = {str(name).lower(): str(value).upper() for name, value in connection.rows(SHOW_BINARY_LOG_SETTINGS)}
    format_name = variables.get("binlog_format", "ROW")  # MySQL has deprecated the variable
    return BinaryLog(
        kept=variables.get("log_bin") == "ON",
        by_rows=format_name == "ROW" or (format_name == "MIXED" and connection.is_mariadb),
        row_image=variables.get("binlog_row_image", "FULL"),
        annotation=next((name for name in _ANNOTATIONS if variables.get(name) == "ON"), None),
    )


def _files(connection: Connection) -> list[BinaryLogPoint] | None:
    """Return the name and size of each log file, oldest first; None if there is no log or access is denied."""
    try:
        rows = connection.rows(SHOW_BINARY_LOGS)
    except AccessDenied:
        return None
    except ServerRefused as refusal:
        if refusal.code == _NO_LOG:
            return None
        raise
    return [BinaryLogPoint(str(name), int(size)) for name, size, *_ in rows]
