"""Privilege checks before a move.

Every account that can use a shard on the source needs the same access on the target, or the programs that use it would
fail there.
"""

from __future__ import annotations

import re
from typing import Final

from schemaless.errors import AccessDenied, MoveRefused
from schemaless.ops.move.spec import TABLES
from schemaless.ops.move.sql import SELECT_DATABASE_GRANTS, select_table_grants
from schemaless.store.indexes.sql import INDEX_TABLE
from schemaless.wire.connection import Connection
from schemaless.wire.sql.sessions import grant

_CREATE: Final = "CREATE"
_READ_WRITE: Final = frozenset({"SELECT", "INSERT"})


def lacking_grants(source: Connection, target: Connection, database: str) -> list[str]:
    """Return GRANT statements for the privileges that accounts with access to a shard on the source lack on the target.

    They include CREATE, without which privileges on a table that does not exist yet cannot be granted.

    Raises:
        AccessDenied: this account cannot read the privileges of other accounts.
    """
    wanted, granted = _table_grants(source, database), _table_grants(target, database)
    wide = _database_wide(target, database)
    for account in _database_wide(source, database):
        wanted[account, "cell"] = wanted.get((account, "cell"), frozenset()) | _READ_WRITE
    return [
        grant(", ".join(sorted({*privileges, _CREATE})), f"`{database}`.`{table}`", account)
        for (account, table), privileges in sorted(wanted.items())
        if account not in wide and not privileges <= granted.get((account, table), frozenset())
    ]


def check_accounts(source: Connection, target: Connection, database: str) -> None:
    """Refuse a move that would lock accounts out of the shard.

    Raises:
        MoveRefused: accounts lack privileges on the target, or this account cannot check that.
    """
    try:
        lacking = lacking_grants(source, target, database)
    except AccessDenied as error:
        raise MoveRefused(
            f"this account cannot check whether the accounts that use {database} have access to it on {target.node}: "
            f"{error}; run the statements that 'schemaless grants --role move' prints, or check the accounts yourself "
            "and pass --unchecked-accounts"
        ) from error
    if lacking:
        raise MoveRefused(
            f"accounts that use {database} on {source.node} lack privileges on {target.node}; run there first: "
            f"{'; '.join(lacking)}"
        )


def _table_grants(connection: Connection, database: str) -> dict[tuple[str, str], frozenset[str]]:
    """Return the privileges on a shard's tables, keyed by account and table."""
    granted: dict[tuple[str, str], frozenset[str]] = {}
    for user, host, table, privileges in connection.rows(select_table_grants(database)):
        words = privileges if isinstance(privileges, set) else str(privileges).split(",")
        names = frozenset(str(word).strip().upper() for word in words if word) - {_CREATE}
        if names and (table in TABLES or INDEX_TABLE.fullmatch(str(table))):
            granted[f"'{user}'@'{host}'", str(table)] = names
    return granted


def _database_wide(connection: Connection, database: str) -> set[str]:
    """Return the accounts that can read and write the whole database."""
    rows = connection.rows(SELECT_DATABASE_GRANTS)
    return {f"'{user}'@'{host}'" for user, host, pattern in rows if _covers(str(pattern), database)}


def _covers(pattern: str, database: str) -> bool:
    """Return whether a GRANT's database pattern, with the wildcards ``_`` and ``%``, matches a database name."""
    parts = re.findall(r"\\.|.", pattern)
    wild = {"_": ".", "%": ".*"}
    return re.fullmatch("".join(wild.get(part) or re.escape(part[-1]) for part in parts), database) is not None
