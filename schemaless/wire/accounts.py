"""Accounts as a server names them, for the GRANT that an error proposes."""

from __future__ import annotations

from dataclasses import dataclass

from schemaless.wire.connection import Connection
from schemaless.wire.sql.sessions import SELECT_ACCOUNT, grant


def own_grant(connection: Connection, privileges: str, what: str = "*.*") -> str:
    """Return the GRANT that gives a connection's own account what it lacks."""
    name, _, host = str(connection.rows(SELECT_ACCOUNT)[0][0]).rpartition("@")
    return grant(privileges, what, Account(name, host))


@dataclass(frozen=True, slots=True)
class Account:
    """A MySQL account: its name, and where it may come from (``%``: anywhere)."""

    name: str
    host: str = "%"

    def __str__(self) -> str:
        return f"'{self.name}'@'{self.host}'"
