"""The driver, PyMySQL: its connection without finalizers of Python's, and its replies read with less work.

A get is a reply of some ten packets, and PyMySQL spends more time on reading them than everything else on the client
takes: of each column six names, which nobody asks for, and of each value three calls. Here a column is read for what
its values are read by, and a row in one loop (``replies``). What comes out is the same, to the type.
"""

from __future__ import annotations

import io
import socket
import ssl
import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import pymysql
import pymysql.connections
from pymysql.constants import CR, SERVER_STATUS
from pymysql.protocol import FieldDescriptorPacket, MysqlPacket

from schemaless.wire.errors import is_drivers
from schemaless.wire.replies import (
    ERROR,
    HEADER_BYTES,
    MOST_PIECE_BYTES,
    NULL,
    PARSER,
    Maker,
    Parser,
    is_end,
    makers_of,
    row_of,
)

_END_OF_ROWS: Final = struct.Struct("<BHH")


class Reply(NamedTuple):
    """What a statement gave.

    Attributes:
        rows: None for a statement that has none, which is not the same as one that found none.
        affected: how many rows it changed, or gave.
        last_id: the first id that it made; 0 where it made none.
    """

    rows: tuple[tuple[Any, ...], ...] | None
    affected: int
    last_id: int


# PyMySQL's result without its finalizer, which Python runs in each call: what a signal's handler raises in a finalizer
# is printed and lost. The finalizer serves unbuffered results only, and there are none here.
_WithoutFinalizer: Any = type(
    "_WithoutFinalizer",
    (),
    {
        name: value
        for name, value in vars(pymysql.connections.MySQLResult).items()
        if name not in ("__del__", "__dict__", "__weakref__")
    },
)


class _Result(_WithoutFinalizer):  # type: ignore[misc]
    """A reply, as PyMySQL's connection and cursors take it."""

    connection: Any
    _encoding: str

    @property
    def description(self) -> tuple[tuple[Any, ...], ...] | None:
        """The columns as the DB API has them; read when they are asked for."""
        if self._columns is None:
            return None
        packet: Any = FieldDescriptorPacket
        return tuple(packet(column, self._encoding).description() for column in self._columns)

    @description.setter
    def description(self, nothing: None) -> None:
        # PyMySQL's __init__ begins with None.
        self._columns: list[bytes] | None = nothing

    def read(self) -> None:
        """Read a reply to its end."""
        connection = self.connection
        try:
            first = connection.first_packet()
            if len(first) == 1 and 0 < first[0] < NULL:
                self._read_rows(first[0])
                return
            packet: Any = MysqlPacket(first, connection.encoding)
            if packet.is_ok_packet():
                self._read_ok_packet(packet)
            elif packet.is_load_local_packet():
                self._read_load_local_packet(packet)
            else:
                columns = packet.read_length_encoded_integer()
                if not columns or packet.read_all():
                    raise pymysql.InternalError(f"a reply begins with {first[:20]!r}")
                self._read_rows(columns)
        finally:
            self.connection = None

    def _read_rows(self, columns: int) -> None:
        """Read a reply that has so many columns, which is all that its first packet says."""
        self.field_count = columns
        self._get_descriptions()
        self._read_rowdata_packet()

    def _get_descriptions(self) -> None:
        """Read the columns' descriptions."""
        connection = self.connection
        encoding = self._encoding = connection.encoding
        columns: list[bytes] = connection.packets()
        while not is_end(columns[-1]):
            columns += connection.packets()
        columns.pop()
        if len(columns) != self.field_count:
            raise pymysql.InternalError(f"a reply has {self.field_count} columns, and describes {len(columns)}")
        self._columns = columns
        self._makers = makers_of(columns, encoding, connection.use_unicode, connection.decoders)

    def _read_rowdata_packet(self) -> None:
        """Read the rows, up to the packet behind the last one."""
        read, makers = self.connection.rows, self._makers
        rows, end = read(makers)
        while end is None:
            more, end = read(makers)
            rows += more
        _, self.warning_count, status = _END_OF_ROWS.unpack(end)
        self.has_next = bool(status & SERVER_STATUS.SERVER_MORE_RESULTS_EXISTS)
        self.affected_rows = len(rows)
        self.rows = tuple(rows)


class DriverConnection(pymysql.connections.Connection):
    """PyMySQL's connection, without finalizers of Python's: ``close`` here does what theirs would.

    Attributes:
        parser: reads what has come of a reply.
    """

    parser: Parser = PARSER
    ctx: Any
    _rfile: Any
    _sock: Any
    _result: Any
    _next_seq_id: int
    _current_timeout: float | None
    _read_timeout: float | None
    _execute_command: Any
    _read_bytes: Any

    # A builtin has no frame for a handler to run in, and this one does nothing.
    __del__ = int  # type: ignore[assignment]

    def connect(self, sock: Any = None) -> None:
        """Log in, on a socket that was made here."""
        self._secure = bool(self.unix_socket)
        if self.ssl:
            self.ctx.sslsocket_class = _TLSWire
        super().connect(_dialled(self) if sock is None else sock)

    def receive(self) -> Reply:
        """Return what a statement gave that was sent, as a cursor does in three times as many steps, to its end.

        The connection lets go of it, so that no idle one keeps the rows of its last caller in memory.
        """
        self._read_query_result(unbuffered=False)
        result: Any = self._result
        while self._result.has_next:
            self.next_result()
        self._result = None
        return Reply(result.rows, result.affected_rows, result.insert_id or 0)

    def packets(self) -> list[bytes]:
        """Return what is in the next packets of a reply, as ``packet`` does: those that are here, one at least.

        None comes behind an end. An error and a packet in pieces come alone.
        """
        packets, taken, number = self.parser.packets(self._here(), self._next_seq_id)
        if not packets:
            return [self.packet()]
        self._read_bytes(taken)
        self._next_seq_id = number
        return packets

    def rows(self, makers: Sequence[Maker]) -> tuple[list[tuple[Any, ...]], bytes | None]:
        """Return the rows that are in the next packets, as ``packets`` gives these, and the end, if that came."""
        rows, end, taken, number = self.parser.rows(self._here(), self._next_seq_id, makers)
        if not taken:
            packet = self.packet()
            return ([], packet) if is_end(packet) else ([row_of(packet, makers)], None)
        self._read_bytes(taken)
        self._next_seq_id = number
        return rows, end

    def _here(self) -> bytes:
        """Return what has come of a reply and is not read, its first bytes at least; nothing where it ended.

        Asked where something follows, so that it waits for no more than reading that would.
        """
        try:
            here: bytes = self._rfile.peek()
        except BaseException as error:
            self._force_close()
            if not isinstance(error, OSError) or not is_drivers(error):
                raise
            lost = f"Lost connection to MySQL server during query ({error})"
            raise pymysql.OperationalError(CR.CR_SERVER_LOST, lost) from error
        return here

    def first_packet(self) -> bytes:
        """Return what is in the first packet of a reply, as ``packet`` does of those behind it."""
        if self._current_timeout != self._read_timeout:
            self._sock.settimeout(self._read_timeout)
            self._current_timeout = self._read_timeout
        return self.packet()

    def packet(self) -> bytes:
        """Return what is in the next packet of a reply, behind the first one: in half the steps of PyMySQL's way."""
        data = self._piece()
        if len(data) == MOST_PIECE_BYTES:
            pieces = [data]
            while len(pieces[-1]) == MOST_PIECE_BYTES:
                pieces.append(self._piece())
            data = b"".join(pieces)
        if data[0] == ERROR:
            MysqlPacket(data, self.encoding).raise_for_error()
        return data

    def _piece(self) -> bytes:
        header, number = self._read_bytes(HEADER_BYTES), self._next_seq_id
        if header[3] != number:
            self._force_close()
            lost = f"Lost connection to MySQL server during query (piece {header[3]} of a reply came for {number})"
            raise pymysql.OperationalError(CR.CR_SERVER_LOST, lost)
        self._next_seq_id = number + 1 & 0xFF
        data: bytes = self._read_bytes(header[0] | header[1] << 8 | header[2] << 16)
        return data

    def _force_close(self) -> None:
        wires = self._rfile, self._sock
        self._rfile = self._sock = None
        for wire in filter(None, wires):
            try:
                wire.close()
            except OSError as error:
                # PyMySQL drops whatever is raised here.
                if not is_drivers(error):
                    raise

    def _read_query_result(self, unbuffered: bool = False) -> int:
        self._result = None
        result = _Result(self)
        result.read()
        self._result = result
        if result.server_status is not None:
            self.server_status = result.server_status
        self._affected_rows = result.affected_rows
        return int(result.affected_rows)


# What a buffered reader of a socket is made of, without finalizers that close by a frame of Python's: what was read
# from is closed by ``close`` below, or collected with its socket.
_Raw: Any = type("_Raw", (socket.SocketIO,), {"__del__": int})
_Reader: Any = type("_Reader", (io.BufferedReader,), {"__del__": int})


def _reader(wire: Any, mode: str) -> Any:
    """Return what ``wire.makefile("rb")`` does."""
    raw = _Raw(wire, mode[0])
    wire._io_refs += 1  # noqa: SLF001 - as the method of that name does
    return _Reader(raw)


class Wire(socket.socket):
    """A socket that is closed where it is collected, without a warning, and without a frame of Python's."""

    __del__ = vars(socket.SocketType)["close"]
    makefile = _reader  # type: ignore[assignment]


class _TLSWire(ssl.SSLSocket):
    """The same for a socket that TLS goes through."""

    makefile = _reader  # type: ignore[assignment]


def _dialled(raw: Any) -> socket.socket:
    """Return a socket that is connected to one of a host's addresses.

    As ``socket.create_connection`` does, which takes what a signal's handler raises for an address that does not
    answer, where that is an OSError as TimeoutError is, and goes on to the next one.
    """
    failure: OSError | None = None
    try:
        addresses: Any = [(socket.AF_UNIX, socket.SOCK_STREAM, 0, "", raw.unix_socket)]
        if not raw.unix_socket:
            addresses = socket.getaddrinfo(raw.host, raw.port, 0, socket.SOCK_STREAM)
        for family, kind, protocol, _, address in addresses:
            wire = Wire(family, kind, protocol)
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
                if not isinstance(error, OSError) or not is_drivers(error):
                    raise
                failure = error
            else:
                return wire
    except OSError as error:
        if not is_drivers(error):
            raise
        failure = error
    raise pymysql.OperationalError(CR.CR_CONN_HOST_ERROR, f"Can't connect to MySQL server on {raw.host!r} ({failure})")
