"""Empty datastores for tests, reused where possible.

Checking a used datastore of four shards and emptying the tables that were written to takes a tenth of the time needed
to create and drop one, or a third if changed tables are restored as well.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from schemaless.errors import SchemalessError
from schemaless.ops.move.sql import drop_table, raise_counter
from schemaless.schema.databases import databases_like, tables_of
from schemaless.schema.sql import drop_database, show_definition, use
from schemaless.testing.sql import (
    checksum_tables,
    delete_rows,
    insert_rows,
    select_rows,
    show_schema_changes,
    truncate_table,
)
from schemaless.wire.pool import NodePool, PoolOptions
from schemaless.wire.sql.sessions import set_session
from schemaless.wire.urls import parse_url

_SESSION: Final = set_session({"lock_wait_timeout": 1, "innodb_lock_wait_timeout": 1, "foreign_key_checks": 0})
"""Session settings: fail soon if a test has left a transaction open, and allow restoring tables in any order."""

_NEXT_ID: Final = re.compile(r" AUTO_INCREMENT=\d+")
_CHARACTER_SET: Final = re.compile(r" CHARACTER SET \w+(?= COLLATE )")

_Table = tuple[NodePool, str, str]
"""Server, database and name of a table."""


class _TableState(NamedTuple):
    """Definition of a table, its AUTO_INCREMENT clause unless that is 1, and the checksum of its rows (0: empty)."""

    definition: str
    next_id: str | None
    rows: int


class _Snapshot(NamedTuple):
    """Initial state of a datastore: its tables, and the rows of those that are not empty.

    ``ddl`` is what ``_ddl`` returned when its tables last had these definitions.
    """

    name: str
    url: str
    tables: dict[_Table, _TableState]
    contents: dict[_Table, tuple[tuple[Any, ...], ...]]
    ddl: dict[NodePool, int]


class Datastores:
    """Provides each test with an empty datastore on running servers.

    A returned datastore is restored to its initial state and reused: tables that were empty are emptied, and their ids
    begin with 1 again; new tables and databases are dropped; changed tables are recreated with their initial rows.
    If the result differs from the initial state, the datastore is dropped. Nothing else is reset: threads and processes
    that a test leaves running, and grants that it adds, may affect the datastore of a later test.

    Args:
        servers: URL of each server, with an account that may read, write and drop the datastores.
        make: creates a datastore with a given name on these servers and returns its URL.
        prefix: prefix of the datastores' names; no other database's name may begin with it.
    """

    def __init__(self, servers: Sequence[str], make: Callable[[str], str], prefix: str) -> None:
        self._make = make
        self._prefix = prefix
        self._count = 0
        self._free: list[_Snapshot] = []
        urls = [parse_url(url) for url in servers]
        self._pools = [NodePool(url.node, url.credentials, PoolOptions(pool_size=1)) for url in urls]

    @contextmanager
    def fresh(self) -> Iterator[str]:
        """Yield the URL of an empty datastore, reserved until the block ends.

        Raises:
            SchemalessError: as raised by ``make``.
        """
        snapshot = self._reused() or self._new()
        try:
            yield snapshot.url
        finally:
            self._free.append(snapshot)

    def close(self, *, drop: bool) -> None:
        """Close the connections; with ``drop``, also drop all datastores, including those that tests have broken.

        Raises:
            ServerError: a database could not be dropped.
        """
        for number in range(1, self._count + 1) if drop else ():
            self._drop(f"{self._prefix}{number}")
        for pool in self._pools:
            pool.close()

    def _new(self) -> _Snapshot:
        self._count += 1
        name = f"{self._prefix}{self._count}"
        url = self._make(name)
        ddl = self._ddl()
        tables = self._tables(name)
        contents = {table: _rows(table[0], select_rows(*table[1:])) for table, state in tables.items() if state.rows}
        return _Snapshot(name, url, tables, contents, ddl)

    def _reused(self) -> _Snapshot | None:
        while self._free:
            snapshot = self._free.pop()
            # A datastore on which a test still holds a lock is not reused; close() drops it.
            with contextlib.suppress(SchemalessError):
                if (restored := self._restored(snapshot)) is not None:
                    return restored
                self._drop(snapshot.name)
        return None

    def _restored(self, snapshot: _Snapshot) -> _Snapshot | None:
        ddl, first = self._ddl(), snapshot.tables
        if ddl == snapshot.ddl:
            now = self._tables_as_defined(first)
        else:
            initial, existing = {table[:2] for table in first}, self._databases(snapshot.name).keys()
            if not initial <= existing:
                return None
            for pool, database in existing - initial:
                _execute(pool, drop_database(database))
            now = self._tables(snapshot.name)
        changed = [table for table in {**first, **now} if now.get(table) != first.get(table)]
        for pool, tables in itertools.groupby(changed, key=lambda table: table[0]):
            repairs = [
                _repair(table[1], table[2], now.get(table), first.get(table), snapshot.contents.get(table, ()))
                for table in tables
            ]
            _execute(pool, *itertools.chain.from_iterable(repairs))
        if all(_needs_only_emptying(now.get(table), first.get(table)) for table in changed):
            for table in changed:
                ddl[table[0]] += _is_truncated(first[table])
            return snapshot._replace(ddl=ddl)
        ddl = self._ddl()
        return snapshot._replace(ddl=ddl) if self._tables(snapshot.name) == first else None

    def _ddl(self) -> dict[NodePool, int]:
        """Return how many statements each server has executed that may change the definition of a table."""
        return {pool: sum(int(count) for _, count in _rows(pool, show_schema_changes())) for pool in self._pools}

    def _tables_as_defined(self, first: dict[_Table, _TableState]) -> dict[_Table, _TableState]:
        """Return the state of tables whose definitions are unchanged."""
        states: dict[_Table, _TableState] = {}
        for pool, tables in itertools.groupby(first, key=lambda table: table[0]):
            states |= self._states(pool, [table[1:] for table in tables], first)
        return states

    def _tables(self, name: str) -> dict[_Table, _TableState]:
        states: dict[_Table, _TableState] = {}
        for pool, databases in itertools.groupby(self._databases(name), key=lambda pair: pair[0]):
            tables = [(database, table) for _, database in databases for table in sorted(tables_of(pool, database))]
            states |= self._states(pool, tables, {})
        return states

    def _states(
        self, pool: NodePool, tables: Sequence[tuple[str, str]], known: dict[_Table, _TableState]
    ) -> dict[_Table, _TableState]:
        # Checksums of cell tables may be slow; their next id shows whether they ever had rows.
        small = [table for table in tables if table[1] != "cell"]
        sums = _rows(pool, checksum_tables(small)) if small else ()
        rows = {table: int(checksum or 0) for table, (_, checksum) in zip(small, sums, strict=True)}
        states = {}
        for table in tables:
            state = known.get((pool, *table))
            if state is None or _is_truncated(state):
                # A table recreated from MySQL's own SHOW CREATE TABLE shows a character set next to its collation.
                definition = _CHARACTER_SET.sub("", str(_rows(pool, show_definition(*table))[0][1]))
                next_id = _NEXT_ID.search(definition)
                state = _TableState(_NEXT_ID.sub("", definition), next_id and next_id[0], 0)
            states[pool, *table] = state._replace(rows=rows.get(table, 0))
        return states

    def _databases(self, name: str) -> dict[tuple[NodePool, str], None]:
        return dict.fromkeys((pool, database) for pool in self._pools for database in databases_like(pool, name))

    def _drop(self, name: str) -> None:
        for pool, database in self._databases(name):
            _execute(pool, drop_database(database))


def _needs_only_emptying(now: _TableState | None, first: _TableState | None) -> bool:
    if now is None or first is None:
        return False
    return now.definition == first.definition and not first.rows and first.next_id is None


def _is_truncated(state: _TableState) -> bool:
    """Return True if emptying a table takes TRUNCATE, which resets its ids and is many times slower than DELETE."""
    return "AUTO_INCREMENT" in state.definition


def _repair(
    database: str,
    name: str,
    now: _TableState | None,
    first: _TableState | None,
    contents: Sequence[Sequence[Any]],
) -> list[bytes]:
    """Return statements that restore the initial state of a table; a state of None means that it does not exist."""
    statements = []
    if now is None or first is None or now.definition != first.definition:
        statements.append(drop_table(database, name))
        if first is not None:
            statements += [use(database), (first.definition + (first.next_id or "")).encode()]
    elif not _is_truncated(first):
        statements.append(delete_rows(database, name))
    else:
        statements.append(truncate_table(database, name))
        if first.next_id is not None:
            statements.append(raise_counter(database, name, int(first.next_id.rpartition("=")[2])))
    if contents:
        statements.append(insert_rows(database, name, contents))
    return statements


def _rows(pool: NodePool, sql: bytes) -> tuple[tuple[Any, ...], ...]:
    return pool.rows(sql)


def _execute(pool: NodePool, *statements: bytes) -> None:
    with pool.connection() as connection:
        for statement in (_SESSION, *statements):
            connection.execute(statement)
