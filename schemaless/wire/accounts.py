"""MySQL accounts, and the GRANT statements that error messages suggest."""

from __future__ import annotations

from dataclasses import dataclass

from schemaless.wire.connection import Connection
from schemaless.wire.sql.sessions import SELECT_ACCOUNT, grant


def own_grant(connection: Connection, privileges: str, scope: str = "*.*") -> str:
    """Return the GRANT that gives a connection's own account the privileges it lacks."""
    name, _, host = str(connection.rows(SELECT_ACCOUNT)[0][0]).rpartition("@")
    return grant(privileges, scope, Account(name, host))


@dataclass(frozen=True, slots=True)
class Account:
    """A MySQL account: user name, and the host it may connect from (``%`` for any)."""

    name: str
    host: str = "%"

    def __str__(self) -> str:
        return f"'{self.name}'@'{self.host}'"
