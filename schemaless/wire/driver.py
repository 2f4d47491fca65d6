"""PyMySQL's connection with a faster reply parser and without Python finalizers.

The reply to a get has about ten packets, and PyMySQL spends more time on them than the rest of the client takes: it
decodes six names per column, which are never used, and makes three calls per value. Here only a column's type is
decoded, and a row is decoded in one loop (``replies``). The values are the same, including their types.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

import pymysql
import pymysql.connections
from pymysql.constants import COMMAND, CR, SERVER_STATUS
from pymysql.protocol import MysqlPacket

from schemaless.errors import ServerRefused
from schemaless.wire.replies import (
    ERROR,
    HEADER_BYTES,
    MAX_PIECE_BYTES,
    MIN_OK_BYTES,
    NULL,
    OK,
    PARSER,
    Converter,
    Parser,
    converters_of,
    is_end,
    ok_of,
    row_of,
)
from schemaless.wire.runtime import THREADS, Runtime

_MAX_CONVERTERS: Final = 256
_END_OF_ROWS: Final = struct.Struct("<BHH")


class Reply(NamedTuple):
    """Result of a statement.

    Attributes:
        rows: None for a statement without a result set; empty for a query that found nothing.
        affected: number of rows changed or returned.
        last_id: first generated id; 0 if none was generated.
    """

    rows: tuple[tuple[Any, ...], ...] | None
    affected: int
    last_id: int

    def row(self) -> tuple[Any, ...]:
        """Return the row of a query that always has one."""
        assert self.rows
        return self.rows[0]


class DriverConnection(pymysql.connections.Connection):
    """PyMySQL's connection without Python finalizers; ``session.close`` does their work.

    Attributes:
        parser: implementation that parses replies.
        runtime: how the connection waits.
    """

    parser: Parser = PARSER
    runtime: Runtime = THREADS
    ctx: Any
    _rfile: Any
    _sock: Any
    decoders: Any
    use_unicode: Any
    _next_seq_id: int
    server_status: int
    _current_timeout: float | None
    _read_timeout: float | None
    _execute_command: Any
    _read_bytes: Any
    server_version: str

    def __init__(self, **options: Any) -> None:
        self._converters: dict[tuple[bytes, ...], list[Converter]] = {}
        """Converters of the columns of recent replies, by the columns' descriptions."""
        super().__init__(**options)

    # A no-op builtin: without a Python frame, no signal handler can run in it.
    __del__ = int  # type: ignore[assignment]

    def connect(self, sock: Any = None) -> None:
        """Connect a socket, unless one is given, and log in."""
        self._secure = bool(self.unix_socket)
        if self.ssl:
            self.ctx.sslsocket_class = self.runtime.tls_wire
        super().connect(_connected_socket(self) if sock is None else sock)

    def _get_server_information(self) -> None:
        super()._get_server_information()  # type: ignore[misc]
        version = self.server_version
        if not version.partition(".")[0].isdecimal():
            # PyMySQL would raise ValueError, which looks like a lost connection.
            raise ServerRefused(
                f"the server, or a proxy in front of it, reports the version {version!r}, which does not begin with a "
                "number; configure it to report the server's version",
                node=str(self.unix_socket or f"{self.host}:{self.port}"),
            )

    def send(self, sql: bytes) -> None:
        """Send a statement; PyMySQL's public call would also read the reply."""
        self._execute_command(COMMAND.COM_QUERY, sql)

    def receive(self) -> Reply:
        """Read the whole reply to a statement, without the overhead of a cursor.

        The result is not kept, so an idle connection holds no rows in memory.
        """
        reply, more = self._reply()
        while more:
            _, more = self._reply()
        return reply

    def _reply(self) -> tuple[Reply, bool]:
        """Read a result; return it, and whether another one follows."""
        if self._current_timeout != self._read_timeout:
            self._sock.settimeout(self._read_timeout)
            self._current_timeout = self._read_timeout
        packets, taken, number = self.parser.packets(self._peek(), self._next_seq_id)
        first = packets[0] if packets else self.packet()
        if len(first) == 1 and 0 < first[0] < NULL:
            if packets:
                self._take(taken, number)
            return self._result_set(first[0], packets[1:])
        if packets:
            # Whatever follows belongs to another result.
            self._take(HEADER_BYTES + len(first), self._next_seq_id + 1 & 0xFF)
        if first[0] == OK and len(first) >= MIN_OK_BYTES:
            affected, last_id, self.server_status = ok_of(first)
            return Reply(None, affected, last_id), bool(self.server_status & SERVER_STATUS.SERVER_MORE_RESULTS_EXISTS)
        packet: Any = MysqlPacket(first, self.encoding)
        if packet.is_load_local_packet():
            raise pymysql.InternalError(
                "the server asks for a file (LOAD_LOCAL), which no statement of this package uses"
            )
        columns = packet.read_length_encoded_integer()
        if not columns or packet.read_all():
            raise pymysql.InternalError(f"malformed reply that begins with {first[:20]!r}")
        return self._result_set(columns, [])

    def _result_set(self, count: int, columns: list[bytes]) -> tuple[Reply, bool]:
        """Read the rest of a result set; ``columns`` has the packets of it that were read with the first one."""
        while not columns or not is_end(columns[-1]):
            columns += self.packets()
        columns.pop()
        if len(columns) != count:
            raise pymysql.InternalError(f"a reply with {count} columns describes {len(columns)}")
        key = tuple(columns)
        converters = self._converters.get(key)
        if converters is None:
            if len(self._converters) >= _MAX_CONVERTERS:
                self._converters.clear()
            converters = converters_of(columns, self.encoding, self.use_unicode, self.decoders)
            self._converters[key] = converters
        rows, end = self.rows(converters)
        while end is None:
            more, end = self.rows(converters)
            rows += more
        _, _, status = _END_OF_ROWS.unpack(end)
        return Reply(tuple(rows), len(rows), 0), bool(status & SERVER_STATUS.SERVER_MORE_RESULTS_EXISTS)

    def packets(self) -> list[bytes]:
        """Return the payloads of the packets that have arrived, waiting for at least one.

        The list ends with an end packet, if there is one. Error packets and split packets are handled one at a time.
        """
        packets, taken, number = self.parser.packets(self._peek(), self._next_seq_id)
        if not packets:
            return [self.packet()]
        self._take(taken, number)
        return packets

    def _take(self, taken: int, number: int) -> None:
        """Remove bytes from the buffer; the packet after them has this sequence number."""
        self._read_bytes(taken)
        self._next_seq_id = number

    def rows(self, converters: Sequence[Converter]) -> tuple[list[tuple[Any, ...]], bytes | None]:
        """Return the rows that have arrived, waiting for at least one, and the end packet if it has arrived."""
        rows, end, taken, number = self.parser.rows(self._peek(), self._next_seq_id, converters)
        if not taken:
            packet = self.packet()
            return ([], packet) if is_end(packet) else ([row_of(packet, converters)], None)
        self._take(taken, number)
        return rows, end

    def _peek(self) -> bytes:
        """Return the buffered bytes of a reply, waiting for the first ones; empty at the end of the stream."""
        try:
            buffered: bytes = self._rfile.peek()
        except BaseException as error:
            self._force_close()
            if not isinstance(error, OSError):
                raise
            lost = f"Lost connection to MySQL server during query ({error})"
            raise pymysql.OperationalError(CR.CR_SERVER_LOST, lost) from error
        return buffered

    def packet(self) -> bytes:
        """Return the payload of a reply's next packet, joining split packets."""
        data = self._piece()
        if len(data) == MAX_PIECE_BYTES:
            pieces = [data]
            while len(pieces[-1]) == MAX_PIECE_BYTES:
                pieces.append(self._piece())
            data = b"".join(pieces)
        if data[0] == ERROR:
            MysqlPacket(data, self.encoding).raise_for_error()
        return data

    def _piece(self) -> bytes:
        header, number = self._read_bytes(HEADER_BYTES), self._next_seq_id
        if header[3] != number:
            self._force_close()
            lost = f"Lost connection to MySQL server during query (packet {header[3]} received, {number} expected)"
            raise pymysql.OperationalError(CR.CR_SERVER_LOST, lost)
        self._next_seq_id = number + 1 & 0xFF
        data: bytes = self._read_bytes(header[0] | header[1] << 8 | header[2] << 16)
        return data

    def _force_close(self) -> None:
        streams = self._rfile, self._sock
        self._rfile = self._sock = None
        for stream in filter(None, streams):
            # PyMySQL ignores every exception here, even KeyboardInterrupt.
            with suppress(OSError):
                stream.close()


def _connected_socket(raw: DriverConnection) -> socket.socket:
    """Return a socket of the connection's runtime, connected to one of a host's addresses."""
    failure: OSError | None = None
    try:
        addresses: Any = [(socket.AF_UNIX, socket.SOCK_STREAM, 0, "", raw.unix_socket)]
        if not raw.unix_socket:
            lookup = partial(socket.getaddrinfo, raw.host, raw.port, 0, socket.SOCK_STREAM)
            addresses = raw.runtime.blocking(lookup)
        for family, kind, protocol, _, address in addresses:
            wire = raw.runtime.wire(family, kind, protocol)
            try:
                wire.settimeout(raw.connect_timeout)
                if raw.bind_address is not None and not raw.unix_socket:
                    wire.bind((raw.bind_address, 0))
                wire.connect(address)
                if not raw.unix_socket:
                    wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    wire.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            except BaseException as error:
                wire.close()
                if not isinstance(error, OSError):
                    raise
                failure = error
            else:
                return wire
    except OSError as error:
        failure = error
    raise pymysql.OperationalError(CR.CR_CONN_HOST_ERROR, f"Can't connect to MySQL server on {raw.host!r} ({failure})")
