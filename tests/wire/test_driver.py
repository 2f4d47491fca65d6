"""Replies: what is read of them with less work than PyMySQL's is the same, and nothing that does not fit is used."""

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
from schemaless.wire import driver
from schemaless.wire.connection import Connection
from schemaless.wire.errors import ConnectionLost, ReplyTimedOut
from schemaless.wire.replies import PARSER, REFERENCE
from schemaless.wire.session import SQL_MODE, Facts

pytestmark = pytest.mark.mysql

ALL_KINDS = (
    "SELECT NULL, 1, -1, 18446744073709551615, 1.5, 1.25e0, '', 'é漢😀', x'00FF27', _binary'text', b'101', "
    "DATE'2026-01-31', TIMESTAMP'2026-01-31 10:20:30.5', TIME'10:20:30', CAST('{\"a\": [1]}' AS {json}), "
    "REPEAT('a', 250), REPEAT('a', 251), REPEAT('a', 65535), REPEAT('a', 65536), REPEAT(x'FF', 20000000)"
)
"""A value of each kind, and texts on both sides of each limit at which their length is written otherwise."""


def test_rows_are_read_as_pymysql_reads_them(pool, flavour):
    """Whatever the kind and the length, the values and their types are the same, and so is what describes them."""
    sql = ALL_KINDS.replace("{json}", "JSON" if flavour == "mysql" else "CHAR")
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
        expected, description = cursor.fetchall(), cursor.description
    with pool.connection() as connection:
        rows = connection.rows(sql.encode())
        with connection._raw.cursor() as cursor:
            cursor.execute(sql)
            described = cursor.description

    assert rows == expected
    assert [type(value) for value in rows[0]] == [type(value) for value in expected[0]]
    assert described == description


OK = b"\x00\x01\x07\x02\x00\x00\x00"
END = b"\xfe\x00\x00\x02\x00"
INTERRUPTED = b"\xff" + struct.pack("<H", 1317) + b"#70100Query execution was interrupted"
PROGRESS = b"\xff\xff\xff\x01\x01\x02\x00\x00\x00\x05stage"


def column(kind: int = FIELD_TYPE.VAR_STRING, charset: int = 45) -> bytes:
    """Return what describes a column."""
    names = b"".join(bytes([len(name)]) + name for name in (b"def", b"db", b"t", b"t", b"c", b"c"))
    return names + struct.pack("<BHIBHBxx", 12, charset, 1020, kind, 0, 0)


TWO = (b"\x02", column(), column(FIELD_TYPE.BLOB, 63), END)


@pytest.fixture(params=dict.fromkeys((REFERENCE, PARSER)), ids=lambda parser: parser.rows.__module__)
def parser(request):
    """Reads replies: in Python, and by the native part where that is present."""
    return request.param


@pytest.fixture
def connection_on(parser):
    """Give a connection that reads from a socket."""

    def make(wire: socket.socket) -> contextlib.closing[Connection]:
        raw = driver.DriverConnection(defer_connect=True)
        raw._sock, raw._rfile, raw._current_timeout = wire, wire.makefile("rb"), None
        raw.parser = parser
        return contextlib.closing(Connection(raw, "db-1", 7, FACTS, 1 << 24))

    return make


@pytest.fixture
def answering(connection_on):
    """Give a connection whose next statement gets some packets for a reply, and nothing behind them."""

    @contextlib.contextmanager
    def answering(*packets: bytes) -> Iterator[Connection]:
        ours, theirs = socket.socketpair()
        theirs.sendall(on_the_wire(packets))
        theirs.shutdown(socket.SHUT_WR)
        with contextlib.closing(theirs), connection_on(ours) as connection:
            yield connection

    return answering


def on_the_wire(packets: Iterable[bytes]) -> bytes:
    """Return the bytes of a reply."""
    return b"".join(
        struct.pack("<I", len(packet) | (number & 0xFF) << 24) + packet for number, packet in enumerate(packets, 1)
    )


FACTS = Facts(1 << 24, 1, "9.7", 0.0, None)
LENGTHS = (b"\x01a\xfc\x01\x00b", b"\xfd\x01\x00\x00a\xfb", b"\xfb\xfe\x01\0\0\0\0\0\0\0b", b"\x00\x00")


@pytest.mark.once
def test_a_reply_is_read_packet_by_packet_and_not_kept(answering):
    """Lengths of every width, NULLs, no rows at all; and the connection holds nothing of it afterwards."""
    with answering(*TWO, *LENGTHS, END) as connection:
        assert connection.rows(b"SELECT") == (("a", b"b"), ("a", None), (None, b"b"), ("", b""))
        assert connection._raw._result is None
        assert not connection.busy
    with answering(*TWO, END) as connection:
        assert connection.rows(b"SELECT") == ()
    with answering(OK) as connection:
        assert connection.execute(b"INSERT") == (None, 1, 7)
    with answering(OK[:3] + b"\x0a\x00\x00\x00", *TWO, END) as connection:
        assert connection.execute(b"INSERT") == (None, 1, 7)  # another result follows it, and is read


@pytest.mark.once
@pytest.mark.parametrize("piece_bytes", [1, 5, 64, 1_000, 8_192, 8_193, 1 << 20])
def test_a_reply_is_the_same_however_its_bytes_arrive(connection_on, piece_bytes):
    """Rows of every length around what is read at a time, numbered beyond a byte, in pieces that end anywhere."""
    chance = random.Random(piece_bytes)
    lengths = [0, 1, 250, 251, 4_000, 8_180, 8_188, 8_190, 8_192, 20_000]
    bodies = [bytes(chance.randrange(256) for _ in range(chance.choice(lengths))) for _ in range(40)]
    small = [b"%d" % number for number in range(700)]
    ours, theirs = socket.socketpair()
    lengthened = [b"\xfd" + len(body).to_bytes(3, "little") + body for body in (*bodies, *small, *bodies)]
    sent = on_the_wire([*TWO, *(b"\x01a" + body for body in lengthened), END])

    def send() -> None:
        for start in range(0, len(sent), piece_bytes):
            theirs.sendall(sent[start : start + piece_bytes])

    sender = threading.Thread(target=send)
    sender.start()
    with contextlib.closing(theirs), connection_on(ours) as connection:
        rows = connection.rows(b"SELECT")
    sender.join()
    assert [body for _, body in rows] == [*bodies, *small, *bodies]


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
        ((b"\x00", END, END), ConnectionLost, "malformed reply, begins with"),
        ((b"\x01a\x01b", *TWO[1:2], END, END), ConnectionLost, "malformed reply, begins with"),
        ((b"\xfb/etc/passwd",), ConnectionLost, "LOAD_LOCAL"),
        ((b"",), ConnectionLost, "out of range"),
        ((OK,), WrongReply, "got a reply without a result set"),
    ],
)
def test_a_reply_that_is_damaged_is_refused_and_its_connection_closed(answering, packets, kind, words):
    """What is cut off or goes on behind its end is no data; only the server's own refusal leaves a connection idle."""
    with answering(*packets) as connection:
        with pytest.raises(kind, match=words) as caught:
            connection.rows(b"SELECT")
        assert type(caught.value) is kind
        assert connection.busy is (kind is not ServerTimeout)


@pytest.mark.once
@pytest.mark.parametrize("lost", range(1, 9))
def test_a_reply_of_which_a_packet_is_missing_is_not_used(connection_on, lost):
    """The packets are numbered: what comes behind a gap is not read."""
    packets = [*TWO, *(b"\x01a\x01b" for _ in range(5)), END]
    whole = [on_the_wire(packets[: count + 1])[len(on_the_wire(packets[:count])) :] for count in range(len(packets))]
    ours, theirs = socket.socketpair()
    theirs.sendall(b"".join(whole[:lost] + whole[lost + 1 :]))
    with contextlib.closing(theirs), connection_on(ours) as connection:
        with pytest.raises(ConnectionLost, match=f"{lost + 1} expected"):
            connection.rows(b"SELECT")
        assert connection.busy


@pytest.mark.once
@pytest.mark.parametrize("count", range(9))
def test_a_reply_that_stops_anywhere_is_waited_for_no_longer_than_asked(connection_on, count):
    """Before a packet or within it, the time is over and the connection of no use."""
    packets = [*TWO, *(b"\x01a\x01b" for _ in range(5)), END]
    before, to_next = (len(on_the_wire(packets[:number])) for number in (count, count + 1))
    for size in (before, before + 2, to_next - 1):
        ours, theirs = socket.socketpair()
        ours.settimeout(0.02)
        theirs.sendall(on_the_wire(packets)[:size])
        with contextlib.closing(theirs), connection_on(ours) as connection:
            with pytest.raises(ReplyTimedOut):
                connection.rows(b"SELECT")
            assert connection.busy


@pytest.mark.once
def test_rows_are_no_reply_to_a_write(answering):
    """Whether it happened stays open, so it counts as one whose reply was lost."""
    with (
        answering(*TWO, b"\x01a\x01b", END) as connection,
        pytest.raises(ConnectionLost, match="statement without a result set got rows"),
    ):
        connection.execute(b"INSERT INTO t VALUES (1)")
    assert connection.busy


@pytest.mark.once
def test_a_query_is_sent_before_its_rows_are_asked_for(answering):
    """Until they are read, a reply is on its way: nothing else is sent on the connection."""
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
