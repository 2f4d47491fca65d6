"""Read a server's load from its status variables."""

from __future__ import annotations

from dataclasses import dataclass

from schemaless.ops.jobs.sql import SELECT_HISTORY_LENGTH, SHOW_ACTIVITY
from schemaless.wire.connection import Connection
from schemaless.wire.sql.sessions import NOTHING


@dataclass(frozen=True, slots=True)
class ServerActivity:
    """Load of a server at one moment.

    Attributes:
        threads_running: statements being executed, including the one that reads the status.
        calls: approximate number of application reads and writes since the server started: SELECTs and INSERTs, minus
            one for each multi-table UPDATE and each DO. A migration sends one of these for each SELECT of a block: the
            UPDATE that replaces its bodies, or ``discount_read`` if there is nothing to replace.
        history_length: transactions waiting to be purged; None if not requested or not available.
    """

    threads_running: int
    calls: int
    history_length: int | None


def server_activity(connection: Connection, *, history: bool = True) -> ServerActivity:
    """Read the load of a server.

    Args:
        connection: a connection to the server.
        history: read the history length, too.

    Returns:
        The load.

    Raises:
        AccessDenied: the account lacks PROCESS, which MySQL requires for the history length.
    """
    status = {str(name).lower(): int(value) for name, value in connection.rows(SHOW_ACTIVITY)}
    length = status.get("innodb_history_list_length")
    if history and length is None:
        rows = connection.rows(SELECT_HISTORY_LENGTH)
        length = int(rows[0][0]) if rows else None
    calls = status["com_select"] + status["com_insert"] - status["com_update_multi"] - status["com_do"]
    return ServerActivity(status["threads_running"], calls, length if history else None)


def discount_read(connection: Connection) -> None:
    """Offset one of the job's own SELECTs in ``ServerActivity.calls``, lest it count as application load."""
    connection.execute(NOTHING)
