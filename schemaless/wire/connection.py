"""A checked-out connection: statements, transactions, and checks that each reply belongs to its statement."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from schemaless.base.type_variables import T
from schemaless.errors import SchemalessError, ServerError, WrongReply
from schemaless.wire.driver import DriverConnection, Reply
from schemaless.wire.errors import ConnectionLost, Deadlock, is_drivers, is_servers, translated
from schemaless.wire.session import Facts, close
from schemaless.wire.sql.sessions import COMMIT, ROLLBACK, START_TRANSACTION

_PACKET_MARGIN_BYTES: Final = 1024
_HAVE_ROWS: Final = (b"SELECT", b"(SELECT", b"SHOW")
"""Prefixes of the statements that return a result set."""
_NO_REPLY: Final = Reply(None, 0, 0)

Rows = tuple[tuple[Any, ...], ...]
Check = Callable[[Rows], str | None]
"""Checks that rows belong to the query: returns None, or a message with the expected and the received key."""


class Connection:
    """A driver connection, checked out of its pool.

    Attributes:
        node: the server, for errors.
        shard: the shard in use, for errors.
        max_allowed_packet: size limit of statements, in bytes.
        auto_increment_increment: step between the ids that the server generates.
        version: the server's version string.
        is_mariadb: True if the server is MariaDB.
        connected_at_s: when opening the connection began, by ``time.monotonic``.
        server: tells the server apart from others at the same address.
        verified: shards whose identity was verified on that server; shared by the pool's connections to it.
        busy: True from before the first byte of a statement is sent until its reply is read and checked. A connection
            that is still busy after an exception, whatever raised it, is closed and never reused.
        ensured: statements that ``ensure`` has run.
        unfinished: True while a transaction may be open or a lock held; the connection is then closed on return.
    """

    def __init__(
        self, raw: DriverConnection, node: str, shard: int | None, facts: Facts, max_packet_bytes: int
    ) -> None:
        self._raw = raw
        self.node: str = node
        self.shard: int | None = shard
        self.connected_at_s: float = facts.connected_at_s
        self.server: str = facts.server
        self.verified: set[int] = set()
        self.max_allowed_packet: int = min(facts.max_allowed_packet, max_packet_bytes)
        self.auto_increment_increment: int = facts.auto_increment_increment
        self.version: str = facts.version
        self.is_mariadb: bool = facts.is_mariadb
        self.busy: bool = False
        self.unfinished: bool = False
        self.ensured: set[bytes] = set()

    @property
    def max_statement_bytes(self) -> int:
        """Maximum statement size in bytes: ``max_allowed_packet`` less a margin."""
        return self.max_allowed_packet - _PACKET_MARGIN_BYTES

    def close(self) -> None:
        """Close the connection, in any state."""
        close(self._raw, idle=not self.busy)

    def begin(self, sql: bytes, check: Check | None = None) -> Callable[[], Rows]:
        """Send a query and return a function that reads its rows, so that other servers can be queried in between."""
        self.ask(sql, receive=False)
        return lambda: self.rows(sql, check, sent=True)

    def rows(self, sql: bytes, check: Check | None = None, *, sent: bool = False) -> Rows:
        """Send a query, unless it was ``sent`` before, and return its rows.

        Raises:
            WrongReply: ``check`` rejects the rows, or a query got a reply without a result set.
        """
        rows = (self.ask(sql, send=False) if sent else self.ask(sql)).rows
        mismatch = None
        if rows is None:
            # A missing result set is not an empty one: it must not be taken to mean that a cell is absent.
            if sql.startswith(_HAVE_ROWS):
                mismatch = f"the query {bytes(sql[:20])!r} got a reply without a result set"
            rows = ()
        elif rows and check is not None:
            mismatch = check(rows)
        if mismatch is not None:
            message = f"the reply belongs to another query ({mismatch}); it was discarded, and the connection is closed"
            raise self._mixed_up(WrongReply, message)
        self.busy = False
        return rows

    def execute(self, sql: bytes) -> Reply:
        """Send a statement that returns no rows.

        Raises:
            ConnectionLost: the reply has rows, so it belongs to another statement and the outcome of this one is lost.
        """
        reply = self.ask(sql)
        if reply.rows is not None and not sql.startswith(_HAVE_ROWS):
            message = f"a statement that returns no rows got rows in reply ({bytes(sql[:20])!r})"
            raise self._mixed_up(ConnectionLost, message)
        self.busy = False
        return reply

    def returned(self, sql: bytes, check: Callable[[Rows], str | None]) -> Rows:
        """Send a write with a RETURNING clause, which only MariaDB supports, and return its rows.

        Raises:
            ConnectionLost: ``check`` rejects the rows, or there are none, so the reply belongs to another statement and
                the outcome of this one is lost.
        """
        rows = self.ask(sql).rows or ()
        if (mismatch := check(rows)) is not None:
            raise self._mixed_up(ConnectionLost, f"the reply to a write is wrong ({mismatch})")
        self.busy = False
        return rows

    def _mixed_up(self, kind: type[ServerError], message: str) -> ServerError:
        advice = "Check whether a proxy between client and server mixes up replies"
        return kind(f"{message}. {advice}", node=self.node, shard=self.shard)

    def ensure(self, settings: bytes) -> None:
        """Run a SET SESSION statement once per connection; it stays in effect for later users of the connection."""
        if settings not in self.ensured:
            self.execute(settings)
            self.ensured.add(settings)

    def ask(self, sql: bytes, *, send: bool = True, receive: bool = True) -> Reply:
        """Send a statement and read its reply. The caller resets ``busy`` once it has checked the reply.

        Args:
            sql: the statement.
            send: False if it was sent before.
            receive: False to leave the reply unread.
        """
        if self.busy and send:
            raise ConnectionLost("an earlier reply has not been read", node=self.node, shard=self.shard)
        self.busy = True
        try:
            if send:
                self._raw.send(sql)
            return self._raw.receive() if receive else _NO_REPLY
        except Exception as error:
            if not is_drivers(error):
                raise
            failure = translated(error, self.node, self.shard, connecting=False)
            # An error packet ends the reply. After any other failure, more of the reply may still arrive.
            self.busy = isinstance(failure, ConnectionLost) or not is_servers(error)
            raise failure from error

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run the block in a transaction: commit at its end, roll back if it raises.

        After an error of this package, a ROLLBACK is sent. After any other exception, such as one from a signal
        handler, the connection is closed instead, so that the exception does not wait for the server.

        Raises:
            ConnectionLost: COMMIT or ROLLBACK failed, or its reply did not arrive.
        """
        before, self.unfinished = self.unfinished, True
        self.execute(START_TRANSACTION)
        try:
            yield
        except SchemalessError:
            if not self.busy:
                self._end_transaction(ROLLBACK)
                self.unfinished = before
            raise
        self._end_transaction(COMMIT)
        self.unfinished = before

    def _end_transaction(self, sql: bytes) -> None:
        try:
            self.execute(sql)
        except (ConnectionLost, Deadlock):
            raise
        except ServerError as error:
            # An interrupted COMMIT rolls back on MySQL. MariaDB may leave the transaction open, even after a ROLLBACK.
            raise ConnectionLost(error.message, node=error.node, shard=error.shard, code=error.code) from error

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Run a block that changes and restores the session's state; if it does not finish, discard the connection."""
        before, self.unfinished = self.unfinished, True
        yield
        self.unfinished = before


def split_statements(
    rows: Sequence[T], statement: Callable[[Sequence[T]], bytes], most_bytes: int, too_long: Callable[[T, int], None]
) -> Iterator[tuple[bytes, Sequence[T]]]:
    """Yield statements with their rows, splitting the rows in half until each statement fits.

    Args:
        rows: all rows, in order; if there are none, no statement is yielded.
        statement: builds the statement for some of the rows.
        most_bytes: maximum statement size; see ``Connection.max_statement_bytes``.
        too_long: called with a row that is too long even for a statement of its own, and with that statement's size; it
            raises, or returns to skip the row.
    """
    if not rows:
        return
    sql = statement(rows)
    if len(sql) <= most_bytes:
        yield sql, rows
    elif len(rows) == 1:
        too_long(rows[0], len(sql))
    else:
        middle = len(rows) // 2
        for half in (rows[:middle], rows[middle:]):
            yield from split_statements(half, statement, most_bytes, too_long)
