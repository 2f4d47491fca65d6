"""A connection, checked out for a moment: statements cut to what it takes, transactions, and what proves replies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from pymysql.constants import COMMAND

from schemaless.errors import SchemalessError, ServerError, WrongReply
from schemaless.wire.driver import DriverConnection, Reply
from schemaless.wire.errors import ConnectionLost, Deadlock, interruption, is_servers, translated
from schemaless.wire.session import Facts, close
from schemaless.wire.sql.sessions import COMMIT, ROLLBACK, START_TRANSACTION

T = TypeVar("T")

_PACKET_MARGIN_BYTES: Final = 1024
_HAVE_ROWS: Final = (b"SELECT", b"(SELECT", b"SHOW")
"""Statements that begin so have rows, if none at all, and no others of those are executed that have."""
_NO_REPLY: Final = Reply(None, 0, 0)
_MIXED_UP: Final = "Does something on the way to the server mix up replies?"

Rows = tuple[tuple[Any, ...], ...]
Check = Callable[[Rows], str | None]
"""This function says whether rows are of what was asked for: None, or the key asked for and the one received."""


class Connection:
    """A driver connection, checked out for a moment.

    Attributes:
        shard: what it is used for now; named in errors.
        busy: whether a reply may be on its way: from before the first byte of a statement is sent until the last one of
            its reply is read and found to be its own. Whoever's exception comes between: nothing more is sent on it,
            and nobody else gets it.
        unfinished: whether a transaction may be open on it, or a lock held by it, for what follows: it is closed then.
    """

    __slots__ = (
        "_ensured",
        "_raw",
        "auto_increment_increment",
        "busy",
        "connected_at_s",
        "max_allowed_packet",
        "node",
        "shard",
        "unfinished",
        "version",
    )

    def __init__(self, raw: Any, node: str, shard: int | None, facts: Facts, max_packet_bytes: int) -> None:
        self._raw = raw
        self.node = node
        self.shard = shard
        self.connected_at_s = facts.connected_at_s
        self.max_allowed_packet = min(facts.max_allowed_packet, max_packet_bytes)
        self.auto_increment_increment = facts.auto_increment_increment
        self.version = facts.version
        self.busy = False
        self.unfinished = False
        self._ensured: frozenset[bytes] = frozenset()

    @property
    def max_statement_bytes(self) -> int:
        """How long a statement may be: the server's ``max_allowed_packet``, less a margin."""
        return self.max_allowed_packet - _PACKET_MARGIN_BYTES

    @property
    def is_mariadb(self) -> bool:
        """Whether the server is MariaDB; it says so in its version."""
        return "mariadb" in self.version.lower()

    def close(self) -> None:
        """Close it, whatever state it is in."""
        close(self._raw, idle=not self.busy)

    def begin(self, sql: bytes, check: Check | None = None) -> Callable[[], Rows]:
        """Send a query and return what reads its rows, as ``rows`` does: others may be asked while the server works.

        A driver that cannot do one without the other does both when the rows are read.
        """
        sent = isinstance(self._raw, DriverConnection)
        if sent:
            self.ask(sql, receive=False)
        return lambda: self.rows(sql, check, sent=sent)

    def rows(self, sql: bytes, check: Check | None = None, *, sent: bool = False) -> Rows:
        """Send a query, unless it was ``sent`` already, and return its rows.

        Raises:
            WrongReply: they are not of what was asked for, says ``check``, or there are none where there must be.
        """
        rows = (self.ask(sql, send=False) if sent else self.ask(sql)).rows
        strange = None
        if rows is None:
            # That is no empty result: nothing may be said to be absent by it.
            if sql.startswith(_HAVE_ROWS):
                strange = f"asked for rows by {bytes(sql[:20])!r}, got a reply without columns"
            rows = ()
        elif rows and check is not None:
            strange = check(rows)
        if strange is not None:
            raise WrongReply(
                f"the reply is of something else than was asked for ({strange}); nothing of it was used, and the "
                f"connection is closed. {_MIXED_UP}",
                node=self.node,
                shard=self.shard,
            )
        self.busy = False
        return rows

    def execute(self, sql: bytes) -> Reply:
        """Send a statement without rows.

        Raises:
            ConnectionLost: rows came, so the reply is another statement's, and this one's will not be known.
        """
        reply = self.ask(sql)
        if reply.rows is not None and not sql.startswith(_HAVE_ROWS):
            raise ConnectionLost(
                f"rows came in reply to a statement that has none ({bytes(sql[:20])!r}). {_MIXED_UP}",
                node=self.node,
                shard=self.shard,
            )
        self.busy = False
        return reply

    @property
    def ensured(self) -> frozenset[bytes]:
        """What ``ensure`` has run on it."""
        return self._ensured

    def ensure(self, settings: bytes) -> None:
        """Run a SET SESSION, unless it was run on this connection before; it holds for all who get it later."""
        if settings not in self._ensured:
            self.execute(settings)
            self._ensured |= {settings}

    def ask(self, sql: bytes, *, send: bool = True, receive: bool = True) -> Reply:
        """Send a statement and read its reply; the connection stays ``busy`` until that is found to be its own.

        Args:
            sql: the statement.
            send: unless that was done before.
            receive: else its reply is left to be read.
        """
        if self.busy and send:
            raise ConnectionLost("a reply of before is still on its way", node=self.node, shard=self.shard)
        self.busy = True
        try:
            raw = self._raw
            if isinstance(raw, DriverConnection):
                if send:
                    # Its public call would read the reply as well.
                    raw._execute_command(COMMAND.COM_QUERY, sql)  # noqa: SLF001
                return raw.receive() if receive else _NO_REPLY
            cursor = raw.cursor()
            cursor.execute(sql)
            rows = None if cursor.description is None else tuple(cursor.fetchall())
            reply = Reply(rows, cursor.rowcount, cursor.lastrowid or 0)
            cursor.close()
        except Exception as error:
            raised = interruption(error)
            if raised is error:
                raise
            if raised is None:
                failure = translated(error, self.node, self.shard, connecting=False)
                # What the server itself says ends its reply; behind all else something may still be on its way.
                self.busy = isinstance(failure, ConnectionLost) or not is_servers(error)
                raise failure from error
        else:
            return reply
        raise raised

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run the block as one transaction: committed at its end, rolled back where it raises.

        By ROLLBACK where one of this package's errors ended the block; by closing the connection where it was somebody
        else's, such as a signal's handler, which shall not wait for a server's reply.

        Raises:
            ConnectionLost: the reply to COMMIT or ROLLBACK did not come, or was a refusal.
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
            # MySQL rolls back where COMMIT is interrupted. MariaDB may leave the transaction open, after ROLLBACK too.
            raise ConnectionLost(error.message, node=error.node, shard=error.shard, code=error.code) from error

    @contextmanager
    def whole(self) -> Iterator[None]:
        """For a block that leaves the session as it found it: where it does not come to its end, nobody gets that."""
        before, self.unfinished = self.unfinished, True
        yield
        self.unfinished = before


def in_packets(
    rows: Sequence[T], statement: Callable[[Sequence[T]], bytes], most_bytes: int, too_long: Callable[[T, int], None]
) -> Iterator[tuple[bytes, Sequence[T]]]:
    """Yield statements with the rows that each is about, halving the rows where a statement would be too long.

    Args:
        rows: all of them, in their order; none give no statement.
        statement: makes the statement about some of them.
        most_bytes: how long one may be; see ``Connection.max_statement_bytes``.
        too_long: told of a row whose statement is longer even alone, and how long that is; it raises, or leaves it out.
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
            yield from in_packets(half, statement, most_bytes, too_long)
