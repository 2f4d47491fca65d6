"""Open transactions of a server: who has them, and for how long, so that what waits for one can name it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from schemaless.errors import AccessDenied, ServerError, ServerTimeout
from schemaless.wire.accounts import own_grant
from schemaless.wire.connection import Connection
from schemaless.wire.errors import reworded
from schemaless.wire.pool import NodePool
from schemaless.wire.sql.transactions import (
    READ_FOR_TRANSACTIONS,
    Ages,
    select_threads,
    select_transactions,
    select_users,
)

_LOCK_WAIT: Final = (1205, 1317)
"""Errors of a statement that did not get its lock: it timed out, or was interrupted."""


class OpenTransaction(NamedTuple):
    """A session that has a transaction open, or a lock.

    Attributes:
        thread: its connection's id, which KILL takes.
        account: its account and host, such as "app@10.0.0.7".
        age_s: age of the transaction, in seconds; without one, time since the session's last statement began.
    """

    thread: int
    account: str
    age_s: float

    def __str__(self) -> str:
        return f"thread {self.thread} of {self.account} for {self.age_s:,.0f} s"


def open_transactions(connection: Connection, older_than_s: float, last: str = "") -> tuple[OpenTransaction, ...]:
    """Return the oldest of the transactions on a server that have been open for longer, oldest first; at most five.

    Those of the account named ``last`` come after all others. Not included are transactions of single statements, which
    may be an ALTER TABLE.

    Raises:
        AccessDenied: the account may not see them; the message has the GRANT.
    """
    try:
        return _read(connection, select_transactions(older_than_s, last, mariadb=connection.is_mariadb))
    except AccessDenied as denied:
        raise reworded(
            denied,
            f"the account may not see open transactions; run on that server: {_grants(connection)}",
        ) from denied


def users_of(connection: Connection, database: str) -> str:
    """Return in words which other sessions use the tables of a database or block the server, or why that is unknown."""
    return _named(connection, lambda ages: select_users(database, ages))


def threads_named(connection: Connection, threads: Collection[int]) -> str:
    """Return in words whose threads these are, by their numbers in performance_schema, or why that is unknown."""
    return _named(connection, lambda ages: select_threads(sorted(threads), ages))


@contextmanager
def naming_users(server: Connection | NodePool, database: str) -> Iterator[None]:
    """Add to the error of a statement that waited for a lock in vain which sessions use the tables of a database.

    Args:
        server: a connection that may be in use again after the error, or a pool of the server.
        database: the database.
    """
    try:
        yield
    except ServerTimeout as error:
        if error.code in _LOCK_WAIT:
            error.message += f"; in use by {_ask(server, lambda connection: users_of(connection, database))}"
        raise


def _ask(server: Connection | NodePool, operation: Callable[[Connection], str]) -> str:
    try:
        return operation(server) if isinstance(server, Connection) else server.run(operation)
    except ServerError as error:
        return f"sessions that cannot be read ({error.message})"


def _named(connection: Connection, statement: Callable[[Ages], bytes]) -> str:
    try:
        if not connection.is_mariadb:
            found = _read(connection, statement("mysql"))
        else:
            try:
                found = _read(connection, statement("mariadb"))
            except AccessDenied:
                found = _read(connection, statement("unknown"))
            if not found:  # without performance_schema, only InnoDB's own list is left
                found = _read(connection, select_transactions(0, mariadb=True))
    except AccessDenied:
        return f"sessions that the account may not see (run on that server: {_grants(connection)})"
    except ServerError as error:
        return f"sessions that cannot be read ({error.message})"
    return ", ".join(map(str, found)) or "sessions that have ended, or that the server does not show"


def _read(connection: Connection, sql: bytes) -> tuple[OpenTransaction, ...]:
    return tuple(OpenTransaction(int(row[0]), str(row[1]), float(row[2])) for row in connection.rows(sql))


def _grants(connection: Connection) -> str:
    tables = [own_grant(connection, "SELECT", f"performance_schema.{table}") for table in READ_FOR_TRANSACTIONS]
    return "; ".join([own_grant(connection, "PROCESS")] if connection.is_mariadb else tables)
