"""Binary log reader that connects like a replica, to be notified of commits without polling.

Events are only notifications: one can arrive before its rows are visible, and commits made before the reader connects
are not reported. So open the reader first, then read the tables. The account needs REPLICATION SLAVE, which exposes the
changes of every database on the server.
"""

from __future__ import annotations

import re
import secrets
import socket
import struct
import uuid
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final, NoReturn

from pymysql.constants import COMMAND

from schemaless.errors import ServerRefused, ServerUnavailable
from schemaless.wire.errors import is_drivers, translated
from schemaless.wire.node import Node
from schemaless.wire.session import Facts, close, open_connection
from schemaless.wire.sql.sessions import SELECT_LOG_STATE, SELECT_LOG_STATE_MARIADB, begin_to_replicate
from schemaless.wire.urls import Credentials

_HEARTBEAT_S: Final = 2.0
_SILENCE_S: Final = 10.0
"""Read timeout, in seconds: a live server sends at least a heartbeat within this time."""

_THROUGH_GTID: Final = 0x04
_BEGIN: Final = 4
_TAGGED: Final = re.compile(r":[a-z_]", re.IGNORECASE)


class LogReader:
    """Connection that streams a server's binary log, starting at its current end.

    Attributes:
        facts: properties of the server.

    Raises:
        ServerError: the server refuses to send its log, or does not answer; ``ServerRefused`` if a retry is useless
            until the server's configuration changes.
    """

    def __init__(self, node: Node, credentials: Credentials) -> None:
        self._node = str(node)
        timeouts = (_SILENCE_S, _SILENCE_S, _SILENCE_S)
        opened = open_connection(node, credentials.without_timeouts(), timeouts, lambda raw: None)
        self._raw: Any = opened[0]
        self.facts: Facts = opened[1]
        try:
            self._begin(self.facts.is_mariadb)
        except Exception as error:  # noqa: BLE001 - from the driver, this package or a signal handler
            self._fail(error)

    def events(self) -> Iterator[bytes]:
        """Yield events as they arrive, without end."""
        try:
            while True:
                packet = self._raw._read_packet()  # noqa: SLF001 - PyMySQL has no public call for this
                if packet.is_eof_packet():
                    raise ServerUnavailable(
                        "the server ended the binary log stream, as it does on shutdown", node=self._node
                    )
                yield packet.get_all_data()[1:]
        except Exception as error:  # noqa: BLE001 - from the driver, this package or a signal handler
            self._fail(error)

    def cut(self) -> None:
        """Shut down the socket, so that ``events`` in another thread raises."""
        wire = self._raw._sock  # noqa: SLF001
        if wire is not None:
            with suppress(OSError):
                wire.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        close(self._raw, idle=False)

    def _fail(self, error: Exception) -> NoReturn:
        self.close()
        if not is_drivers(error):
            raise error
        raise translated(error, self._node, None, connecting=False) from error

    def _begin(self, mariadb: bool) -> None:
        cursor = self._raw.cursor()
        cursor.execute(SELECT_LOG_STATE_MARIADB if mariadb else SELECT_LOG_STATE)
        position, enabled, row_format = cursor.fetchone()
        if not int(enabled) or row_format != "ROW":
            found = f"has binlog_format={row_format}; set it to ROW"
            if not int(enabled):
                found = "writes no binary log; set log_bin, and binlog_format=ROW"
            raise ServerRefused(f"the server {found}", node=self._node)
        # The server drops an existing replica connection that has the same server id.
        server_id = secrets.randbits(31) | 1 << 31
        cursor.execute(begin_to_replicate(str(uuid.uuid4()), str(position), _HEARTBEAT_S, mariadb=mariadb))
        cursor.close()
        if mariadb:
            command, packet = COMMAND.COM_BINLOG_DUMP, struct.pack("<IHI", _BEGIN, 0, server_id)
        else:
            gtids = encode_gtids(str(position), self._node)
            command = COMMAND.COM_BINLOG_DUMP_GTID
            packet = struct.pack("<HIIQI", _THROUGH_GTID, server_id, 0, _BEGIN, len(gtids)) + gtids
        self._raw._execute_command(command, packet)  # noqa: SLF001 - PyMySQL has no public call for this


def encode_gtids(text: str, node: str) -> bytes:
    """Encode a GTID set for COM_BINLOG_DUMP_GTID.

    Args:
        text: the set, in the format of ``gtid_executed``.
        node: the server, for errors.

    Raises:
        ServerRefused: the set has tagged GTIDs, which are not supported.
    """
    if _TAGGED.search(text):
        raise ServerRefused("the server has tagged GTIDs, which are not supported", node=node)
    parts = [part.strip() for part in text.split(",") if part.strip()]
    encoded = [struct.pack("<Q", len(parts))]
    for part in parts:
        source, *intervals = part.split(":")
        encoded.append(uuid.UUID(source).bytes + struct.pack("<Q", len(intervals)))
        for interval in intervals:
            first, _, last = interval.partition("-")
            encoded.append(struct.pack("<QQ", int(first), int(last or first) + 1))
    return b"".join(encoded)
