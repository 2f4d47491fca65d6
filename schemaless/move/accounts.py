"""Accounts: whoever may use a shard where it is has to be let in where it goes, or its programs stand still there."""

from __future__ import annotations

import re
from typing import Final

from schemaless.errors import AccessDenied, MoveRefused
from schemaless.indexes.sql import INDEX_TABLE
from schemaless.move.spec import TABLES
from schemaless.move.sql import SELECT_DATABASE_GRANTS, select_table_grants
from schemaless.wire.connection import Connection
from schemaless.wire.sql.sessions import grant

_CREATE: Final = "CREATE"
_READ_WRITE: Final = frozenset({"SELECT", "INSERT"})


def lacking_grants(source: Connection, target: Connection, database: str) -> list[str]:
    """Return the GRANTs on a target without which accounts would be locked out that may use a shard on its source.

    They have CREATE in them, since the tables are not there yet: without that, privileges on them cannot be given.

    Raises:
        AccessDenied: this account may not see others' privileges.
    """
    wanted, there, wide = _table_grants(source, database), _table_grants(target, database), _wide(target, database)
    for account in _wide(source, database):
        wanted[account, "cell"] = wanted.get((account, "cell"), frozenset()) | _READ_WRITE
    return [
        grant(", ".join(sorted({*privileges, _CREATE})), f"`{database}`.`{table}`", account)
        for (account, table), privileges in sorted(wanted.items())
        if account not in wide and not privileges <= there.get((account, table), frozenset())
    ]


def check_accounts(source: Connection, target: Connection, database: str) -> None:
    """Refuse where accounts would be locked out.

    Raises:
        MoveRefused: some would, or that cannot be seen.
    """
    try:
        lacking = lacking_grants(source, target, database)
    except AccessDenied as error:
        raise MoveRefused(
            f"this account cannot see whether the accounts that use {database} may use it on {target.node}: {error}; "
            "run what 'schemaless grants --role move' prints, or check them yourself and give --unchecked-accounts"
        ) from error
    if lacking:
        raise MoveRefused(
            f"accounts that use {database} on {source.node} may not use it on {target.node}; run there first: "
            f"{'; '.join(lacking)}"
        )


def _table_grants(connection: Connection, database: str) -> dict[tuple[str, str], frozenset[str]]:
    """Return privileges on a shard's tables, by account and table."""
    granted: dict[tuple[str, str], frozenset[str]] = {}
    for user, host, table, privileges in connection.rows(select_table_grants(database)):
        words = privileges if isinstance(privileges, set) else str(privileges).split(",")
        names = frozenset(str(word).strip().upper() for word in words if word) - {_CREATE}
        if names and (table in TABLES or INDEX_TABLE.fullmatch(str(table))):
            granted[f"'{user}'@'{host}'", str(table)] = names
    return granted


def _wide(connection: Connection, database: str) -> set[str]:
    """Return the accounts that may read and write a database as a whole."""
    rows = connection.rows(SELECT_DATABASE_GRANTS)
    return {f"'{user}'@'{host}'" for user, host, pattern in rows if _covers(str(pattern), database)}


def _covers(pattern: str, database: str) -> bool:
    """Whether a database's name matches what privileges are on, where ``_`` and ``%`` are wildcards."""
    parts = re.findall(r"\\.|.", pattern)
    wild = {"_": ".", "%": ".*"}
    return re.fullmatch("".join(wild.get(part) or re.escape(part[-1]) for part in parts), database) is not None
