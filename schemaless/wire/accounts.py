"""MySQL accounts, and the GRANT statements that error messages suggest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from schemaless.errors import AccessDenied
from schemaless.wire.connection import Connection
from schemaless.wire.errors import reworded
from schemaless.wire.sql.sessions import SELECT_ACCOUNT, grant


def own_grant(connection: Connection, privileges: str, scope: str = "*.*") -> str:
    """Return the GRANT that gives a connection's own account the privileges it lacks."""
    name, _, host = str(connection.rows(SELECT_ACCOUNT)[0][0]).rpartition("@")
    return grant(privileges, scope, Account(name, host))


@contextmanager
def granting(connection: Connection, what: str, privileges: str, scope: str) -> Iterator[None]:
    """Extend the error of an account that lacks a privilege with the GRANT; ``what`` says what it cannot do."""
    try:
        yield
    except AccessDenied as denied:
        raise reworded(
            denied,
            f"the account cannot {what}; run on that server: {own_grant(connection, privileges, scope)}",
        ) from denied


@dataclass(frozen=True, slots=True)
class Account:
    """A MySQL account: user name, and the host it may connect from (``%`` for any)."""

    name: str
    host: str = "%"

    def __str__(self) -> str:
        return f"'{self.name}'@'{self.host}'"
