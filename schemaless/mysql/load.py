"""What a server says of its load."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from schemaless.mysql.connection import Connection

_STATUS: Final = (
    b"SHOW GLOBAL STATUS WHERE Variable_name IN "
    b"('Threads_running', 'Innodb_history_list_length', 'Com_select', 'Com_insert', 'Com_update_multi', 'Com_do')"
)
_METRIC: Final = (
    b"SELECT `COUNT` FROM information_schema.INNODB_METRICS WHERE NAME='trx_rseg_history_len' AND STATUS='enabled'"
)


@dataclass(frozen=True, slots=True)
class ServerLoad:
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


def server_load(connection: Connection, *, history: bool = True) -> ServerLoad:
    """Ask a server for its load.

    Args:
        connection: to the server.
        history: whether to ask for the history length too.

    Raises:
        AccessDenied: with ``history``, on MySQL: the account lacks PROCESS, which InnoDB wants for this.
    """
    status = {str(name).lower(): int(value) for name, value in connection.rows(_STATUS)}
    length = status.get("innodb_history_list_length")
    if history and length is None:
        rows = connection.rows(_METRIC)
        length = int(rows[0][0]) if rows else None
    calls = status["com_select"] + status["com_insert"] - status["com_update_multi"] - status["com_do"]
    return ServerLoad(status["threads_running"], calls, length if history else None)


def note_read(connection: Connection) -> None:
    """Take a SELECT of one's own out of ``ServerLoad.calls``, for whoever looks at the server."""
    connection.execute(b"DO 0")


def history_length_grant(connection: Connection) -> str:
    """Return the GRANT that lets the account see the history length."""
    user, _, host = str(connection.rows(b"SELECT CURRENT_USER()")[0][0]).rpartition("@")
    return f"GRANT PROCESS ON *.* TO '{user}'@'{host}'"
