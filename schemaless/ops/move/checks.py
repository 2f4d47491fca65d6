"""Checks before a move begins: of the tables on both servers, and of accounts.

Every account that can use a shard on the source needs the same access on the target, or the programs that use it would
fail there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from schemaless.errors import AccessDenied
from schemaless.ops.move.fence import Side, index_tables, side_of
from schemaless.ops.move.index_tables import refusal_of_indexes
from schemaless.ops.move.spec import CREATED_NEW, TABLES, MoveSpec
from schemaless.ops.move.sql import SELECT_DATABASE_GRANTS, select_table_grants
from schemaless.schema.sql import select_version
from schemaless.schema.versions import head
from schemaless.store.indexes.registry import IndexEntry
from schemaless.store.indexes.sql import INDEX_TABLE
from schemaless.store.internals import Internals
from schemaless.wire.connection import Connection
from schemaless.wire.sql.sessions import grant

_CREATE: Final = "CREATE"
_READ_WRITE: Final = frozenset({"SELECT", "INSERT"})
_CREATED_NEW: Final = frozenset(name for name, treatment in TABLES.items() if treatment == CREATED_NEW)


def obstacle(
    internals: Internals, shard: int, spec: MoveSpec, at_source: Connection, at_target: Connection
) -> tuple[str | None, list[str]]:
    """Return why a shard cannot be moved, or None, and the GRANT statements to run on the target first.

    Args:
        internals: internals of the datastore.
        shard: number of the shard.
        spec: options of the move.
        at_source: a connection to the server that has the shard.
        at_target: a connection to the server that it moves to.
    """
    database = internals.shards.database(shard)
    while True:
        indexes = internals.registry.read()
        sides = side_of(at_source, database), side_of(at_target, database)
        if indexes == internals.registry.read():
            break
    refusal = _refusal_of(*sides, database, at_source, at_target, indexes)
    if refusal is not None or not spec.accounts:
        return refusal, []
    try:
        lacking = _lacking_grants(at_source, at_target, database)
    except AccessDenied as error:
        return (
            f"this account cannot check whether the accounts that use {database} have access to it on "
            f"{at_target.node}: {error}; run the statements that 'schemaless grants --role move' prints, or check the "
            "accounts yourself and pass --unchecked-accounts"
        ), []
    target = f"{spec.target} ({at_target.node})"
    refusal = f"its accounts lack privileges on {target}; missing grants: {len(lacking)}" if lacking else None
    return refusal, lacking


def _refusal_of(
    source: Side,
    target: Side,
    database: str,
    at_source: Connection,
    at_target: Connection,
    indexes: Sequence[IndexEntry],
) -> str | None:
    """Return why the tables prevent a move of the shard, or None; ``indexes`` are those in the catalog now."""
    if at_source.is_mariadb != at_target.is_mariadb:
        return f"one of {at_source.node} and {at_target.node} is MySQL and the other is MariaDB"
    if source.has_cell and (refusal := refusal_of_indexes(indexes, source, at_source.node)) is not None:
        return refusal
    unknown = sorted(source.plain - TABLES.keys() - {*index_tables(source.plain)})
    if unknown:
        return (
            f"{database} on {at_source.node} has the table {unknown[0]}, which does not belong to this store, so a "
            "move would leave it there; move the table to another database first"
        )
    missing = sorted(TABLES.keys() - source.plain)
    if missing:
        return f"{database} on {at_source.node} has no table {missing[0]}; run 'schemaless schema upgrade' first"
    version = str(at_source.rows(select_version(database))[0][0])
    if version != head("shard"):
        needed = head("shard")
        return f"its tables are at revision {version}, not at {needed}; run 'schemaless schema upgrade' first"
    for side, connection in ((source, at_source), (target, at_target)):
        for names, step in (
            (side.moved, "run 'schemaless shards drop-moved' to drop it, or 'schemaless rebuild' if a rebuild left it"),
            (side.incoming, "that move was aborted while this server was down; no program reads the table: drop it"),
            ({"noted": side.saved_locations}, "that move was aborted, and the table is no longer needed: drop it"),
        ):
            leftovers = [name for tables in names.values() for name in tables]
            if leftovers:
                return f"an earlier move left {database}.{leftovers[0]} on {connection.node}; {step}"
    unexpected = sorted(target.plain - _CREATED_NEW)
    if unexpected:
        return (
            f"{at_target.node} already has a database {database} with the table {unexpected[0]}; find out what uses "
            "it, and drop it there if it is not needed"
        )
    return None


def _lacking_grants(source: Connection, target: Connection, database: str) -> list[str]:
    """Return GRANT statements for the privileges that accounts with access to a shard on the source lack on the target.

    They include CREATE, without which privileges on a table that does not exist yet cannot be granted.

    Raises:
        AccessDenied: this account cannot read the privileges of other accounts.
    """
    wanted, granted = _table_grants(source, database), _table_grants(target, database)
    wide = _database_wide(target, database)
    for account in _database_wide(source, database):
        wanted[account, "cell"] = wanted.get((account, "cell"), frozenset()) | _READ_WRITE
    missing = {key: privileges - granted.get(key, frozenset()) for key, privileges in wanted.items()}
    return [
        grant(", ".join(sorted({*privileges, _CREATE})), f"`{database}`.`{table}`", account)
        for (account, table), privileges in sorted(missing.items())
        if privileges and account not in wide
    ]


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
