"""Datastores for tests: each as good as new, most of them used before.

To look through one of four shards and to truncate what was written to takes a tenth of the time in which one is
created and dropped.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from schemaless.errors import SchemalessError
from schemaless.mysql.pool import NodePool, PoolOptions
from schemaless.mysql.schema import databases_like, tables_of
from schemaless.mysql.sql.schema import checksum_tables, drop_database, show_definition, truncate_table
from schemaless.mysql.sql.servers import set_session
from schemaless.mysql.urls import parse_url

_LOCK_WAIT: Final = set_session({"lock_wait_timeout": 1})
"""Sessions wait so long in place of a day, or a year: a test may have left a transaction open."""

_NEXT_ID: Final = re.compile(r" AUTO_INCREMENT=\d+")

_Table = tuple[NodePool, str, str]
"""A table is named by server, database and name."""


class _Seen(NamedTuple):
    """A table: its definition, its next id unless that is 1, and the checksum of its rows, 0 for none."""

    definition: str
    next_id: str | None
    rows: int


class _Made(NamedTuple):
    name: str
    url: str
    picture: dict[_Table, _Seen]


class Datastores:
    """Hands out empty datastores on running servers, one for each test.

    One that comes back is handed out again once the tables that were empty at first are truncated, after which ids
    begin at 1 as in a new one. That is done where every other table, and every definition, is what it was; else it is
    dropped. What a test leaves behind, a thread or a process, may so meet the datastore of a later test under the same
    URL.

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
        return _Made(name, url, self._picture(name))

    def _used_before(self) -> _Made | None:
        while self._free:
            made = self._free.pop()
            # What cannot be had in time, since a test holds a lock on it, is left until the end.
            with contextlib.suppress(SchemalessError):
                if self._emptied(made):
                    return made
                self._drop(made.name)
        return None

    def _emptied(self, made: _Made) -> bool:
        """Truncate what has had rows and was made without; False where something else differs."""
        picture = self._picture(made.name)
        if picture.keys() != made.picture.keys():
            return False
        written = []
        for table, was in made.picture.items():
            if picture[table] == was:
                continue
            if picture[table].definition != was.definition or was.rows or was.next_id is not None:
                return False
            written.append(table)
        for pool, database, name in written:
            _execute(pool, truncate_table(database, name))
        return True

    def _picture(self, name: str) -> dict[_Table, _Seen]:
        """Return what each table is."""
        picture: dict[_Table, _Seen] = {}
        for pool in self._pools:
            tables = [(each, table) for each in databases_like(pool, name) for table in sorted(tables_of(pool, each))]
            # Of cells, which may be many, the next id says whether there were any; it shows unless it is 1.
            small = [table for table in tables if table[1] != "cell"]
            sums = _rows(pool, checksum_tables(small)) if small else ()
            rows = {table: int(found or 0) for table, (_, found) in zip(small, sums, strict=True)}
            for table in tables:
                definition = str(_rows(pool, show_definition(*table))[0][1])
                next_id = _NEXT_ID.search(definition)
                picture[pool, *table] = _Seen(_NEXT_ID.sub("", definition), next_id and next_id[0], rows.get(table, 0))
        return picture

    def _drop(self, name: str) -> None:
        for pool in self._pools:
            for database in databases_like(pool, name):
                _execute(pool, drop_database(database))


def _rows(pool: NodePool, sql: bytes) -> tuple[tuple[Any, ...], ...]:
    return pool.run(lambda connection: connection.rows(sql))


def _execute(pool: NodePool, sql: bytes) -> None:
    with pool.connection() as connection:
        connection.execute(_LOCK_WAIT)
        connection.execute(sql)
