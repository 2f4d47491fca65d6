"""Replies: the driver returns the same values as PyMySQL, and rejects malformed replies."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
from collections.abc import Iterable, Iterator

import pymysql
import pytest
from pymysql.constants import FIELD_TYPE

from schemaless.errors import ServerTimeout, WrongReply
from schemaless.wire import driver, session
from schemaless.wire.connection import Connection
from schemaless.wire.errors import ConnectionLost, ReplyTimedOut
from schemaless.wire.replies import PARSER, REFERENCE
from schemaless.wire.session import SQL_MODE, Facts

pytestmark = [pytest.mark.mysql]


class Deadline(Exception):
    """What an application's signal handler raises."""


ALL_TYPES = (
    "SELECT NULL, 1, -1, 18446744073709551615, 1.5, 1.25e0, '', 'é漢😀', x'00FF27', _binary'text', b'101', "
    "DATE'2026-01-31', TIMESTAMP'2026-01-31 10:20:30.5', TIME'10:20:30', CAST('{\"a\": [1]}' AS {json}), "
    "REPEAT('a', 250), REPEAT('a', 251), REPEAT('a', 65535), REPEAT('a', 65536), REPEAT(x'FF', 20000000)"
)
"""A value of each type, and texts on both sides of every limit of the length encoding."""


@pytest.mark.twice
def test_rows_are_read_as_pymysql_reads_them(pool, flavour):
    """For every type and length, the values and their types are the same."""
    sql = ALL_TYPES.replace("{json}", "JSON" if flavour == "mysql" else "CHAR")
    plain = pymysql.connect(
        unix_socket=pool.node.socket,
        host=pool.node.host or "",
        port=pool.node.port or 0,
        user="root",
        charset="utf8mb4",
    )
    with contextlib.closing(plain), plain.cursor() as cursor:
        for setting in (f"sql_mode='{SQL_MODE}'", "max_sort_length=1024"):
            cursor.execute(f"SET SESSION {setting}")
        cursor.execute(sql)
        expected = cursor.fetchall()
    with pool.connection() as connection:
        rows = connection.rows(sql.encode())

    assert rows == expected
    assert [type(value) for value in rows[0]] == [type(value) for value in expected[0]]


OK = b"\x00\x01\x07\x02\x00\x00\x00"
END = b"\xfe\x00\x00\x02\x00"
INTERRUPTED = b"\xff" + struct.pack("<H", 1317) + b"#70100Query execution was interrupted"
PROGRESS = b"\xff\xff\xff\x01\x01\x02\x00\x00\x00\x05stage"


def column(kind: int = FIELD_TYPE.VAR_STRING, charset: int = 45) -> bytes:
    """Return a column description."""
    names = b"".join(bytes([len(name)]) + name for name in (b"def", b"db", b"t", b"t", b"c", b"c"))
    return names + struct.pack("<BHIBHBxx", 12, charset, 1020, kind, 0, 0)


TWO = (b"\x02", column(), column(FIELD_TYPE.BLOB, 63), END)


@pytest.fixture(params=dict.fromkeys((REFERENCE, PARSER)), ids=lambda parser: parser.rows.__module__)
def parser(request):
    """Parser in pure Python, and the native one if it is installed."""
    return request.param


@pytest.fixture
def connection_on(parser):
    """Create a connection that reads from a socket."""

    def make(wire: socket.socket) -> contextlib.closing[Connection]:
        raw = driver.DriverConnection(defer_connect=True)
        raw._sock, raw._rfile, raw._current_timeout = wire, wire.makefile("rb"), None
        raw.parser = parser
        return contextlib.closing(Connection(raw, "db-1", 7, FACTS, 1 << 24))

    return make


@pytest.fixture
def answering(connection_on):
    """Create a connection whose next statement gets some packets as its reply, followed by the end of the stream."""

    @contextlib.contextmanager
    def answering(*packets: bytes) -> Iterator[Connection]:
        ours, theirs = socket.socketpair()
        theirs.sendall(framed(packets))
        theirs.shutdown(socket.SHUT_WR)
        with contextlib.closing(theirs), connection_on(ours) as connection:
            yield connection

    return answering


def framed(packets: Iterable[bytes]) -> bytes:
    """Return packets with their headers."""
    return b"".join(
        struct.pack("<I", len(packet) | (number & 0xFF) << 24) + packet for number, packet in enumerate(packets, 1)
    )


FACTS = Facts(1 << 24, 1, "9.7", False, "db-1", 0.0, None)
LENGTHS = (b"\x01a\xfc\x01\x00b", b"\xfd\x01\x00\x00a\xfb", b"\xfb\xfe\x01\0\0\0\0\0\0\0b", b"\x00\x00")


@pytest.mark.once
def test_a_reply_is_read_packet_by_packet_and_not_kept(answering):
    """Lengths of every width, NULLs and empty results; the connection keeps no rows afterwards."""
    with answering(*TWO, *LENGTHS, END) as connection:
        assert connection.rows(b"SELECT") == (("a", b"b"), ("a", None), (None, b"b"), ("", b""))
        assert connection._raw._result is None
        assert not connection.busy
    with answering(*TWO, END) as connection:
        assert connection.rows(b"SELECT") == ()
    with answering(OK) as connection:
        assert connection.execute(b"INSERT") == (None, 1, 7)
    with answering(OK[:3] + b"\x0a\x00\x00\x00", *TWO, END) as connection:
        assert connection.execute(b"INSERT") == (None, 1, 7)  # a second result follows, and is read


@pytest.mark.once
@pytest.mark.parametrize(
    "piece_bytes",
    [5, 1_000, 8_192, 8_193, *(pytest.param(size, marks=pytest.mark.long) for size in (1, 64, 1 << 20))],
)
def test_a_reply_is_the_same_however_its_bytes_arrive(connection_on, piece_bytes):
    """Rows of sizes around the buffer size, with wrapping sequence numbers, in chunks that end anywhere."""
    generator = random.Random(piece_bytes)
    lengths = [0, 1, 250, 251, 4_000, 8_180, 8_188, 8_190, 8_192, 20_000]
    bodies = [bytes(generator.randrange(256) for _ in range(generator.choice(lengths))) for _ in range(40)]
    small = [b"%d" % number for number in range(700)]
    ours, theirs = socket.socketpair()
    encoded = [b"\xfd" + len(body).to_bytes(3, "little") + body for body in (*bodies, *small, *bodies)]
    sent = framed([*TWO, *(b"\x01a" + body for body in encoded), END])

    def send() -> None:
        for start in range(0, len(sent), piece_bytes):
            theirs.sendall(sent[start : start + piece_bytes])

    sender = threading.Thread(target=send)
    sender.start()
    with contextlib.closing(theirs), connection_on(ours) as connection:
        rows = connection.rows(b"SELECT")
    sender.join()
    assert [body for _, body in rows] == [*bodies, *small, *bodies]


@pytest.mark.guarantee("reply-matches")
@pytest.mark.once
@pytest.mark.parametrize(
    ("packets", "kind", "words"),
    [
        ((*TWO, b"\x02ab\x01", END), ConnectionLost, "a row has 4 bytes"),
        ((*TWO, b"\x02ab\x01cd", END), ConnectionLost, "a row has 6 bytes"),
        ((*TWO, b"\x02ab", END), ConnectionLost, "out of range"),
        ((*TWO, b"\xfc\x02", END), ConnectionLost, "out of range"),
        ((*TWO, b"\x02ab\xff\x01a", END), ConnectionLost, "invalid length byte 0xff of a value, at byte 3"),
        ((*TWO, b"\x01\xff\x01a", END), ConnectionLost, "decode"),
        ((*TWO, b"\x01a\x01b", b"\xfe"), ConnectionLost, "buffer"),
        ((*TWO, b"\x01a\x01b"), ConnectionLost, "Lost connection"),
        ((*TWO, b"\x01a\x01b", PROGRESS), ConnectionLost, "stage"),
        ((*TWO, b"\x01a\x01b", INTERRUPTED), ServerTimeout, "interrupted"),
        ((b"\x01", column(FIELD_TYPE.NEWDECIMAL, 63), END, b"\x011", b"\x02x1", END), ConnectionLost, "Conversion"),
        ((b"\x01", column()[:-1], END, b"\x011", END), ConnectionLost, "malformed column description"),
        ((b"\x01", END, END), ConnectionLost, "1 columns describes 0"),
        ((b"\x01", *TWO[1:], END), ConnectionLost, "1 columns describes 2"),
        ((b"\x03", *TWO[1:], b"\x01a\x01b", END), ConnectionLost, "3 columns describes 2"),
        ((b"\x00", END, END), ConnectionLost, "malformed reply that begins with"),
        ((b"\x01a\x01b", *TWO[1:2], END, END), ConnectionLost, "malformed reply that begins with"),
        ((b"\xfb/etc/passwd",), ConnectionLost, "LOAD_LOCAL"),
        ((b"",), ConnectionLost, "out of range"),
        ((OK,), WrongReply, "got a reply without a result set"),
    ],
)
def test_a_malformed_reply_is_rejected_and_its_connection_closed(answering, packets, kind, words):
    """A truncated or overlong packet is not used; only an error packet of the server leaves the connection usable."""
    with answering(*packets) as connection:
        with pytest.raises(kind, match=words) as caught:
            connection.rows(b"SELECT")
        assert type(caught.value) is kind
        assert connection.busy is (kind is not ServerTimeout)


@pytest.mark.once
@pytest.mark.parametrize("lost", range(1, 9))
def test_a_reply_with_a_missing_packet_is_rejected(connection_on, lost):
    """Packets have sequence numbers, and nothing after a gap is read."""
    packets = [*TWO, *(b"\x01a\x01b" for _ in range(5)), END]
    whole = [framed(packets[: count + 1])[len(framed(packets[:count])) :] for count in range(len(packets))]
    ours, theirs = socket.socketpair()
    theirs.sendall(b"".join(whole[:lost] + whole[lost + 1 :]))
    with contextlib.closing(theirs), connection_on(ours) as connection:
        with pytest.raises(ConnectionLost, match=f"{lost + 1} expected"):
            connection.rows(b"SELECT")
        assert connection.busy


@pytest.mark.once
@pytest.mark.parametrize(
    "count", [pytest.param(count, marks=pytest.mark.long) if count % 2 else count for count in range(9)]
)
def test_an_incomplete_reply_times_out_wherever_it_stops(connection_on, count):
    """Between packets or within one, the read times out and the connection is discarded."""
    packets = [*TWO, *(b"\x01a\x01b" for _ in range(5)), END]
    before, to_next = (len(framed(packets[:number])) for number in (count, count + 1))
    for size in (before, before + 2, to_next - 1):
        ours, theirs = socket.socketpair()
        ours.settimeout(0.02)
        theirs.sendall(framed(packets)[:size])
        with contextlib.closing(theirs), connection_on(ours) as connection:
            with pytest.raises(ReplyTimedOut):
                connection.rows(b"SELECT")
            assert connection.busy


@pytest.mark.once
def test_rows_in_reply_to_a_write_are_a_lost_reply(answering):
    """The outcome of the write is open."""
    with (
        answering(*TWO, b"\x01a\x01b", END) as connection,
        pytest.raises(ConnectionLost, match="statement that returns no rows got rows in reply"),
    ):
        connection.execute(b"INSERT INTO t VALUES (1)")
    assert connection.busy


@pytest.mark.once
def test_a_query_is_sent_before_its_rows_are_read(answering):
    """Until the rows are read, nothing else is sent on the connection."""
    with answering(*TWO, b"\x01a\x01b", END) as connection:
        rows = connection.begin(b"SELECT", lambda rows: None)
        assert connection.busy
        with pytest.raises(ConnectionLost, match="an earlier reply has not been read"):
            connection.rows(b"SELECT")
        assert rows() == (("a", b"b"),)
        assert not connection.busy
    with answering(*TWO, b"\x01a\x01b", END) as connection, pytest.raises(WrongReply, match="another's"):
        connection.begin(b"SELECT", lambda rows: "another's")()
    with answering() as connection:
        rows = connection.begin(b"SELECT")
        with pytest.raises(ConnectionLost):
            rows()
        assert connection.busy


@pytest.mark.twice
@pytest.mark.parametrize("raised", [Deadline, MemoryError])
def test_an_exception_of_a_handler_while_an_idle_connection_closes_arrives(pool, monkeypatch, raised):
    """Also one that strikes while the server is told of the end: the socket is closed, and nothing is swallowed."""
    with pool.connection() as connection:
        raw = connection._raw

    def strike(*arguments: object) -> None:
        raise raised("time is up")

    monkeypatch.setattr(raw._sock, "sendall", strike)
    with pytest.raises(raised):
        session.close(raw, idle=True)

    assert not raw.open
