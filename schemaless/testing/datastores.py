"""Datastores for tests: each as good as new, most of them used before.

To look through one of four shards and to truncate what was written to takes a tenth of the time in which one is
created and dropped, and to mend one that is not as it was a third.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from schemaless.errors import SchemalessError
from schemaless.move.sql import drop_table, raise_counter
from schemaless.schema.databases import databases_like, tables_of
from schemaless.schema.sql import drop_database, show_definition, use
from schemaless.testing.sql import checksum_tables, insert_rows, select_rows, truncate_table
from schemaless.wire.pool import NodePool, PoolOptions
from schemaless.wire.sql.sessions import set_session
from schemaless.wire.urls import parse_url

_SESSION: Final = set_session({"lock_wait_timeout": 1, "foreign_key_checks": 0})
"""Sessions wait so long in place of a day, or a year: a test may have left a transaction open.

Tables are mended in any order.
"""

_NEXT_ID: Final = re.compile(r" AUTO_INCREMENT=\d+")
_CHARACTER_SET: Final = re.compile(r" CHARACTER SET \w+(?= COLLATE )")

_Table = tuple[NodePool, str, str]
"""A table is named by server, database and name."""


class _Seen(NamedTuple):
    """A table: its definition, its next id unless that is 1, and the checksum of its rows, 0 for none."""

    definition: str
    next_id: str | None
    rows: int


class _Made(NamedTuple):
    """A datastore: its tables, and the rows that they had at first."""

    name: str
    url: str
    picture: dict[_Table, _Seen]
    contents: dict[_Table, tuple[tuple[Any, ...], ...]]


class Datastores:
    """Hands out empty datastores on running servers, one for each test.

    One that comes back is handed out again once it is what it was. Tables that were empty are truncated, after which
    ids begin at 1 as in a new one; tables and databases that are new are dropped, and tables that changed are made
    again, with the rows that they had. Where that does not give what was there, the datastore is dropped. What a test
    leaves behind, a thread or a process, may so meet the datastore of a later test under the same URL; so may what it
    granted.

    Args:
        servers: the URL of each server, for an account that may look through, truncate and drop what is made.
        make: creates a datastore of a name on these servers and returns its URL.
        prefix: what the names begin with; nobody else's databases may begin so.
    """

    def __init__(self, servers: Sequence[str], make: Callable[[str], str], prefix: str) -> None:
        self._make = make
        self._prefix = prefix
        self._count = 0
        self._free: list[_Made] = []
        urls = [parse_url(url) for url in servers]
        self._pools = [NodePool(url.node, url.credentials, PoolOptions(pool_size=1)) for url in urls]

    @contextmanager
    def fresh(self) -> Iterator[str]:
        """Yield the URL of an empty datastore that is handed out to nobody else until the block ends.

        Raises:
            SchemalessError: whatever ``make`` raises.
        """
        made = self._used_before() or self._new()
        try:
            yield made.url
        finally:
            self._free.append(made)

    def close(self, *, drop: bool) -> None:
        """Close the connections, and with ``drop`` remove whatever was made here, also what a test spoiled.

        Raises:
            ServerError: a database could not be dropped.
        """
        for number in range(1, self._count + 1) if drop else ():
            self._drop(f"{self._prefix}{number}")
        for pool in self._pools:
            pool.close()

    def _new(self) -> _Made:
        self._count += 1
        name = f"{self._prefix}{self._count}"
        url = self._make(name)
        picture = self._picture(name)
        contents = {table: _rows(table[0], select_rows(*table[1:])) for table, seen in picture.items() if seen.rows}
        return _Made(name, url, picture, contents)

    def _used_before(self) -> _Made | None:
        while self._free:
            made = self._free.pop()
            # What cannot be had in time, since a test holds a lock on it, is left until the end.
            with contextlib.suppress(SchemalessError):
                if self._mended(made):
                    return made
                self._drop(made.name)
        return None

    def _mended(self, made: _Made) -> bool:
        """Make a datastore what it was; False where a database is gone, or it has not become the same."""
        first, there = {table[:2] for table in made.picture}, self._databases(made.name).keys()
        if not first <= there:
            return False
        for pool, database in there - first:
            _execute(pool, drop_database(database))
        picture = self._picture(made.name)
        changed = [table for table in {**made.picture, **picture} if picture.get(table) != made.picture.get(table)]
        for table in changed:
            _restore(table, picture.get(table), made.picture.get(table), made.contents.get(table, ()))
        only_emptied = all(_is_emptied(picture.get(table), made.picture.get(table)) for table in changed)
        return only_emptied or self._picture(made.name) == made.picture

    def _picture(self, name: str) -> dict[_Table, _Seen]:
        """Return what each table is."""
        picture: dict[_Table, _Seen] = {}
        for pool, databases in itertools.groupby(self._databases(name), key=lambda pair: pair[0]):
            tables = [(database, table) for _, database in databases for table in sorted(tables_of(pool, database))]
            # Of cells, which may be many, the next id says whether there were any; it shows unless it is 1.
            small = [table for table in tables if table[1] != "cell"]
            sums = _rows(pool, checksum_tables(small)) if small else ()
            rows = {table: int(checksum or 0) for table, (_, checksum) in zip(small, sums, strict=True)}
            for table in tables:
                # MySQL names a character set, beside its collation, where a table was made by what this shows.
                definition = _CHARACTER_SET.sub("", str(_rows(pool, show_definition(*table))[0][1]))
                next_id = _NEXT_ID.search(definition)
                picture[pool, *table] = _Seen(_NEXT_ID.sub("", definition), next_id and next_id[0], rows.get(table, 0))
        return picture

    def _databases(self, name: str) -> dict[tuple[NodePool, str], None]:
        """Return the databases on each server, in their order."""
        return dict.fromkeys((pool, database) for pool in self._pools for database in databases_like(pool, name))

    def _drop(self, name: str) -> None:
        for pool, database in self._databases(name):
            _execute(pool, drop_database(database))


def _is_emptied(now: _Seen | None, first: _Seen | None) -> bool:
    """Whether to truncate a table is all that it takes to restore it."""
    if now is None or first is None:
        return False
    return now.definition == first.definition and not first.rows and first.next_id is None


def _restore(table: _Table, now: _Seen | None, first: _Seen | None, contents: Sequence[Sequence[Any]]) -> None:
    """Make a table what it was at first, None being one that was not there."""
    pool, database, name = table
    if now is None or first is None or now.definition != first.definition:
        _execute(pool, drop_table(database, name))
        if first is not None:
            _execute(pool, use(database), (first.definition + (first.next_id or "")).encode())
    else:
        _execute(pool, truncate_table(database, name))
        if first.next_id is not None:
            _execute(pool, raise_counter(database, name, int(first.next_id.rpartition("=")[2])))
    if contents:
        _execute(pool, insert_rows(database, name, contents))


def _rows(pool: NodePool, sql: bytes) -> tuple[tuple[Any, ...], ...]:
    return pool.run(lambda connection: connection.rows(sql))


def _execute(pool: NodePool, *statements: bytes) -> None:
    with pool.connection() as connection:
        for statement in (_SESSION, *statements):
            connection.execute(statement)
