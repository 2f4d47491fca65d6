"""A server's binary log, read as a replica reads it, from now on: to hear of what is committed at once.

A signal only. What it says may come before the rows can be read, and whoever begins to read has missed what was before;
so it has to be asked for first, and the tables looked at behind that. It takes the privilege REPLICATION SLAVE, which
lets an account see the changes of every database of the server.
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

from schemaless.errors import SchemalessError, ServerRefused, ServerUnavailable
from schemaless.wire.errors import interruption, translated
from schemaless.wire.node import Node
from schemaless.wire.session import close, open_connection
from schemaless.wire.sql.sessions import SELECT_LOG_STATE, SELECT_LOG_STATE_MARIADB, begin_to_replicate
from schemaless.wire.urls import Credentials

_HEARTBEAT_S: Final = 2.0
_SILENCE_S: Final = 10.0
"""A server that has said nothing for so long, not even that there is nothing, is gone."""

_THROUGH_GTID: Final = 0x04
_BEGIN: Final = 4
_TAGGED: Final = re.compile(r":[a-z_]", re.IGNORECASE)


class LogReader:
    """One connection that a server sends its binary log on, from the moment that it was made.

    Raises:
        ServerError: the server refuses, or does not answer; ``ServerRefused`` where asking again is of no use until
            somebody has changed something.
    """

    def __init__(self, node: Node, credentials: Credentials) -> None:
        self._node = str(node)
        self._raw: Any = None
        try:
            if credentials.drivername != "mysql+pymysql":
                raise ServerRefused(f"{credentials.drivername} cannot read a binary log; mysql:// can", node=self._node)
            timeouts = (_SILENCE_S, _SILENCE_S, _SILENCE_S)
            self._raw, facts = open_connection(node, credentials.without_timeouts(), timeouts, lambda raw: None)
            self._begin("mariadb" in facts.version.lower())
        except Exception as error:  # noqa: BLE001 - the driver's, or ours, or a handler's
            self._fail(error)

    def events(self) -> Iterator[bytes]:
        """Yield events as they come, for ever."""
        try:
            while True:
                packet = self._raw._read_packet()  # noqa: SLF001 - no public call reads one
                if packet.is_eof_packet():
                    raise ServerUnavailable("it ended its binary log, as it does when it goes down", node=self._node)
                yield packet.get_all_data()[1:]
        except Exception as error:  # noqa: BLE001 - the driver's, or ours, or a handler's
            self._fail(error)

    def cut(self) -> None:
        """End the connection under another thread's ``events``, which raises then."""
        wire = self._raw and self._raw._sock  # noqa: SLF001
        if wire is not None:
            with suppress(OSError):
                wire.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End it."""
        if self._raw is not None:
            close(self._raw, idle=False)

    def _fail(self, error: Exception) -> NoReturn:
        self.close()
        if isinstance(error, SchemalessError):
            raise error
        raised = interruption(error)
        if raised is error:
            raise error
        raise raised or translated(error, self._node, None, connecting=False) from error

    def _begin(self, mariadb: bool) -> None:
        cursor = self._raw.cursor()
        cursor.execute(SELECT_LOG_STATE_MARIADB if mariadb else SELECT_LOG_STATE)
        position, kept, row_format = cursor.fetchone()
        if not int(kept) or row_format != "ROW":
            what = f"binlog_format={row_format}" if int(kept) else "no binary log"
            raise ServerRefused(f"it has {what}; set log_bin, and binlog_format=ROW", node=self._node)
        # Another's number would have the server end his connection.
        number = secrets.randbits(31) | 1 << 31
        cursor.execute(begin_to_replicate(str(uuid.uuid4()), str(position), _HEARTBEAT_S, mariadb=mariadb))
        cursor.close()
        if mariadb:
            command, packet = COMMAND.COM_BINLOG_DUMP, struct.pack("<IHI", _BEGIN, 0, number)
        else:
            done = encode_gtids(str(position), self._node)
            command = COMMAND.COM_BINLOG_DUMP_GTID
            packet = struct.pack("<HIIQI", _THROUGH_GTID, number, 0, _BEGIN, len(done)) + done
        self._raw._execute_command(command, packet)  # noqa: SLF001 - it has no public call for a command


def encode_gtids(text: str, node: str) -> bytes:
    """Return a set of GTIDs as the protocol has it.

    Args:
        text: as ``gtid_executed`` gives it.
        node: named in errors.

    Raises:
        ServerRefused: some have tags, which this cannot write.
    """
    if _TAGGED.search(text):
        raise ServerRefused("its transactions have tagged GTIDs, which this cannot follow", node=node)
    parts = [part.strip() for part in text.split(",") if part.strip()]
    encoded = [struct.pack("<Q", len(parts))]
    for part in parts:
        source, *intervals = part.split(":")
        encoded.append(uuid.UUID(source).bytes + struct.pack("<Q", len(intervals)))
        for interval in intervals:
            first, _, last = interval.partition("-")
            encoded.append(struct.pack("<QQ", int(first), int(last or first) + 1))
    return b"".join(encoded)
