"""What a server says of its load."""

from __future__ import annotations

from dataclasses import dataclass

from schemaless.jobs.sql import SELECT_HISTORY_LENGTH, SHOW_ACTIVITY
from schemaless.wire.connection import Connection
from schemaless.wire.sql.sessions import NOTHING


@dataclass(frozen=True, slots=True)
class ServerActivity:
    """A server's load at a moment.

    Attributes:
        threads_running: statements that are being executed, the one that asks included.
        calls: reads and writes of applications since the server was started, about: SELECTs and INSERTs, less one
            for each UPDATE of a join and each DO: a migration reads a block and replaces it by such an UPDATE, or says
            by ``note_read`` that there was nothing to replace.
        history_length: transactions whose old rows wait to be purged; None where it was not asked for, or not said.
    """

    threads_running: int
    calls: int
    history_length: int | None


def server_activity(connection: Connection, *, history: bool = True) -> ServerActivity:
    """Ask a server for its load.

    Args:
        history: whether to ask for the history length too.

    Raises:
        AccessDenied: with ``history``, on MySQL: the account lacks PROCESS, which InnoDB wants for this.
    """
    status = {str(name).lower(): int(value) for name, value in connection.rows(SHOW_ACTIVITY)}
    length = status.get("innodb_history_list_length")
    if history and length is None:
        rows = connection.rows(SELECT_HISTORY_LENGTH)
        length = int(rows[0][0]) if rows else None
    calls = status["com_select"] + status["com_insert"] - status["com_update_multi"] - status["com_do"]
    return ServerActivity(status["threads_running"], calls, length if history else None)


def note_read(connection: Connection) -> None:
    """Take a SELECT of one's own out of ``ServerActivity.calls``, for whoever looks at the server."""
    connection.execute(NOTHING)
